"""ELSA-VOLO: VOLO whose first stage has Hadamard attention in the place of outlook attention."""

from __future__ import annotations

from collections.abc import Sequence

from timm.models.volo import VOLO
from torch import nn

from attngraft.models.elsa.blocks import elsa_block


class ElsaVolo(VOLO):
    """timm's VOLO with every Outlooker replaced, and nothing else changed.

    How the paper's ELSA-VOLO sets its blocks up is not published. The defaults here (7 x 7, groups of 16 channels, the ghost
    head's addend alone) agree with its three printed numbers of parameters, as a few other choices do; none that was tried
    agrees with its multiply-adds. As in VOLO, the first stage's blocks have no drop path, and projections no bias.

    Args:
        layers: blocks of each stage, the first with Hadamard attention. embed_dims, num_heads, mlp_ratio: of each stage, as
            in VOLO; the rest of its arguments too.
        kernel_size, group_width, lam, gamma: of the blocks in the first stage (`blocks.elsa_block`).

    Parameters of those have the published blocks' names, under `network.0.<i>.`; the others are VOLO's.

    Source: ELSA, section 4.1 and Table 6.
    """

    def __init__(
        self,
        layers: Sequence[int],
        *,
        embed_dims: Sequence[int],
        num_heads: Sequence[int],
        img_size: int | tuple[int, int] = 224,
        in_chans: int = 3,
        num_classes: int = 1000,
        global_pool: str = "token",
        stem_hidden_dim: int = 64,
        mlp_ratio: float = 3.0,
        qkv_bias: bool = False,
        kernel_size: int = 7,
        group_width: int = 16,
        lam: float = 0,
        gamma: float = 1,
        drop_rate: float = 0.0,
        pos_drop_rate: float = 0.0,
        attn_drop_rate: float = 0.0,
        drop_path_rate: float = 0.0,
        use_aux_head: bool = True,
        use_mix_token: bool = False,
    ) -> None:
        super().__init__(
            list(layers),
            img_size=img_size,
            in_chans=in_chans,
            num_classes=num_classes,
            global_pool=global_pool,
            stem_hidden_dim=stem_hidden_dim,
            embed_dims=list(embed_dims),
            num_heads=list(num_heads),
            mlp_ratio=mlp_ratio,
            qkv_bias=qkv_bias,
            drop_rate=drop_rate,
            pos_drop_rate=pos_drop_rate,
            attn_drop_rate=attn_drop_rate,
            drop_path_rate=drop_path_rate,
            use_aux_head=use_aux_head,
            use_mix_token=use_mix_token,
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
