"""Image classification by token labeling: training with a label per patch in addition to the image label.

`maps.py` reads dense label maps and tracks which part of an image a random crop shows; `losses.py` converts both to targets
of patches and computes the loss.

Source: Z. Jiang et al., "All Tokens Matter: Token Labeling for Training Better Vision Transformers", 2021; VOLO and
ELSA-VOLO are trained this way.
"""

from attngraft.tasks.token_labeling.task import TokenLabeling

__all__ = ["TokenLabeling"]
