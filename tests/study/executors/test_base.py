"""A failed run is one line, with its traceback in a file."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from attngraft.errors import TrainingError
from attngraft.study.executors.base import FAILURE_FILE, run_task


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (RuntimeError("x" * 10**6 + "\nsecond line"), f"RuntimeError: {'x' * 197}..."),
        (MemoryError(), "MemoryError"),
        (RecursionError("too deep"), "RecursionError: too deep"),
        (EOFError(), "EOFError"),
        (TrainingError("lower the learning rate"), "lower the learning rate"),
    ],
)
def test_any_error_of_a_run_is_one_line(error: Exception, message: str, tmp_path: Path) -> None:
    def train(*args: Any, **options: Any) -> Any:
        raise error

    task = SimpleNamespace(run=SimpleNamespace(recipe=None, folder=tmp_path), stop_after_epoch=None)
    outcome = run_task(cast(Any, task), cast(Any, train), cast(Any, None))
    assert outcome.kind == "failed"
    assert outcome.message == f"{message} (traceback: {tmp_path / FAILURE_FILE})"
    assert "raise error" in (tmp_path / FAILURE_FILE).read_text()
