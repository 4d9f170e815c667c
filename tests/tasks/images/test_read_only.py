"""Data that nobody may write to. Root may write anywhere, whatever the permissions say, so it gives that right up here."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.tasks.images.datasets import make_folder
from tests.tasks.images.sources.test_shards import make_shards

#: arguments: folder of data, folder of runs
TRAIN = """
import sys
from pathlib import Path
from attngraft.training.loop import train
from attngraft.training.recipe import recipe_from_dict

data, runs = map(Path, sys.argv[1:])
for folder in (data.parent, data, data / "folder", data / "folder" / "a", data / "shards"):
    try:
        (folder / "written").write_text("")
    except PermissionError:
        continue
    sys.exit(f"{folder} can be written to")
size = {"img_size": 16, "patch_size": 8, "embed_dim": 16, "depth": 1, "num_heads": 2}
for name, source in (("folder", str(data / "folder")), ("shards", f"{data}/shards/birds-{{000..002}}.tar")):
    recipe = {
        "host": {"name": "vit_tiny_patch16_224", "args": size},
        "task": {"name": "classification", "data": {"source": source}, "augment": {"crop": "resized"}},
        "schedule": {"epochs": 1},
        "train": {"batch_size": 8},
    }
    if not train(recipe_from_dict(recipe), runs / name).finished:
        sys.exit(f"{name} is not finished")
"""


#: gives up CAP_DAC_OVERRIDE and CAP_DAC_READ_SEARCH for good (24 is PR_CAPBSET_DROP), then runs Python with the rest
BOUND = """
import ctypes, os, sys
for right in (1, 2):
    if ctypes.CDLL(None).prctl(24, right, 0, 0, 0):
        sys.exit("no right can be given up")
os.execv(sys.executable, [sys.executable, *sys.argv[1:]])
"""


def _state(folder: Path) -> dict[str, tuple[int, int]]:
    found = [folder, *sorted(folder.rglob("*"))]
    return {str(path): (path.stat().st_mtime_ns, path.stat().st_size) for path in found}


@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="rights are given up as Linux has it")
def test_a_run_from_a_read_only_folder_writes_nothing_there(tmp_path: Path) -> None:
    data = tmp_path / "parent" / "data"
    make_folder(data / "folder", {"a": 8, "b": 8})
    make_shards(data / "shards", "birds")
    places = [data.parent, *sorted(data.parent.rglob("*"))]
    for path in reversed(places):
        path.chmod(0o555 if path.is_dir() else 0o444)
    before = _state(data.parent)
    bound = [] if os.geteuid() else ["-c", BOUND]
    try:
        done = subprocess.run(
            [sys.executable, *bound, "-c", TRAIN, str(data), str(tmp_path / "runs")],
            env={**os.environ, "ATTNGRAFT_CACHE": str(tmp_path / "cache")},
            capture_output=True,
            text=True,
            timeout=240,
            check=False,
        )
    finally:
        after = _state(data.parent)
        for path in places:
            path.chmod(0o755 if path.is_dir() else 0o644)
    assert done.returncode == 0, done.stderr[-2000:]
    assert after == before
    for name in ("folder", "shards"):
        assert (tmp_path / "runs" / name / "finished.json").is_file()
        assert (tmp_path / "runs" / name / "split.csv").is_file(), "what was drawn is kept with the run"
    assert any((tmp_path / "cache").iterdir())
