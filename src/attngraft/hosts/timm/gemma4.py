"""timm's Gemma4-ViT, the vision encoder of Gemma 4, with or without a classifier."""

from typing import Any, ClassVar, cast

from timm.models import gemma4_vit as gemma4
from torch import Tensor, nn

from attngraft.attention import LinearLayer, MlpEnds, MlpGeometry, Projected, visible_in
from attngraft.hosts.adapter import check_known, own_parameters, random_images
from attngraft.hosts.family import ShapeProbe, Sites
from attngraft.hosts.patched import patch_classes, present_in
from attngraft.hosts.sites import NO_MIDDLE, mlp_site, projected_heads
from attngraft.hosts.timm.attention import SelfAttention
from attngraft.hosts.timm.family import PaddingMaskBlock, TimmFamily, checked_site, map_fields, with_padding_mask


class GraftedAttention(SelfAttention, gemma4.Gemma4Attention):
    """`timm.models.gemma4_vit.Gemma4Attention`: norms of q, k and v, rotation, unscaled products."""

    scale = 1.0

    def project(self, x: Tensor, rope_cos: Tensor, rope_sin: Tensor, attn_mask: Tensor | None = None) -> Projected:
        q, k, v = (project(x).unflatten(-1, (-1, self.head_dim)) for project in (self.q_proj, self.k_proj, self.v_proj))
        q, k, v = self.q_norm(q), self.k_norm(k), self.v_norm(v)
        q, k = (gemma4.apply_multidimensional_rope(each, rope_cos, rope_sin).transpose(1, 2) for each in (q, k))
        k, v = self.repeat(k), self.repeat(v.transpose(1, 2))
        present = None if attn_mask is None or not self.grafts_at("mix") else present_in(visible_in(attn_mask))
        return Projected(q, k, v, x, bias=attn_mask, present=present)

    def repeat(self, x: Tensor) -> Tensor:
        """Repeat keys or values of grouped queries for every head."""
        return x.repeat_interleave(self.num_kv_groups, dim=1) if self.num_kv_groups > 1 else x

    def merge(self, heads: Tensor, projected: Projected) -> Tensor:
        return cast(Tensor, self.o_proj(heads.transpose(1, 2).flatten(2)))

    def output_layer(self) -> LinearLayer | None:
        return None if self.o_proj.use_clipped else self.o_proj.linear


class GraftedBlock(PaddingMaskBlock, gemma4.Gemma4Block):
    """Patched class of `timm.models.gemma4_vit.Gemma4Block`."""

    def forward(self, x: Tensor, rope_cos: Tensor, rope_sin: Tensor, attn_mask: Tensor | None = None) -> Tensor:
        self.check_parts(padded=attn_mask is not None)
        return super().forward(x, rope_cos, rope_sin, attn_mask)


def _sites(block: Any, path: str, shapes: ShapeProbe) -> Sites:
    _, count, dim = shapes.input_shape(f"{path}.attn")
    side, patch = _image_size(shapes.model), _encoder(shapes.model).patch_size
    fields = {**map_fields(dim, side[0] // patch[0], side[1] // patch[1]), "tokens": count}
    module, mlp = block.attn, block.mlp
    # heads with shared keys and values have no separate rows
    projections = {} if module.num_kv_groups > 1 else {role: f"{role}_proj.linear" for role in ("q", "k", "v")}
    site = checked_site(
        module,
        f"{path}.attn",
        arguments=("x", "rope_cos", "rope_sin", "attn_mask", "args", "kwargs"),
        children=("q_proj", "k_proj", "v_proj", "o_proj", "q_norm", "k_norm", "v_norm", "attn_drop", "proj_drop"),
        heads=projected_heads(module, projections, width=module.head_dim),
        query_key_parameters=own_parameters(module, "q_norm", "k_norm"),
        **fields,
    )
    yield with_padding_mask(site, path)
    check_known(mlp, f"{path}.mlp", arguments=("x",), children=("gate_proj", "up_proj", "down_proj", "act", "drop"))
    site = mlp_site(f"{path}.mlp", MlpGeometry(**fields, hidden=mlp.down_proj.linear.in_features), NO_MIDDLE)
    yield with_padding_mask(site, path)


def _encoder(model: Any) -> Any:
    return getattr(model, "encoder", model)


def _image_size(model: nn.Module) -> tuple[int, int]:
    """Return (rows, columns) of the images that the model was created for."""
    rows, columns = getattr(model, "pretrained_cfg", {}).get("input_size", (3, 768, 768))[-2:]
    return rows, columns


class TimmGemma4(TimmFamily):
    """Sites `blocks.<i>.attn` and `blocks.<i>.mlp`; with a classifier, below `encoder.blocks.<i>`.

    Batches with padding have a mask; grafts that would mix hidden tokens raise an error.
    """

    name = "timm.gemma4"
    summary = "timm Gemma4-ViT of any size, encoder or classifier"
    patched: ClassVar = {
        gemma4.Gemma4Attention: GraftedAttention,
        gemma4.Gemma4Block: GraftedBlock,
        **patch_classes(MlpEnds, gemma4.Gemma4GatedMlp, module=__name__),
    }
    models = (gemma4.Gemma4VitEncoder, gemma4.Gemma4VitClassifier)
    blocks: ClassVar = {gemma4.Gemma4Block: _sites}

    def example_inputs(self, model: Any, *, batch: int) -> tuple[Tensor, ...]:
        """Return random images with pixels between 0 and 1."""
        size = (_encoder(model).in_chans, *_image_size(model))
        return tuple(x.sigmoid() for x in random_images(model, size, batch=batch))
