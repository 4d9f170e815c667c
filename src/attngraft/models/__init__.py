"""Whole networks that no host gives, registered with timm on import (so that `timm.create_model` finds them)."""

from attngraft.models import bixt, elsa, extra_block, small_mixer, t2t_vit, transformers_classifier, uniform_vit
from attngraft.models.create import create_model

__all__ = [
    "bixt",
    "create_model",
    "elsa",
    "extra_block",
    "small_mixer",
    "t2t_vit",
    "transformers_classifier",
    "uniform_vit",
]
