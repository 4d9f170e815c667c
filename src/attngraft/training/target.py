"""Models to judge, whatever they were opened from."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import nn

from attngraft.errors import AttngraftError, DataError, UsageError
from attngraft.training.build import model_data_config
from attngraft.training.recipe import Recipe


@dataclass(frozen=True, kw_only=True)
class Target:
    """A model to judge: a run, an exported folder, a host with weights, or a file of weights."""

    name: str  #: folder, file or host
    kind: str  #: "run", or what else it is, for messages
    weights: str  #: which weights
    recipe: Recipe  #: its host, task, batch sizes and precision
    build: Callable[[], nn.Module]  #: returns the model, on the CPU
    digest: Callable[[], str]  #: SHA-256 of its weights
    results: Path  #: folder of the results of suites
    subfolder: str = ""  #: folder in `results` for these weights
    facts: Mapping[str, Any] = field(default_factory=dict)  #: of the data that it was trained on, as far as known
    model_args: Mapping[str, Any] = field(default_factory=dict)  #: what it was built for, such as num_classes
    labels: tuple[str, ...] = ()  #: names of its outputs, where only these are known of its classes
    input: Mapping[str, Any] | None = None  #: what it takes as input; None: what the recipe's host takes
    split: Path | None = None  #: file of its random split
    fitted: Path | None = None  #: folder of what the task fitted to the training data

    @property
    def is_run(self) -> bool:
        return self.kind == "run"

    @property
    def data_error(self) -> type[AttngraftError]:
        """The error for data that do not fit: of a run its data, of other models what the user typed."""
        return DataError if self.is_run else UsageError

    def host_input(self) -> Mapping[str, Any]:
        """Return what the model takes as input, as `Task.load` expects it."""
        return model_data_config(self.recipe) if self.input is None else self.input
