"""Image classification by token labeling: every patch has a label of its own, besides the image's.

`maps.py` reads dense label maps, `views.py` knows which part of an image a view shows, `targets.py` makes of both what every
patch is to say, and `losses.py` compares.

Source: Z. Jiang et al., "All Tokens Matter: Token Labeling for Training Better Vision Transformers", 2021; VOLO and
ELSA-VOLO are trained by it.
"""

from attngraft.tasks.token_labeling.task import TokenLabeling

__all__ = ["TokenLabeling"]
