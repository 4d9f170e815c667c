"""timm's Gemma4-ViT, the vision encoder of Gemma 4: alone, or with a classifier behind it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, ClassVar, cast

from timm.models.gemma4_vit import (
    Gemma4Attention,
    Gemma4Block,
    Gemma4GatedMlp,
    Gemma4VitClassifier,
    Gemma4VitEncoder,
    apply_multidimensional_rope,
)
from torch import Tensor, nn

from attngraft.attention import AttentionGeometry, HeadRows, LinearLayer, MlpEnds, MlpGeometry, Projected
from attngraft.hosts.adapter import Site, check_known, head_rows, own_parameters, random_images
from attngraft.hosts.registry import register_host
from attngraft.hosts.sites import NO_MIDDLE, global_site, mlp_site
from attngraft.hosts.timm.attention import SelfAttention
from attngraft.hosts.timm.family import Look, TimmFamily
from attngraft.hosts.timm.padding import PaddedBlock, with_mask


class GraftedAttention(SelfAttention, Gemma4Attention):
    """`timm.models.gemma4_vit.Gemma4Attention`: norms of q, k and v, rotations, products that are not scaled."""

    scale = 1.0

    def project(self, x: Tensor, rope_cos: Tensor, rope_sin: Tensor, attn_mask: Tensor | None = None) -> Projected:
        q, k, v = (project(x).unflatten(-1, (-1, self.head_dim)) for project in (self.q_proj, self.k_proj, self.v_proj))
        q, k, v = self.q_norm(q), self.k_norm(k), self.v_norm(v)
        q, k = (apply_multidimensional_rope(each, rope_cos, rope_sin).transpose(1, 2) for each in (q, k))
        k, v = self.repeat(k), self.repeat(v.transpose(1, 2))
        return Projected(q, k, v, x, bias=attn_mask)

    def repeat(self, x: Tensor) -> Tensor:
        """Keys and values of grouped queries, once per head."""
        return x.repeat_interleave(self.num_kv_groups, dim=1) if self.num_kv_groups > 1 else x

    def merge(self, heads: Tensor, projected: Projected) -> Tensor:
        return cast(Tensor, self.o_proj(heads.transpose(1, 2).flatten(2)))

    def output_layer(self) -> LinearLayer | None:
        return None if self.o_proj.use_clipped else self.o_proj.linear


class GraftedGatedMlp(MlpEnds, Gemma4GatedMlp):
    """`timm.models.gemma4_vit.Gemma4GatedMlp`."""


class GraftedBlock(PaddedBlock, Gemma4Block):
    """`timm.models.gemma4_vit.Gemma4Block`."""

    def forward(self, x: Tensor, rope_cos: Tensor, rope_sin: Tensor, attn_mask: Tensor | None = None) -> Tensor:
        self.check_padding(attn_mask)
        return super().forward(x, rope_cos, rope_sin, attn_mask)


class TimmGemma4(TimmFamily):
    """Sites `blocks.<i>.attn` and `blocks.<i>.mlp`, behind a classifier `encoder.blocks.<i>`.

    Batches that hold padding come with a mask; grafts that mix tokens which it hides refuse the call.
    """

    name = "timm.gemma4"
    summary = "timm Gemma4-ViT of any size, encoder or classifier"
    patched: ClassVar = {
        Gemma4Attention: GraftedAttention,
        Gemma4GatedMlp: GraftedGatedMlp,
        Gemma4Block: GraftedBlock,
    }
    models = (Gemma4VitEncoder, Gemma4VitClassifier)
    blocks = (Gemma4Block,)

    def read(self, block: Any, path: str, look: Look) -> Iterable[Site]:
        _, count, dim = look.entering(f"{path}.attn")
        side, patch = _size(look.model), _encoder(look.model).patch_size
        tokens: dict[str, Any] = {"dim": dim, "tokens": count, "grid": (side[0] // patch[0], side[1] // patch[1])}
        return (with_mask(site, path) for site in self._block_sites(block, path, **tokens))

    def _block_sites(self, block: Any, path: str, **tokens: Any) -> Iterator[Site]:
        module, mlp = block.attn, block.mlp
        check_known(
            module,
            f"{path}.attn",
            arguments=("x", "rope_cos", "rope_sin", "attn_mask", "args", "kwargs"),
            children=("q_proj", "k_proj", "v_proj", "o_proj", "q_norm", "k_norm", "v_norm", "attn_drop", "proj_drop"),
        )
        geometry = AttentionGeometry(
            **tokens,
            heads=module.num_heads,
            key_width=module.head_dim,
            value_width=module.head_dim,
            rows=_rows(module),
            query_key_parameters=own_parameters(module, "q_norm", "k_norm"),
        )
        yield global_site(f"{path}.attn", geometry)
        check_known(mlp, f"{path}.mlp", arguments=("x",), children=("gate_proj", "up_proj", "down_proj", "act", "drop"))
        yield mlp_site(f"{path}.mlp", MlpGeometry(**tokens, hidden=mlp.down_proj.linear.in_features), NO_MIDDLE)

    def example_inputs(self, model: Any, *, batch: int) -> tuple[Tensor, ...]:
        """Pixels, which this host takes from 0 to 1."""
        encoder = _encoder(model)
        return tuple(x.sigmoid() for x in random_images(model, (encoder.in_chans, *_size(model)), batch=batch))


def _encoder(model: Any) -> Any:
    return getattr(model, "encoder", model)


def _size(model: nn.Module) -> tuple[int, int]:
    """Rows and columns of the images that the model was made for."""
    rows, columns = getattr(model, "pretrained_cfg", {}).get("input_size", (3, 768, 768))[-2:]
    return rows, columns


def _rows(module: Any) -> dict[str, tuple[HeadRows, ...]]:
    """Which rows make q, k and v of which head; none where heads share keys and values."""
    if module.num_kv_groups > 1:
        return {}
    width = module.head_dim
    return {
        role: head_rows(module, f"{role}_proj.linear", start=0, width=width, step=width) for role in ("q", "k", "v")
    }


register_host(TimmGemma4())
