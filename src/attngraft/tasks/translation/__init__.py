"""Translation of sentences."""

from attngraft.tasks.translation.task import Translation

__all__ = ["Translation"]
