"""Classification of texts, with one label per text."""

from attngraft.tasks.text.task import TextClassification

__all__ = ["TextClassification"]
