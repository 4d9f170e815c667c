"""Facts of detection."""

from __future__ import annotations

from dataclasses import dataclass

from attngraft.strict import FieldError
from attngraft.tasks.facts import LARGEST, Facts


@dataclass(frozen=True, kw_only=True)
class DetectionFacts(Facts):
    """Facts of detection."""

    classes: list[str]
    category_ids: list[int]  #: of the data, one per class
    objects: dict[str, list[int]]  #: number of objects of each split and class, without crowds
    has_masks: bool

    def __post_init__(self) -> None:
        super().__post_init__()
        if not len(self.classes) == len(self.category_ids) > 0:
            raise FieldError("category_ids", "must have an id for each of the classes")
        if len(self.objects.get("train", ())) != len(self.classes):
            raise FieldError("objects.train", "must have a number of objects for each of the classes")
        if any(not 0 <= number <= LARGEST for numbers in self.objects.values() for number in numbers):
            raise FieldError("objects", "must be numbers of objects")
