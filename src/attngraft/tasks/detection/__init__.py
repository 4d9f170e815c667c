"""Detection of objects and instance masks."""

from attngraft.tasks.detection.task import Detection

__all__ = ["Detection"]
