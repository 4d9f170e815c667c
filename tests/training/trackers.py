"""A tracker that keeps what it is given, registered with accelerate as `fake` and in place of wandb."""

from __future__ import annotations

from typing import Any, ClassVar

import pytest
from accelerate.tracking import LOGGER_TYPE_TO_CLASS, GeneralTracker
from accelerate.utils import LoggerType

from attngraft.training import tracking


class Fake(GeneralTracker):
    """Keeps what it is given, and raises in the methods of `fails`."""

    name = "fake"
    requires_logging_directory = False
    fails: ClassVar[set[str]] = set()
    made: ClassVar[list[Fake]] = []

    def __init__(self, project: str, **arguments: Any) -> None:
        super().__init__()
        self.project, self.arguments, self.config = project, arguments, None
        self.rows: list[tuple[int | None, dict[str, float]]] = []
        self.started = self.finished = 0
        self.made.append(self)

    @property
    def tracker(self) -> Fake:
        return self

    def start(self) -> None:
        self._may_fail("start")
        self.started += 1

    def store_init_configuration(self, values: dict[str, Any]) -> None:
        self.config = values

    def log(self, values: dict[str, Any], step: int | None = None, **kwargs: Any) -> None:
        self._may_fail("log")
        self.rows.append((step, values))

    def finish(self) -> None:
        self._may_fail("finish")
        self.finished += 1

    def _may_fail(self, method: str) -> None:
        if method in self.fails:
            raise RuntimeError(f"{method}: no network")


def install(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("fake", "wandb"):
        monkeypatch.setitem(LOGGER_TYPE_TO_CLASS, name, Fake)
    monkeypatch.setattr(tracking, "get_available_trackers", lambda: [LoggerType.WANDB])
    monkeypatch.setattr(Fake, "made", [])
    monkeypatch.setattr(Fake, "fails", set())
