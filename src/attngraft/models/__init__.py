"""Our own networks and variants of timm's models; importing this package registers them with timm."""

from attngraft.models import bixt, elsa, points, t2t_vit, transformers_classifier, translation, variants
from attngraft.models.create import create_model

__all__ = ["bixt", "create_model", "elsa", "points", "t2t_vit", "transformers_classifier", "translation", "variants"]
