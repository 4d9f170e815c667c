"""The control: a graft that does nothing gives the baseline's runs, bit for bit, through a real comparison."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from attngraft.report.page import report_html
from attngraft.study import StudyResult, Tools, compare, load_result, study_from_dict

#: with all that draws random numbers: dropout, stochastic depth, random crops, mixup
HOSTS: dict[str, dict[str, Any]] = {
    "vit_tiny_patch16_224": {
        "img_size": 8,
        "patch_size": 4,
        "depth": 2,
        "embed_dim": 24,
        "num_heads": 3,
        "in_chans": 1,
        "proj_drop_rate": 0.1,
        "attn_drop_rate": 0.1,
    },
    "swin_tiny_patch4_window7_224": {
        "img_size": 8,
        "patch_size": 2,
        "window_size": 2,
        "depths": [2, 1],
        "embed_dim": 12,
        "num_heads": [2, 4],
        "in_chans": 1,
        "proj_drop_rate": 0.1,
        "attn_drop_rate": 0.1,
    },
    "levit_128s": {
        "img_size": 16,
        "stem_type": "s8",
        "embed_dim": [16, 24],
        "key_dim": 4,
        "depth": [2, 1],
        "num_heads": [2, 3],
        "drop_rate": 0.1,
    },
}
SETTINGS = ["train.batch_size=256", "train.drop_path=0.1", "task.augment.padding=1", "task.augment.mixup=0.2"]
HOOK_POINTS = ["tokens", "mlp.mid"]
#: batch norms may differ, so LeViT is in CI; Swin, of layer norms as ViT, on demand
MARKS = {"levit_128s": pytest.mark.slow, "swin_tiny_patch4_window7_224": pytest.mark.product}


@pytest.fixture(
    scope="module",
    params=[pytest.param(name, marks=MARKS.get(name, ())) for name in HOSTS],
)
def study(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, StudyResult]:
    out = tmp_path_factory.mktemp("control")
    plain = {
        "host": {"name": request.param, "args": HOSTS[request.param]},
        "grafts": [{"name": stage, "spec": f"identity(stage='{stage}')"} for stage in HOOK_POINTS],
        "data": "digits",
        "set": [*SETTINGS, "optimizer.lr=3e-3", "train.threads=1"],
        "seeds": 2,
        "epochs": 2,
        "out": str(out),
    }
    return out, compare(study_from_dict(plain), costs=False, tools=Tools(write_report=lambda result, folder: folder))


def weights(run: Path) -> dict[str, torch.Tensor]:
    """Of the best epoch and of the last checkpoint, with all that the optimizer holds."""
    last = torch.load(run / "checkpoints" / "last.pt", weights_only=True)
    return {f"best/{name}": value for name, value in load_file(run / "checkpoints" / "best.safetensors").items()} | {
        f"last/{name}": value for name, value in tensors(last).items()
    }


def tensors(value: Any, path: str = "") -> dict[str, torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return {path: value}
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list | tuple) else ()
    return {name: tensor for key, item in items for name, tensor in tensors(item, f"{path}/{key}").items()}


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("stage", range(1, 1 + len(HOOK_POINTS)))
def test_runs_are_the_baselines_bit_for_bit(study: tuple[Path, StudyResult], stage: int, seed: int) -> None:
    out, result = study
    runs = [out / result.variants[place].runs[seed].folder for place in (0, stage)]
    expected, found = map(weights, runs)
    assert len(expected) > 60
    assert list(found) == list(expected)
    assert all(torch.equal(found[name], expected[name]) for name in expected)
    with np.load(runs[0] / "predictions.npz") as a, np.load(runs[1] / "predictions.npz") as b:
        assert set(a) == set(b) >= {"score", "logits"}
        assert all(np.array_equal(a[name], b[name]) for name in a)
    rows = [[json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()] for run in runs]
    for before, after in zip(*rows, strict=True):
        assert {**before, "seconds": 0} == {**after, "seconds": 0}


def test_seeds_do_differ(study: tuple[Path, StudyResult]) -> None:
    """What is equal above is not equal by being always the same."""
    first, second = (run.last["loss"] for run in study[1].variants[0].runs)
    assert first != second


def test_every_difference_is_exactly_zero(study: tuple[Path, StudyResult]) -> None:
    result = load_result(study[0])
    for variant in result.variants[1:]:
        found = variant.difference
        assert found is not None
        assert found.t is not None
        assert (found.mean, found.p_value, found.p_holm, found.verdict) == (0, 1, 1, "inside the noise")
        assert found.interval is not None
        for interval in (found.interval, found.bootstrap, found.t):
            assert (interval.point, interval.low, interval.high) == (0, 0, 0)
        assert [(test.only_variant, test.only_baseline, test.p_value) for test in found.mcnemar] == [(0, 0, 1)] * 2
        assert found.why.startswith(f"no difference could be seen in {found.examples} examples: in all 2 seeds")
        assert (found.detectable, found.seeds_for_point, found.examples_for_point) == (None, None, None)
    stored = json.loads((study[0] / "results.json").read_text())
    assert [variant["difference"]["mean"] for variant in stored["variants"][1:]] == [0, 0]


def test_the_report_says_so(study: tuple[Path, StudyResult]) -> None:
    page = report_html(study[1])
    examples = study[1].variants[1].difference.examples
    assert "This study is too short to tell" in page  # checked first
    assert page.count(f"No difference could be seen in {examples} examples: all examples have the same score") == 2
    assert not re.search(r"\bnan\b", page, flags=re.IGNORECASE)
