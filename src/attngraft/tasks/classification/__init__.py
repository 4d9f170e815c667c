"""Image classification with one label per image."""

from attngraft.tasks.classification.task import Classification

__all__ = ["Classification"]
