"""Types of the facts about data that are read again after training.

A task's `facts_class` names the facts that it reads; others are shown in reports as they are. Facts of a run folder without
checksums are checked against it, since anything may have been written there.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from attngraft.strict import FieldError, OpenSection, convert

LARGEST = 2**53  #: largest count; larger ones lose digits as floats
LARGEST_SIZE = 2**24  #: largest argument of a model: no vocabulary, number of classes or image size is near


@dataclass(frozen=True, kw_only=True)
class InputFacts(OpenSection):
    """Facts about a model's input; `size` is (C, H, W)."""

    size: list[int] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True)
class Facts(OpenSection):
    """Facts of all tasks."""

    source: str = ""
    kind: str = ""
    notes: list[str] = field(default_factory=list)
    sizes: dict[str, int] = field(default_factory=dict)  #: number of examples of each split
    counts: dict[str, dict[str, int]] = field(default_factory=dict)  #: number of examples of each split and class
    check: dict[str, Any] | None = None
    input: InputFacts = field(default_factory=InputFacts)

    def __post_init__(self) -> None:
        counts = {"sizes": self.sizes} | {f"counts.{name}": by_class for name, by_class in self.counts.items()}
        for name, numbers in counts.items():
            for key, number in numbers.items():
                if not 0 <= number <= LARGEST:
                    raise FieldError(f"{name}.{key}", f"must be a number of examples; got {number}")

    @property
    def outputs(self) -> int | None:
        """Number of outputs of the host's head; None: not determined by the facts."""
        return None

    def check_model_args(self, arguments: Mapping[str, Any]) -> None:
        """Check the arguments of the host's factory that the data require.

        Raises:
            FieldError: `num_classes` is not the number of classes in the facts, or a number is out of range.
        """
        for name, value in arguments.items():
            for number in value if isinstance(value, list) else [value]:
                if isinstance(number, int | float) and not 0 <= number <= LARGEST_SIZE:
                    raise FieldError(f"model_args.{name}", f"must be between 0 and {LARGEST_SIZE}; got {value}")
        found = arguments.get("num_classes", self.outputs)
        if self.outputs is not None and (type(found) is not int or found != self.outputs):
            raise FieldError("model_args.num_classes", f"must be {self.outputs}, as the facts have it; got {found!r}")

    def check_section(self, section: Mapping[str, Any]) -> None:
        """Check the facts against the recipe's `task` section; by default, do nothing.

        Raises:
            FieldError: a fact is not that of the section.
        """


@dataclass(frozen=True, kw_only=True)
class LabelFacts(Facts):
    """Facts of tasks whose examples have labels."""

    classes: list[str]
    counts: dict[str, dict[str, int]]

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.classes:
            raise FieldError("classes", "must have at least one class")
        missing = set(self.classes) - self.counts.get("train", {}).keys()
        if missing:
            raise FieldError("counts.train", f"must have a number for each class; {min(missing)!r} is missing")

    @property
    def outputs(self) -> int:
        return len(self.classes)


@dataclass(frozen=True, kw_only=True)
class ImageInputFacts(InputFacts):
    """Facts about a model's input of images."""

    eval_crop_pct: float


@dataclass(frozen=True, kw_only=True)
class ImageFacts(LabelFacts):
    """Facts of tasks whose examples are images with labels."""

    sizes: dict[str, int]
    input: ImageInputFacts

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.sizes.get("train", 0) < 1:
            raise FieldError("sizes.train", "must be the number of training images")

    def check_section(self, section: Mapping[str, Any]) -> None:
        listed = convert(section.get("data", {}).get("classes"), tuple[str, ...] | None, "task.data.classes")
        if listed is not None and list(listed) != self.classes:
            raise FieldError("facts.classes", "are not those of task.data.classes in recipe.yaml, in this order")
