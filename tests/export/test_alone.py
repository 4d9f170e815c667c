"""Programs where neither attngraft nor timm can be imported: the files hold the whole model, in torch's own operations."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import attngraft
from attngraft.errors import ExportError
from attngraft.export import torch_export
from attngraft.export.run import Exported, Target, export_run
from attngraft.export.torch_export import foreign_operations
from attngraft.targets.run import open_run
from tests.export.runs import LEVIT, make_run
from tests.export.test_formats import ONE_BLOCK

#: host, graft, folded
CASES: dict[str, tuple[dict[str, Any], str, bool]] = {
    "cb-folded": (ONE_BLOCK["vit"], "cb", True),
    "vit": (ONE_BLOCK["vit"], "bisa + horizontal + vertical", False),
    "swin": (ONE_BLOCK["swin"], "bisa@layers.0.blocks.0 + horizontal@layers.0.blocks.1 + vertical + cb", True),
    "levit": (LEVIT, "bisa@stages.0 + horizontal@stages.1 + vertical + cb", True),
}
ONNX_TOO = "cb-folded"
BLOCKED = """
import sys
import numpy as np

for name in {blocked}:
    sys.modules[name] = None  # every import of it or of what is in it raises

def tried(name):
    try:
        __import__(name)
    except ImportError:
        return
    raise SystemExit(f"{{name}} could be imported")

for name in {blocked}:
    tried(name)
    tried(f"{{name}}.layers")
folder, images = sys.argv[1], np.load(sys.argv[1] + "/images.npz")
found = {{}}
"""
TORCH = """
import torch
for name in images:
    program = torch.export.load(f"{folder}/{name}/model.pt2").module()
    with torch.no_grad():
        found[name] = program(torch.from_numpy(images[name])).numpy()
np.savez(folder + "/pt2.npz", **found)
"""
ONNX = """
import os
import onnxruntime
for name in images:
    if not os.path.exists(f"{folder}/{name}/model.onnx"):
        continue
    session = onnxruntime.InferenceSession(f"{folder}/{name}/model.onnx", providers=["CPUExecutionProvider"])
    found[name] = session.run(None, {"image": images[name]})[0]
np.savez(folder + "/onnx.npz", **found)
"""


def away(folder: Path, script: str, *blocked: str) -> None:
    """Run a program in a Python of its own, in which `blocked` cannot be imported."""
    text = BLOCKED.format(blocked=blocked) + script
    told = subprocess.run(
        [sys.executable, "-c", text, str(folder)], cwd=folder, capture_output=True, text=True, timeout=120, check=False
    )
    assert told.returncode == 0, told.stdout + told.stderr


def taken_away(folder: Path) -> dict[str, tuple[Exported, Tensor]]:
    """Export, and put batches of another size than any that was traced or checked beside the files."""
    made, images = {}, {}
    for name, (host, graft, fold) in CASES.items():
        to: tuple[Target, ...] = ("pt2", "onnx") if name == ONNX_TOO else ("pt2",)
        exported = export_run(make_run(folder / "runs" / name, graft, host=host), folder / name, to=to, fold=fold)
        pictures = torch.randn(3, *exported.manifest.input_size, generator=torch.Generator().manual_seed(1))
        with torch.no_grad():
            made[name] = exported, attngraft.load(folder / name)(pictures)
        images[name] = pictures.numpy()
    np.savez(folder / "images.npz", **images)
    return made


def assert_programs_alone(folder: Path, made: dict[str, tuple[Exported, Tensor]]) -> None:
    away(folder, TORCH, "attngraft", "timm")
    with np.load(folder / "pt2.npz") as found:
        for name, (_, expected) in made.items():
            np.testing.assert_allclose(found[name], expected, rtol=1e-5, atol=1e-5, err_msg=name)
            program = torch.export.load(folder / name / "model.pt2")
            assert namespaces(program) == {"aten"}, name
            assert foreign_operations(program) == []


def namespaces(program: torch.export.ExportedProgram) -> set[str]:
    """Where the operations of a program come from; Python's own arithmetic on batch sizes is no operation."""
    targets = [node.target for node in program.graph.nodes if node.op == "call_function"]
    return {target.namespace for target in targets if isinstance(target, torch._ops.OpOverload)}


@pytest.mark.slow
def test_every_kind_of_graft_runs_with_torch_alone_and_one_with_onnxruntime_alone(tmp_path: Path) -> None:
    made = taken_away(tmp_path)
    assert_programs_alone(tmp_path, made)
    away(tmp_path, ONNX, "attngraft", "timm", "torch")
    with np.load(tmp_path / "onnx.npz") as found:
        np.testing.assert_allclose(found[ONNX_TOO], made[ONNX_TOO][1], rtol=1e-4, atol=1e-4)
    for name in ("swin", "levit"):  # what is in a folded program besides the host is said, graft by graft
        folds = made[name][0].manifest.folds
        assert {entry.graft for entry in folds if entry.stayed} >= {"horizontal", "vertical"}
        assert "cb" in {entry.graft for entry in folds if entry.folded}


@torch.library.custom_op("attngraft_tests::twice", mutates_args=())
def twice(x: Tensor) -> Tensor:
    """As an operation that only some package has."""
    return 2 * x


@twice.register_fake
def _(x: Tensor) -> Tensor:
    return torch.empty_like(x)


class Elsewhere(nn.Module):
    """Calls it."""

    def __init__(self, *, condition: bool) -> None:
        super().__init__()
        self.condition = condition

    def forward(self, x: Tensor) -> Tensor:
        if self.condition:  # within a part of the program that is a module of its own
            return torch.cond(x.sum() > 0, twice, torch.neg, (x,)).flatten(1)
        return twice(x).flatten(1)


@pytest.mark.parametrize("condition", [False, True])
def test_a_program_that_needs_a_package_is_not_written(tmp_path: Path, condition: bool) -> None:
    manifest = open_run(make_run(tmp_path / "run")).manifest
    model = Elsewhere(condition=condition)
    program = torch_export.export_program(model, manifest)
    with pytest.raises(ExportError, match=r"model\.pt2: calls attngraft_tests\.twice\.default, which torch alone"):
        torch_export.write_program(program, model, manifest, tmp_path)
    assert not (tmp_path / "model.pt2").exists()
