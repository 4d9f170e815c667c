"""Our own networks and variants of timm's models; importing this package registers them with timm."""

from attngraft.models import bixt, captioning, elsa, points, t2t_vit, transformers_classifier, translation, variants
from attngraft.models.create import create_model

__all__ = [
    "bixt",
    "captioning",
    "create_model",
    "elsa",
    "points",
    "t2t_vit",
    "transformers_classifier",
    "translation",
    "variants",
]
