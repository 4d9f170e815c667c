from __future__ import annotations

from pathlib import Path

import pytest

from attngraft.errors import UsageError
from attngraft.export.run import export_run
from attngraft.saved.folder import load
from tests.export.runs import make_run


def test_an_unknown_device_is_an_error_of_ours(tmp_path: Path) -> None:
    export_run(make_run(tmp_path / "run", "cb"), tmp_path / "out")
    with pytest.raises(UsageError, match="^device nope: "):
        load(tmp_path / "out", device="nope")
