"""Images with any number of labels each.

`config.py` is the recipe's section; `losses.py`, `mixing.py`, `scores.py`, `evaluator.py` and `sections.py` are what their
names say; images, their sources and views are `tasks/images`.
"""

from attngraft.tasks.multilabel.task import MultiLabel

__all__ = ["MultiLabel"]
