"""Facts about point clouds that are read again after training."""

from dataclasses import dataclass
from typing import Literal

from attngraft.strict import FieldError
from attngraft.tasks.facts import LARGEST, LARGEST_SIZE, InputFacts, LabelFacts


@dataclass(frozen=True, kw_only=True)
class PointInputFacts(InputFacts):
    """What a model gets of a cloud, see `split.Sampling`."""

    points: int
    sample: Literal["first", "random", "repeated"]
    normals: bool
    normalize: bool

    def __post_init__(self) -> None:
        if not 1 <= self.points <= LARGEST_SIZE:
            raise FieldError("points", f"must be between 1 and {LARGEST_SIZE}; got {self.points}")


@dataclass(frozen=True, kw_only=True)
class PointFacts(LabelFacts):
    """Facts of classification of point clouds."""

    input: PointInputFacts


@dataclass(frozen=True, kw_only=True)
class PartFacts(PointFacts):
    """Facts of segmentation into parts."""

    parts: list[list[int]]  #: numbers of the parts of each category
    part_points: list[int]  #: number of training points of each part

    def __post_init__(self) -> None:
        super().__post_init__()
        if len(self.parts) != len(self.classes) or not all(self.parts):
            raise FieldError("parts", "must have the parts of each of the classes")
        if any(not 0 <= part < len(self.part_points) for own in self.parts for part in own):
            raise FieldError("parts", f"must be numbers from 0 to {len(self.part_points) - 1}")
        if any(not 0 <= number <= LARGEST for number in self.part_points):
            raise FieldError("part_points", "must be numbers of points")

    @property
    def outputs(self) -> int:
        return len(self.part_points)
