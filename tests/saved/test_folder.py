from __future__ import annotations

import json
from pathlib import Path

import pytest
import safetensors.torch
import torch

from attngraft.errors import ExportError, HostError, UsageError
from attngraft.export.run import export_run
from attngraft.saved.folder import load
from tests.export.runs import make_run


def test_an_unknown_device_is_an_error_of_ours(tmp_path: Path) -> None:
    export_run(make_run(tmp_path / "run", "cb"), tmp_path / "out")
    with pytest.raises(UsageError, match="^device nope: "):
        load(tmp_path / "out", device="nope")


def test_a_host_far_larger_than_its_weights_is_not_filled(tmp_path: Path) -> None:
    export_run(make_run(tmp_path / "run", "cb"), tmp_path / "out")
    manifest = json.loads((tmp_path / "out/attngraft.json").read_text())
    manifest["host"]["args"]["embed_dim"] = 24 * 1000
    (tmp_path / "out/checksums.json").unlink()
    (tmp_path / "out/attngraft.json").write_text(json.dumps(manifest))
    with pytest.raises(HostError, match=r"much larger than its weights; restore its arguments"):
        load(tmp_path / "out")


def test_weights_must_be_finite_in_the_precision_of_the_model(tmp_path: Path) -> None:
    export_run(make_run(tmp_path / "run", "cb"), tmp_path / "out")
    (tmp_path / "out/checksums.json").unlink()
    weights = safetensors.torch.load_file(tmp_path / "out/model.safetensors")
    weights["head.bias"] = torch.full(weights["head.bias"].shape, -1e300, dtype=torch.float64)
    safetensors.torch.save_file(weights, tmp_path / "out/model.safetensors")
    with pytest.raises(ExportError, match=r"model\.safetensors: weights are not finite in float32 \(head\.bias\)"):
        load(tmp_path / "out")
