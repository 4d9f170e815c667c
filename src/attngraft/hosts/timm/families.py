"""Table of timm families that consist of modules shared with other families."""

from dataclasses import replace
from typing import Any

from torch import Tensor, nn

from attngraft.attention import CLASS, HOOK_POINTS, GraftedModule, MlpGeometry, Projection, plain_class, prefix_names
from attngraft.hosts.adapter import Site, check_known, random_images
from attngraft.hosts.family import Family, ShapeProbe, Sites, family_table, patched_by_name
from attngraft.hosts.sites import GLOBAL, refused_site
from attngraft.hosts.timm import mlp, rotary
from attngraft.hosts.timm.attention import PATCHED, ClassAttention, FusedQkv, ScaledProducts
from attngraft.hosts.timm.family import (
    FEATURE_NETS,
    PairMaskEvaBlock,
    TimmFamily,
    attention_site,
    block_sites,
    channel_site,
    checked_site,
    class_attention_site,
    image_size,
    linear_site,
    map_fields,
    prefixed_grid,
    unread_site,
    with_pair_mask,
)
from attngraft.hosts.timm.mlp import mlp_sites
from attngraft.hosts.timm.rotary import rotary_block_sites


def _rotary(block: Any, path: str, shapes: ShapeProbe) -> Sites:
    return rotary_block_sites(block, path, **prefixed_grid(shapes.model))


def _eva(block: Any, path: str, shapes: ShapeProbe) -> Sites:
    return (with_pair_mask(site, path) for site in _rotary(block, path, shapes))


def _pit(block: Any, path: str, shapes: ShapeProbe) -> Sites:
    _, tokens, dim = shapes.input_shape(path)
    prefix = prefix_names(distillation=shapes.model.cls_token.shape[1] == 2)
    side = round((tokens - len(prefix)) ** 0.5)
    return block_sites(block, path, dim=dim, tokens=tokens, prefix=prefix, grid=(side, side))


def _mixer(block: Any, path: str, shapes: ShapeProbe) -> Sites:
    """Yield the MLPs over channels; MLPs over tokens are not sites, because their last axis is not channels."""
    fields = map_fields(shapes.model.embed_dim, *shapes.model.stem.grid_size)
    why = "tokens are mixed by weights, not by attention; choose MLP grafts (cb, cb_s, se, ...)"
    missing = {hook_point: why for hook_point in HOOK_POINTS if not hook_point.startswith("mlp")}
    sites = list(mlp_sites(block.mlp_channels, f"{path}.mlp_channels", **fields))
    if not sites:
        why = f"its MLP is {type(block.mlp_channels).__name__}, which mixes tokens too and is not supported"
        missing = {**dict.fromkeys(HOOK_POINTS, why), **missing}
        sites = [Site(path=f"{path}.mlp_channels", kind="mlp", geometry=MlpGeometry(hidden=0, **fields), targets={})]
    for site in sites:
        yield replace(site, missing={**site.missing, **missing})


def _mobilevit(block: Any, path: str, shapes: ShapeProbe) -> Sites:
    """Yield the sites of a MobileViT block; a sequence contains the pixels at one position in every patch."""
    for name, inner in block.transformer.named_children():
        inner_path = f"{path}.transformer.{name}"
        sequences, tokens, dim = shapes.input_shape(inner_path)
        sizes = zip(shapes.output_shape(f"{path}.conv_1x1")[2:], block.patch_size, strict=True)
        grid = tuple(-(-side // patch) for side, patch in sizes)
        apart = tuple(block.patch_size)
        yield from block_sites(inner, inner_path, dim=dim, tokens=tokens, sequences=sequences, grid=grid, apart=apart)


def _mobilevit_v2(block: Any, path: str, shapes: ShapeProbe) -> Sites:
    for name, inner in block.transformer.named_children():
        inner_path = f"{path}.transformer.{name}"
        _, dim, pixels, patches = shapes.input_shape(inner_path)
        yield linear_site(f"{inner_path}.attn", dim=dim, tokens=pixels * patches)
        yield from mlp_sites(inner.mlp, f"{inner_path}.mlp", dim=dim, tokens=pixels * patches)


class _MobileVit(TimmFamily):
    def recognizes(self, model: nn.Module) -> bool:
        """Check the blocks too: timm uses the same model class for many convolutional networks."""
        return type(model) in (*self.models, *FEATURE_NETS) and any(
            plain_class(module) in self.blocks for module in model.modules()
        )


def _xcit_fields(model: Any, *, prefix: tuple[str, ...] = ()) -> dict[str, Any]:
    embed = model.patch_embed
    rows, columns = (side // embed.patch_size for side in embed.img_size)
    return map_fields(model.embed_dim, rows, columns, prefix=prefix)


def _xcit(block: Any, path: str, shapes: ShapeProbe) -> Sites:
    drops = ("drop_path1", "drop_path2", "drop_path3", "drop_path")  # the last in timm 1.0.16, for all three branches
    children = ("norm1", "attn", "norm3", "local_mp", "norm2", "mlp", *drops)
    check_known(block, path, arguments=("x", "H", "W"), children=children)
    fields = _xcit_fields(shapes.model)
    yield channel_site(f"{path}.attn", instead="choose the class attention blocks (cls_attn_blocks)", **fields)
    yield from mlp_sites(block.mlp, f"{path}.mlp", **fields)


def _xcit_class(block: Any, path: str, shapes: ShapeProbe) -> Sites:
    fields = _xcit_fields(shapes.model, prefix=CLASS)
    known = plain_class(block.attn) in shapes.adapter.patched
    yield (class_attention_site if known else unread_site)(block.attn, f"{path}.attn", **fields)
    yield from mlp_sites(block.mlp, f"{path}.mlp", dim=fields["dim"], tokens=1, prefix=CLASS)


class ScaledFusedQkv(ScaledProducts, FusedQkv):
    """Patched class of `timm.models.metaformer.Attention`."""


def _metaformer(block: Any, path: str, shapes: ShapeProbe) -> Sites:
    """Yield the sites of a MetaFormer block; only the last stages of CAFormer have attention."""
    mixer, token_mixer = block.token_mixer, f"{path}.token_mixer"
    _, _, rows, columns = shapes.output_shape(path.rpartition(".blocks.")[0])
    fields, missing = map_fields(block.mlp.fc1.weight.shape[1], rows, columns), {}
    if plain_class(mixer) in shapes.adapter.patched:
        yield checked_site(mixer, token_mixer, projection=Projection(bias=mixer.proj.bias is not None), **fields)
    else:
        why = f"this block mixes tokens by {type(mixer).__name__}, not by attention; choose other blocks or MLP grafts"
        missing = dict.fromkeys(GLOBAL, why)
    for site in mlp_sites(block.mlp, f"{path}.mlp", **fields):
        yield replace(site, missing={**site.missing, **missing})


def _coat_serial(block: Any, path: str, shapes: ShapeProbe) -> Sites:
    children = ("cpe", "norm1", "factoratt_crpe", "drop_path", "norm2", "mlp")
    check_known(block, path, arguments=("x", "size"), children=children)
    stage = int(path.partition(".")[0].removeprefix("serial_blocks"))
    rows, columns = getattr(shapes.model, f"patch_embed{stage}").grid_size
    fields = map_fields(block.mlp.fc1.in_features, rows, columns, prefix=CLASS)
    yield linear_site(f"{path}.factoratt_crpe", **fields)
    yield from mlp_sites(block.mlp, f"{path}.mlp", **fields)


def _coat_parallel(block: Any, path: str, shapes: ShapeProbe) -> Sites:
    """Yield the sites of a parallel block: linear attention for each of three maps, and `mlp2`, which all three use."""
    parts = [f"{name}{branch}" for branch in (2, 3, 4) for name in ("norm1", "norm2", "factoratt_crpe", "mlp")]
    check_known(block, path, arguments=("x1", "x2", "x3", "x4", "sizes"), children=("drop_path", *parts))
    dim = block.mlp2.fc1.in_features
    for branch in (2, 3, 4):
        rows, columns = getattr(shapes.model, f"patch_embed{branch}").grid_size
        yield linear_site(f"{path}.factoratt_crpe{branch}", **map_fields(dim, rows, columns, prefix=CLASS))
    yield from mlp_sites(block.mlp2, f"{path}.mlp2", dim=dim, prefix=CLASS)


def _csatv2(block: Any, path: str, shapes: ShapeProbe) -> Sites:
    _, tokens, dim = shapes.input_shape(f"{path}.attn")
    _, tokens, out = shapes.input_shape(f"{path}.mlp")
    yield attention_site(block.attn, f"{path}.attn", dim=dim, tokens=tokens, out_dim=None if out == dim else out)
    yield from mlp_sites(block.mlp, f"{path}.mlp", dim=out, tokens=tokens)


def _csatv2_gate(block: Any, path: str, shapes: ShapeProbe) -> Sites:
    why = (
        "it attends between the pixels of a single channel, and its output gates the map; choose transformer blocks at the "
        "ends of stages, or MLP grafts"
    )
    yield refused_site(path, why, **map_fields(1, *shapes.input_shape(path)[-2:]))


class _CsatV2(TimmFamily):
    def example_inputs(self, model: Any, *, batch: int) -> tuple[Tensor, ...]:
        """Return random RGB images; the channels of the first convolution are frequencies, not colors."""
        return random_images(model, (3, *image_size(model)[1:]), batch=batch)


FAMILIES = family_table(
    __name__,
    TimmFamily,
    Family(
        name="timm.pit",
        summary="timm PiT of any size, distilled or not, including features_only",
        models=("pit.PoolingVisionTransformer",),
        blocks={"vision_transformer.Block": _pit, "vision_transformer.ResPostBlock": _pit},
        patched=PATCHED,
    ),
    Family(
        name="timm.eva",
        summary="timm EVA, EVA-02, DINOv3 and other ViTs with rotary positions, and BEiT, of any size",
        models=("eva.Eva", "beit.Beit"),
        blocks={"eva.EvaBlock": _eva, "eva.EvaBlockPostNorm": _eva, "beit.Block": _rotary},
        templates={"eva.EvaBlock": PairMaskEvaBlock, "eva.EvaBlockPostNorm": PairMaskEvaBlock},
        patched=rotary.PATCHED,
    ),
    Family(
        name="timm.qwen3",
        summary="timm Qwen3-ViT of any size, encoder or classifier",
        models=("qwen3_vit.Qwen3VitEncoder", "qwen3_vit.Qwen3VitClassifier"),
        blocks={"eva.EvaBlock": _rotary},
        patched=rotary.PATCHED,
    ),
    Family(
        name="timm.deepseek",
        summary="timm DeepSeek-ViT of any size, encoder or classifier",
        models=("deepseek_vit.DeepseekVitEncoder", "deepseek_vit.DeepseekVitClassifier"),
        blocks={"deepseek_vit.DeepseekVitBlock": _rotary},
        patched=rotary.PATCHED,
    ),
    Family(
        name="timm.mixer",
        summary="timm MLP-Mixer, ResMLP and gMLP of any size (MLP sites only)",
        models=("mlp_mixer.MlpMixer",),
        blocks={f"mlp_mixer.{block}": _mixer for block in ("MixerBlock", "ResBlock", "SpatialGatingBlock")},
        patched=mlp.PATCHED,
    ),
    Family(
        name="timm.mobilevit",
        summary="timm MobileViT of any size, including features_only; MobileViT V2 (MLP sites only)",
        base=_MobileVit,
        models=("byobnet.ByobNet",),
        blocks={"mobilevit.MobileVitBlock": _mobilevit, "mobilevit.MobileVitV2Block": _mobilevit_v2},
        patched=PATCHED,
    ),
    Family(
        name="timm.xcit",
        summary="timm XCiT of any size (MLPs and class attention, not the attention between channels)",
        models=("xcit.Xcit",),
        blocks={"xcit.XCABlock": _xcit, "xcit.ClassAttentionBlock": _xcit_class},
        templates={"cait.ClassAttn": ClassAttention},
        patched=mlp.PATCHED,
        members={"any_size": {}},
    ),
    Family(
        name="timm.metaformer",
        summary="timm CAFormer of any size, including features_only; ConvFormer and PoolFormer (MLP sites only)",
        models=("metaformer.MetaFormer",),
        blocks={"metaformer.MetaFormerBlock": _metaformer},
        templates={"metaformer.Attention": ScaledFusedQkv},
        patched=mlp.PATCHED,
    ),
    Family(
        name="timm.coat",
        summary="timm CoaT and CoaT-Lite of any size (MLP sites only)",
        models=("coat.CoaT",),
        blocks={"coat.SerialBlock": _coat_serial, "coat.ParallelBlock": _coat_parallel},
        patched=mlp.PATCHED,
    ),
    Family(
        name="timm.csatv2",
        summary="timm CSATv2 (transformer blocks, not the attention within one channel), including features_only",
        base=_CsatV2,
        models=("csatv2.CSATv2",),
        blocks={"csatv2.SpatialTransformerBlock": _csatv2_gate, "csatv2.TransformerBlock": _csatv2},
        patched=PATCHED,
    ),
)


def __getattr__(name: str) -> type[GraftedModule]:
    """Create a patched class of the table by name, for unpickling."""
    return patched_by_name(FAMILIES, name)
