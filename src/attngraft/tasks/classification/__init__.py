"""Image classification with one label per image.

`config.py` is the recipe's section, `mixing.py`, `losses.py` and `evaluator.py` are what their names say; images, their
sources and views are `tasks/images`.
"""

from attngraft.tasks.classification.task import Classification

__all__ = ["Classification"]
