"""ELSA-VOLO: VOLO with Hadamard attention instead of outlook attention in its first stage."""

from collections.abc import Sequence
from typing import Any

from timm.models.volo import VOLO
from torch import nn

from attngraft.models.elsa.blocks import elsa_block


class ElsaVolo(VOLO):
    """timm's VOLO with every Outlooker replaced and nothing else changed.

    The configuration of the paper's ELSA-VOLO blocks is not published. The defaults (7 x 7, groups of 16 channels, only the
    ghost head's addend) agree with the three numbers of parameters in the paper, as do a few other choices. No choice that
    we tried agrees with the paper's multiply-adds. As in VOLO, the blocks of the first stage have no drop path, and their
    projections have no bias.

    Args:
        layers: number of blocks of each stage; the blocks of the first stage have Hadamard attention.
        embed_dims, num_heads, mlp_ratio: settings of each stage, as in VOLO.
        kernel_size, group_width, lam, gamma: settings of the first stage's blocks (`blocks.elsa_block`).
        volo: other arguments of VOLO.

    Parameters of the first stage, `network.0.<i>.`, are named as in ELSA's published code, other parameters as in VOLO.

    Source: ELSA, section 4.1 and Table 6.
    """

    def __init__(
        self,
        layers: Sequence[int],
        *,
        embed_dims: Sequence[int],
        num_heads: Sequence[int],
        mlp_ratio: float = 3.0,
        qkv_bias: bool = False,
        kernel_size: int = 7,
        group_width: int = 16,
        lam: float = 0,
        gamma: float = 1,
        attn_drop_rate: float = 0.0,
        **volo: Any,
    ) -> None:
        super().__init__(
            list(layers),
            embed_dims=list(embed_dims),
            num_heads=list(num_heads),
            mlp_ratio=mlp_ratio,
            qkv_bias=qkv_bias,
            attn_drop_rate=attn_drop_rate,
            **volo,
        )
        self.network[0] = nn.Sequential(
            *(
                elsa_block(
                    embed_dims[0],
                    num_heads[0],
                    kernel_size=kernel_size,
                    group_width=group_width,
                    lam=lam,
                    gamma=gamma,
                    qkv_bias=qkv_bias,
                    mlp_ratio=mlp_ratio,
                    attn_drop=attn_drop_rate,
                )
                for _ in range(layers[0])
            )
        )
        self.network[0].apply(self._init_weights)
