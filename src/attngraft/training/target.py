"""Models to evaluate, opened from a run, an exported folder, a host or a weights file."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from torch import nn

from attngraft.errors import AttngraftError, DataError, UsageError
from attngraft.training.build import recorded_input
from attngraft.training.recipe import Recipe


@dataclass(frozen=True, kw_only=True)
class Target:
    """A model to evaluate, with everything that its evaluation needs besides data."""

    name: str  #: folder, file or host
    kind: str  #: "run", "exported model" or "host"; for messages
    weights: str  #: which weights of a run, or a weights file
    recipe: Recipe  #: its host, task, batch sizes and precision
    build: Callable[[], nn.Module]  #: returns the model, on the CPU
    digest: Callable[[], str]  #: SHA-256 of its weights
    results: Path  #: folder of the results of suites
    subfolder: str = ""  #: folder in `results` for these weights
    facts: Mapping[str, Any] = field(default_factory=dict)  #: facts of its training data, as far as known
    model_args: Mapping[str, Any] = field(
        default_factory=dict
    )  #: model arguments required by its training data, such as num_classes
    labels: tuple[str, ...] = ()  #: class names, used if `facts` is empty
    input: Mapping[str, Any] | None = None  #: input configuration; None: from the recipe's host
    split: Path | None = None  #: file with the random split of a run
    judged_split: Literal["val", "test"] | None = (
        None  #: split that the run is evaluated on; None: the test split, if there is one
    )
    fitted: Path | None = None  #: folder of the objects that the task fitted to the training data

    @property
    def is_run(self) -> bool:
        return self.kind == "run"

    @property
    def data_error(self) -> type[AttngraftError]:
        """Class of errors about data that do not fit the model: `DataError` for a run, else `UsageError`."""
        return DataError if self.is_run else UsageError

    def host_input(self) -> Mapping[str, Any]:
        """Return the model's input configuration, for `Task.load`."""
        return recorded_input(self.recipe, self.facts, where=self.name) if self.input is None else self.input
