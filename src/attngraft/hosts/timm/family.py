"""Base class of timm's adapters, and sites of attention classes that several families share."""

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any, cast

from timm.layers import Attention, RelPosBias, RelPosBiasTf, RelPosMlp
from timm.models._features import FeatureDictNet, FeatureListNet
from torch import Tensor, nn

from attngraft.attention import AttentionGeometry, HookPoint, plain_class, prefix_names
from attngraft.errors import HostError
from attngraft.hosts.adapter import Site, check_known, norm_state, own_parameters, own_state, random_images
from attngraft.hosts.family import BlockFamily
from attngraft.hosts.family import ShapeProbe as ShapeProbe
from attngraft.hosts.family import Sites as Sites
from attngraft.hosts.patched import MaskedParts
from attngraft.hosts.sites import fused_heads, global_site, projected_heads, refused_site, window_site
from attngraft.hosts.sites import map_fields as map_fields
from attngraft.hosts.timm.mlp import mlp_sites
from attngraft.hosts.unread import reason_of

#: classes that `features_only=True` creates; they contain the blocks of a model of any family
FEATURE_NETS = (FeatureListNet, FeatureDictNet)


class TimmFamily(BlockFamily):
    """A family of timm's models, including those created with `features_only=True`."""

    module_name = "timm.models.{0}"

    def recognizes(self, model: nn.Module) -> bool:
        if type(model) not in FEATURE_NETS:
            return type(model) in self.models
        # blocks that other families share do not count
        own_modules = {kind.__module__ for kind in self.models}
        own = [kind for kind in self.blocks if kind.__module__ in own_modules]
        return any(plain_class(module) in own for module in model.modules())

    def canonical(self, path: str) -> str:
        """Undo the renaming of `features_only`: return `stages.0` for `stages_0`."""
        return re.sub(r"^([a-z]+)_(\d+)(?=\.|$)", r"\1.\2", path)

    def example_inputs(self, model: nn.Module, *, batch: int) -> tuple[Tensor, ...]:
        return random_images(model, image_size(model), batch=batch)

    def forget(self, model: nn.Module) -> None:
        """Clear attention biases cached in evaluation mode.

        They may contain an autograd graph, which cannot be copied. Older timm (1.0.26) updates them only after training, so
        averaged weights would be evaluated with stale biases.
        """
        for module in cast(Iterable[Any], model.modules()):
            if hasattr(module, "attention_bias_cache"):
                module.attention_bias_cache = {}

    def parts(self, model: nn.Module) -> Mapping[str, tuple[str, ...]]:
        names = getattr(model, "pretrained_cfg", {}).get("classifier") or "head"
        heads = (names,) if isinstance(names, str) else tuple(names)
        return {"head": own_state(model, *heads, "fc_norm"), "norms": norm_state(model)}


def image_size(model: nn.Module) -> tuple[int, int, int]:
    """Return (channels, rows, columns) of the images that a timm model was created for."""
    first = next(module for module in model.modules() if isinstance(module, nn.Conv2d))
    # the model or its patch embedding stores the size
    sizes = (getattr(module, "img_size", None) for module in model.modules())
    size = next((size for size in sizes if size), None)
    if size is None:
        size = cast(Mapping[str, Any], getattr(model, "pretrained_cfg", {})).get("input_size", (3, 224, 224))[-2:]
    rows, columns = (size, size) if isinstance(size, int) else size
    return first.in_channels, rows, columns


#: usual arguments and children of timm's attention classes
ARGUMENTS = ("x", "args", "kwargs")
CHILDREN = ("qkv", "attn_drop", "proj", "proj_drop")


def checked_site(
    module: Any,
    path: str,
    missing: Mapping[HookPoint, str] = MappingProxyType({}),
    *,
    arguments: tuple[str, ...] = ARGUMENTS,
    children: tuple[str, ...] = CHILDREN,
    heads: dict[str, Any] | None = None,
    on_maps: bool = False,
    block: str | None = None,
    fills: bool = False,
    space: str | None = None,
    **fields: Any,
) -> Site:
    """Return the site of an attention module: a `window_site` if its geometry has windows, else a `global_site`.

    Args:
        arguments: known arguments of its forward.
        children: names of its known children.
        heads: head fields of the geometry; None: derived from a fused `qkv`.
        missing, on_maps: as in `global_site`.
        block, fills, space: as in `window_site`; ignored without windows.
        fields: other fields of the geometry.

    Raises:
        HostError: the module has an unknown argument or child.
    """
    check_known(module, path, arguments=arguments, children=children)
    geometry = AttentionGeometry(**(fused_heads(module) if heads is None else heads), **fields)
    if geometry.window is None:
        return global_site(path, geometry, missing, on_maps=on_maps)
    return window_site(path, geometry, missing=missing, block=block, fills=fills, space=space)


def headwise_site(module: Any, path: str, **fields: Any) -> Site:
    """Return the site of a `HeadwiseQkv` module; `fields` are arguments of `checked_site`."""
    key, value, biases = module.key_dim, module.val_dim, ("attention_biases",)
    starts = {"q": ("qkv", 0), "k": ("qkv", key), "v": ("qkv", 2 * key)}
    heads = projected_heads(module, starts, width=key, value_width=value, step=2 * key + value)
    return checked_site(module, path, heads=heads, query_key_parameters=biases, score_rows=biases, **fields)


def attention_site(module: Any, path: str, **tokens: Any) -> Site:
    """Return the site of timm's shared `Attention`; `tokens` are the geometry fields of its tokens."""
    if plain_class(module) is not Attention:
        return unread_site(module, path, **tokens)
    return checked_site(
        module,
        path,
        arguments=("x", "attn_mask", "is_causal", "args", "kwargs"),
        children=(*CHILDREN, "q_norm", "k_norm", "norm", "gate"),
        query_key_parameters=own_parameters(module, "q_norm", "k_norm"),
        **tokens,
    )


def block_sites(block: Any, path: str, **tokens: Any) -> Sites:
    """Yield the two sites of timm's `Block` and `ResPostBlock`."""
    yield attention_site(block.attn, f"{path}.attn", **tokens)
    yield from mlp_sites(block.mlp, f"{path}.mlp", **tokens)


def class_attention_site(
    module: Any, path: str, *, children: tuple[str, ...] = ("q", "k", "v"), heads: Any = None, **tokens: Any
) -> Site:
    """Return the site of attention with the class token as the only query; `tokens` are the geometry fields of the keys.

    Args:
        children: names of its projections.
        heads: head fields of the geometry; required if the projections are not called q, k and v.
    """
    width = module.proj.in_features // module.num_heads
    heads = heads or projected_heads(module, {"q": "q", "k": "k", "v": "v"}, width=width)
    children = (*children, "attn_drop", "proj", "proj_drop")
    return checked_site(module, path, children=children, heads=heads, query_tokens=1, **tokens)


def subsampled_site(module: Any, path: str, shapes: ShapeProbe, *, argument: str, **tokens: Any) -> Site:
    """Return the site of a `SubsampledKeys` module.

    Args:
        argument: name of the argument with the map's size.
        tokens: geometry fields of the query side.
    """
    width, dim = module.proj.in_features // module.num_heads, module.proj.in_features
    return checked_site(
        module,
        path,
        arguments=("x", argument, "args", "kwargs"),
        children=("q", "kv", "sr", "norm", "pool", "act", "attn_drop", "proj", "proj_drop"),
        heads=projected_heads(module, {"q": "q", "k": "kv", "v": ("kv", dim)}, width=width),
        key_tokens=None if module.sr is None else math.prod(shapes.output_shape(f"{path}.sr")[-2:]),
        **tokens,
    )


def unread_site(module: Any, path: str, **tokens: Any) -> Site:
    """Return a site without hook points, for attention of a class that no adapter supports."""
    reason = reason_of(module)
    why = f"its attention is {type(module).__name__}" + (f": {reason}" if reason else ", which is not supported")
    return refused_site(path, why, **{**tokens, "heads": getattr(module, "num_heads", 1)})


def channel_site(path: str, *, instead: str, **tokens: Any) -> Site:
    """Return a site without hook points, for attention between channels (cross-covariance).

    Args:
        instead: advice on which blocks to choose instead, for messages.
    """
    why = f"it attends between channels, so its softmax is not over tokens; {instead}, or choose MLP grafts"
    return refused_site(path, why, **tokens)


def linear_site(path: str, **tokens: Any) -> Site:
    """Return a site without hook points, for linear attention."""
    why = (
        "its attention is linear: one softmax over the tokens for all queries, no attention map; choose MLP grafts (cb, "
        "cb_s, se, ...)"
    )
    return refused_site(path, why, **tokens)


def rel_pos_fields(module: nn.Module, *norms: str) -> dict[str, Any]:
    """Return the geometry fields for parameters of `module.rel_pos` and `norms`, which only the scores use."""
    fields = {"query_key_parameters": own_parameters(module, "rel_pos", *norms)}
    kind = type(getattr(module, "rel_pos", None))
    if kind is RelPosMlp:
        return {**fields, "score_rows": own_parameters(module, "rel_pos.mlp.fc2")}
    axes = {RelPosBias: "score_columns", RelPosBiasTf: "score_rows"}
    table = own_parameters(module, "rel_pos.relative_position_bias_table")
    return {**fields, axes[kind]: table} if kind in axes else fields


def prefixed_grid(model: Any) -> dict[str, Any]:
    """Return the geometry fields of a model (or its encoder) with one sequence of prefix tokens and patches.

    Raises:
        HostError: the model has prefix tokens of an unknown kind.
    """
    dim, model = model.embed_dim, getattr(model, "encoder", model)
    registers = getattr(model, "reg_token", None)
    prefix = prefix_names(
        class_token=getattr(model, "cls_token", None) is not None,
        distillation=getattr(model, "dist_token", None) is not None,
        registers=0 if registers is None else registers.shape[1],
    )
    if len(prefix) != model.num_prefix_tokens:
        raise HostError(
            f"{type(model).__name__} has {model.num_prefix_tokens} prefix tokens, but attngraft supports only "
            f"{len(prefix)} of them ({', '.join(prefix)})"
        )
    cells = model.patch_embed.grid_size
    return {"dim": dim, "prefix": prefix} if cells is None else map_fields(dim, *cells, prefix=prefix)


def _given(**arguments: Any) -> dict[str, Any]:
    """Return the arguments that are set; blocks of timm 1.0.16 do not have `is_causal`."""
    return {name: value for name, value in arguments.items() if value is not None and value is not False}


class PairMaskVitBlock(MaskedParts):
    """Forward of `Block` and `ResPostBlock` of `timm.models.vision_transformer`; the mask is over pairs of tokens."""

    def forward(self, x: Tensor, attn_mask: Tensor | None = None, is_causal: bool = False) -> Tensor:
        self.check_parts(causal=attn_mask is not None or is_causal)
        masks = _given(attn_mask=attn_mask, is_causal=is_causal)
        return cast(Tensor, super().forward(x, **masks))  # type: ignore[misc]


class PairMaskEvaBlock(MaskedParts):
    """Forward of `EvaBlock` and `EvaBlockPostNorm` of `timm.models.eva`; the mask is over pairs of tokens."""

    def forward(
        self, x: Tensor, rope: Tensor | None = None, attn_mask: Tensor | None = None, is_causal: bool = False
    ) -> Tensor:
        self.check_parts(causal=attn_mask is not None or is_causal)
        masks = _given(attn_mask=attn_mask, is_causal=is_causal)
        return cast(Tensor, super().forward(x, rope=rope, **masks))  # type: ignore[misc]


class PaddingMaskBlock(MaskedParts):
    """A block that checks whether the grafts of its attention and MLP support its padding mask."""

    unmasked = ("attn", "mlp")


def with_padding_mask(site: Site, block: str) -> Site:
    """Return `site` with the block at path `block` as companion module."""
    return replace(site, companions=dict.fromkeys(site.targets, (block,)))


def with_pair_mask(site: Site, block: str) -> Site:
    """Return `site` with the block at path `block` as companion module, if it is an MLP site."""
    return with_padding_mask(site, block) if site.kind == "mlp" else site
