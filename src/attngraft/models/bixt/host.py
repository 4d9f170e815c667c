"""Host adapter of BiXT and its baselines.

The latents' self-attention, one-sided cross-attention and MLPs accept grafts. The bi-directional cross-attention accepts
none, but `attngraft.record` can record its two maps.
"""

from collections.abc import Mapping
from typing import Any, ClassVar, cast

from torch import Tensor, nn
from torch.nn import functional as F

from attngraft.attention import AttentionGeometry, AttentionSite, LinearLayer, Projected, plain_class
from attngraft.hosts.adapter import HostAdapter, Site, random_images
from attngraft.hosts.family import Sites
from attngraft.hosts.patched import as_linear
from attngraft.hosts.sites import NO_WINDOWS, global_site, projected_heads, refused_site
from attngraft.hosts.timm.attention import PATCHED
from attngraft.hosts.timm.family import block_sites
from attngraft.hosts.timm.mlp import mlp_sites
from attngraft.mechanisms.bixt.layer import (
    BidirectionalCrossAttention,
    OneSidedCrossAttention,
    TokensAttend,
    merge_heads,
    split_parts,
)
from attngraft.models.bixt.baselines import Iterative, Sequential
from attngraft.models.bixt.model import BiXT

BOTH_WAYS = (
    "one similarity serves both directions here, so neither is a branch that a graft could change separately; the two maps "
    "can be recorded. Grafts fit in the latents' self-attention (blocks.*.self_attention_latents) and in the MLPs"
)


class GraftedOneSidedCrossAttention(AttentionSite, OneSidedCrossAttention):
    """`OneSidedCrossAttention`: latents attend to tokens. Latents of the first layer have batch size 1."""

    fused_attn = True
    attn_drop: Any  # a rate; other hosts have a module

    def forward(self, latents: Tensor, tokens: Tensor) -> Tensor:
        return self.forward_projected(self.project(latents, tokens), lambda queries: self.project(queries, tokens))

    def project(self, x: Tensor, tokens: Tensor) -> Projected:
        batch = tokens.shape[0]
        (q,) = split_parts(self.r_latents(x), 1, self.heads)
        k, v = split_parts(self.rv_patches(tokens), 2, self.heads)
        return Projected(q.expand(batch, -1, -1, -1), k, v, x.expand(batch, -1, -1), keys=tokens)

    def record(self, name: str, tensor: Tensor) -> None:
        """Record the map under two names: `weights`, and `map_name` as in bi-directional attention."""
        super().record(name, tensor)
        if name == "weights":
            super().record(self.map_name, tensor)

    def is_recording(self, *names: str) -> bool:
        return super().is_recording(*names, *((self.map_name,) if "weights" in names else ()))

    def dropped(self) -> float:
        return float(self.attn_drop) if self.training else 0.0

    def spread(self, weights: Tensor, projected: Projected) -> Tensor:
        return F.dropout(weights, self.dropped()) @ projected.v

    def merge(self, heads: Tensor, projected: Projected) -> Tensor:
        return cast(Tensor, self.proj_lat(merge_heads(heads)))

    def drop(self, tokens: Tensor) -> Tensor:
        return cast(Tensor, self.proj_drop(tokens))

    def output_layer(self) -> LinearLayer | None:
        return as_linear(self.proj_lat)


class GraftedTokensAttend(GraftedOneSidedCrossAttention, TokensAttend):
    """`TokensAttend`: tokens attend to latents."""


class BixtHost(HostAdapter):
    """Adapter of BiXT, `Iterative` and `Sequential`.

    Sites of BiXT: `blocks.<i>.cross_attention_latents_token.attn`, `.mlp_lat` and `.mlp_pat`;
    `blocks.<i>.self_attention_latents.attn` and `.mlp`. `Sequential` also has `.cross_attention_latents_token.attn_pat`.

    Sites of `Iterative`: `cross_attention.<i>.attn` and `.mlp_lat`; `blocks.<i>.<j>.attn` and `.mlp`.
    """

    name = "bixt"
    summary = "BiXT of any size (attngraft's own bixt_ti_l64_p16, ...) and its baselines, iterative and sequential"
    head_names = ("head", "fc_norm")
    any_size: ClassVar = {"positions": "dynamic"}
    patched: ClassVar = {
        **PATCHED,
        OneSidedCrossAttention: GraftedOneSidedCrossAttention,
        TokensAttend: GraftedTokensAttend,
    }

    def recognizes(self, model: nn.Module) -> bool:
        return type(model) in (BiXT, Iterative, Sequential)

    def sites(self, model: Any) -> list[Site]:
        return list(self._sites(model))

    def _sites(self, model: Any) -> Sites:
        latents, tokens = latent_fields(model), self._token_fields(model)
        shared = getattr(model, "cross_attention", None)  # in `Iterative`, where several blocks share a cross-attention
        for name, block in model.blocks.named_children():
            if shared is None:
                cross, inner = "cross_attention_latents_token", "self_attention_latents"
                yield from cross_sites(getattr(block, cross), f"blocks.{name}.{cross}", latents, tokens)
                yield from block_sites(getattr(block, inner), f"blocks.{name}.{inner}", **latents)
                continue
            index, last = int(name), len(shared) - 1
            if index <= last:
                uses = len(model.blocks) - index if index == last else 1
                fields = latents | {"sequences": uses}  # each use counts as one sequence
                yield from cross_sites(shared[index], f"cross_attention.{name}", fields, tokens | {"sequences": uses})
            for inner, each in block.named_children():
                yield from block_sites(each, f"blocks.{name}.{inner}", **latents)

    def _token_fields(self, model: Any) -> dict[str, Any]:
        rows, columns = model.grid_size
        return latent_fields(model) | {"dim": model.token_dim, "tokens": rows * columns, "grid": (rows, columns)}

    def example_inputs(self, model: Any, *, batch: int) -> tuple[Tensor, ...]:
        rows, columns = (side * model.patch_embed.stride for side in model.grid_size)
        return random_images(model, (model.in_chans, rows, columns), batch=batch)


def latent_fields(model: Any) -> dict[str, Any]:
    """Return the geometry fields of the latents."""
    return {"dim": model.embed_dim, "tokens": model.latents.shape[1], "init": "xavier_uniform"}


def cross_sites(block: Any, path: str, latents: Mapping[str, Any], tokens: Mapping[str, Any]) -> Sites:
    """Yield the sites of a cross-attention block; `latents` and `tokens` are the geometry fields of both sides."""
    yield _cross_site(block.attn, f"{path}.attn", latents, tokens)
    if hasattr(block, "attn_pat"):
        yield _cross_site(block.attn_pat, f"{path}.attn_pat", tokens, latents)
    yield from mlp_sites(block.mlp_lat, f"{path}.mlp_lat", **latents)
    if hasattr(block, "mlp_pat"):
        yield from mlp_sites(block.mlp_pat, f"{path}.mlp_pat", **tokens)


def _cross_site(module: Any, path: str, queries: Mapping[str, Any], keys: Mapping[str, Any]) -> Site:
    """Return the site of cross-attention; `queries` and `keys` are the geometry fields of both sides."""
    width = module.rv_patches.out_features // (2 * module.heads)
    fields = {**queries, "tokens": keys["tokens"], "query_tokens": queries["tokens"], "keys_grid": keys.get("grid")}
    fields["cross"] = True
    if plain_class(module) is BidirectionalCrossAttention:
        tensors = dict.fromkeys(("latents_to_tokens", "tokens_to_latents"), path)
        heads = {"heads": module.heads, "key_width": width, "value_width": width}
        return refused_site(path, BOTH_WAYS, NO_WINDOWS, record_tensors=tensors, **fields, **heads)
    value_rows = ("rv_patches", module.heads * width)
    projections = {"q": ("r_latents", 0), "k": ("rv_patches", 0), "v": value_rows}
    heads = projected_heads(module, projections, heads=module.heads, width=width)
    return global_site(path, AttentionGeometry(**fields, **heads), record_tensors={module.map_name: path})
