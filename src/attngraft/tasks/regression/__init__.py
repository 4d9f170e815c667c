"""Regression: one or several numbers per image."""

from attngraft.tasks.regression.task import Regression

__all__ = ["Regression"]
