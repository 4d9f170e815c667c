from __future__ import annotations

import json
from pathlib import Path

import pytest

from attngraft.errors import HostError, UsageError
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
