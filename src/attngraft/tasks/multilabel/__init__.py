"""Image classification with any number of labels per image."""

from attngraft.tasks.multilabel.task import MultiLabel

__all__ = ["MultiLabel"]
