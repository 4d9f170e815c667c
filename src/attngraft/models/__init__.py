"""Our own networks and variants of timm's, registered with timm on import (so that `timm.create_model` finds them)."""

from attngraft.models import bixt, elsa, t2t_vit, transformers_classifier, variants
from attngraft.models.create import create_model

__all__ = ["bixt", "create_model", "elsa", "t2t_vit", "transformers_classifier", "variants"]
