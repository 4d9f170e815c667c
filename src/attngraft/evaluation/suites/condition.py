"""A suite is a list of conditions under which a model is evaluated."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from attngraft.evaluation.suites.changes import BatchChange, ExampleChange

#: `conditions`: examples are evaluated under each; `calibration`: of clean predictions; `throughput`: nothing is predicted
Kind = Literal["conditions", "calibration", "throughput"]


@dataclass(frozen=True, kw_only=True)
class Condition:
    """One way to change all examples; at most one of `example` and `batch`, and neither for examples as they are."""

    name: str  #: of its file; unique in its suite
    group: str  #: conditions of one group differ in their noise seed alone, and are averaged
    label: str  #: of the group, in words
    settings: Mapping[str, Any] = field(default_factory=dict)  #: JSON-ready: whatever decides the outcome
    noise_seed: int | None = None  #: None: nothing is random
    example: ExampleChange | None = None
    batch: BatchChange | None = None
    kind: str = ""  #: what several groups are severities of ("gaussian_noise"); their mean is told as well
    severity: int | None = None


@dataclass(frozen=True, kw_only=True)
class Suite:
    """Conditions under one name, or an alias for several suites."""

    name: str
    title: str
    summary: str  #: one line
    conditions: tuple[Condition, ...] = ()
    kind: Kind = "conditions"
    home: str = ""  #: the suite among whose files its predictions lie; empty: its own
    stands_for: tuple[str, ...] = ()
    test_set: str = ""  #: the name of the images that the user must download (`test_sets.TEST_SETS`)

    @property
    def folder(self) -> str:
        return self.home or self.name
