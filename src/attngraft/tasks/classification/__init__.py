"""Image classification with one label per image: sources, views, mixing, losses, metrics.

`config.py` is the recipe's section; `sources/` find and open images; `views.py` says what the model sees of them;
`splits.py` serves them to the engine; `mixing.py`, `losses.py` and `evaluator.py` are what their names say.
"""

from attngraft.tasks.classification.task import Classification

__all__ = ["Classification"]
