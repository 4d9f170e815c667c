"""Registration of `m2_transformer` with timm, whose registry names all models of this package."""

from typing import Any

from timm.models import register_model
from torch import nn


@register_model
def m2_transformer(
    pretrained: bool = False,
    *,
    pretrained_cfg: Any = None,
    pretrained_cfg_overlay: Any = None,
    cache_dir: Any = None,
    **arguments: Any,
) -> nn.Module:
    """Create `model.M2Transformer`; by default in the size of the paper, with a vocabulary of 10,201 tokens.

    Args:
        pretrained: not supported.
        pretrained_cfg, pretrained_cfg_overlay, cache_dir: passed by timm's factory and ignored.

    Raises:
        ValueError: `pretrained` is set, or an argument is invalid.
    """
    if pretrained:
        raise ValueError("there are no pretrained weights of this model; pass a file or a run: --weights PATH")
    from attngraft.models.captioning.model import M2Transformer

    return M2Transformer(**arguments)
