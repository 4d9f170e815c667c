"""A real study of two tiny variants on the embedded digits: real training, real costs, real report."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from attngraft.study import StudyConfig, Tools, compare, incomplete, load_result, study_from_dict


def tiny(out: Path, **changes: object) -> StudyConfig:
    plain = {
        "host": {
            "name": "vit_tiny_patch16_224",
            "args": {"img_size": 8, "patch_size": 4, "depth": 2, "embed_dim": 24, "num_heads": 3, "in_chans": 1},
        },
        "grafts": ["cb", "cb_s"],
        "data": "digits",
        "set": ["train.batch_size=128", "task.augment.crop=center", "optimizer.lr=3e-3"],
        "seeds": 2,
        "epochs": 2,
        "out": str(out),
    }
    return study_from_dict({**plain, **changes})


@pytest.mark.slow
def test_real_training_without_costs(tmp_path: Path) -> None:
    tools = Tools(write_report=lambda result, folder: folder)
    config = tiny(tmp_path, grafts=["cb"], epochs=1)
    result = compare(config, costs=False, tools=tools)
    assert not incomplete(result)
    assert load_result(tmp_path) == result
    assert result.metric == "top1"
    for variant in result.variants:
        for run in variant.runs:
            with np.load(tmp_path / run.folder / "predictions.npz") as arrays:
                assert run.last["top1"] == pytest.approx(arrays["score"].mean(), abs=1e-6)
    assert not any("mean score" in note for note in result.notes)
    assert result.variants[1].difference is not None
    stamps = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("metrics.jsonl")}
    again = compare(config, costs=False, tools=tools)
    assert again.variants == result.variants
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("metrics.jsonl")} == stamps


def test_variants_share_what_they_can(tmp_path: Path) -> None:
    """cb_s starts as the identity: with a learning rate of zero its runs are the baseline's, bit for bit."""
    changes = {"set": ["train.batch_size=128", "optimizer.lr=0", "schedule.warmup_lr=0", "schedule.min_lr=0"]}
    config = tiny(tmp_path, grafts=["cb_s"], seeds=1, **changes)
    result = compare(config, costs=False, tools=Tools(write_report=lambda result, folder: folder))
    baseline, variant = result.variants
    assert baseline.runs[0].curve == variant.runs[0].curve
    assert variant.difference is not None
    assert (variant.difference.mean, variant.difference.mcnemar[0].only_variant) == (0, 0)


@pytest.mark.slow
def test_other_hosts_share_all_but_the_model(tmp_path: Path) -> None:
    """A DeiT of these arguments is the study's ViT under another name: its runs are the baseline's, bit for bit."""
    args = tiny(tmp_path).host.args  # type: ignore[union-attr]
    as_vit = {**args, "pretrained_cfg_overlay": {"mean": [0.5] * 3, "std": [0.5] * 3}}
    same = {"name": "the same", "host": {"name": "deit_tiny_patch16_224", "args": as_vit}}
    other = {"name": "the other", "host": {"name": "deit_tiny_patch16_224", "args": {**args, "depth": 1}}}
    config = tiny(tmp_path, grafts=[same, other], seeds=1, epochs=1)
    result = compare(config, costs=False, tools=Tools(write_report=lambda result, folder: folder))
    assert not incomplete(result)
    assert result.variants[0].runs[0].curve == result.variants[1].runs[0].curve
    assert result.variants[2].runs[0].curve != result.variants[0].runs[0].curve
    assert any("differently from the baseline's for the other (mean, std)." in note for note in result.notes)
    assert not any("trained on different examples" in note for note in result.notes)


@pytest.mark.product  # CI runs a demo, which is more
def test_everything(tmp_path: Path) -> None:
    result = compare(tiny(tmp_path, time_budget="2m", epochs=3, seeds=1))
    assert result.epochs == 3
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert "cb_s" in page
    assert json.loads((tmp_path / "results.json").read_text())["variants"][1]["cost"]["macs_ratio"] == 1.0
    assert result.variants[1].cost is not None
    assert result.variants[1].cost.train_time_ratio is not None
