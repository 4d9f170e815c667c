"""BiXT and its baselines (`attngraft.models.bixt`): latents' self-attention, one-sided cross-attention and MLPs take grafts.

The bi-directional cross-attention takes none, and offers its two maps to `attngraft.record`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar, cast

from torch import Tensor, nn
from torch.nn import functional as F

from attngraft.attention import HOOK_POINTS, AttentionGeometry, AttentionSite, LinearLayer, Projected, plain_class
from attngraft.hosts.adapter import HostAdapter, Site, head_rows, norm_state, own_parameters, random_images
from attngraft.hosts.linear_ends import linear
from attngraft.hosts.registry import register_host
from attngraft.hosts.sites import NO_WINDOWS, global_site
from attngraft.hosts.timm.attention import PATCHED, block_sites, mlp_sites

# a mechanism's layers, which here are the host's own modules
from attngraft.mechanisms.bixt.layer import (
    BidirectionalCrossAttention,
    OneSidedCrossAttention,
    TokensAttend,
    merge_heads,
    split_parts,
)

#: by name, since models are made of hosts and not the other way round
MODELS = {f"attngraft.models.bixt.{name}" for name in ("model.BiXT", "baselines.Iterative", "baselines.Sequential")}
BOTH_WAYS = (
    "one similarity serves both directions here, so neither is a branch of its own that a graft could change; its two maps "
    "can be recorded. Grafts stand in the latents' self-attention (blocks.*.self_attention_latents) and in the MLPs"
)


class GraftedOneSidedCrossAttention(AttentionSite, OneSidedCrossAttention):
    """`OneSidedCrossAttention`: latents ask, tokens answer. Latents that all images share are one sequence (batch 1)."""

    fused_attn = True
    attn_drop: Any  # a share, where other hosts have a module

    def forward(self, latents: Tensor, tokens: Tensor) -> Tensor:
        return self.forward_projected(self.project(latents, tokens), lambda asking: self.project(asking, tokens))

    def project(self, x: Tensor, tokens: Tensor) -> Projected:
        batch = tokens.shape[0]
        (q,) = split_parts(self.r_latents(x), 1, self.heads)
        k, v = split_parts(self.rv_patches(tokens), 2, self.heads)
        return Projected(q.expand(batch, -1, -1, -1), k, v, x.expand(batch, -1, -1), keys=tokens)

    def record(self, name: str, tensor: Tensor) -> None:
        """The map has two names: every site's, and the one that it has in the bi-directional attention."""
        super().record(name, tensor)
        if name == "weights":
            super().record(self.offers, tensor)

    def is_recording(self, *names: str) -> bool:
        return super().is_recording(*names, *((self.offers,) if "weights" in names else ()))

    def dropped(self) -> float:
        return float(self.attn_drop) if self.training else 0.0

    def spread(self, weights: Tensor, projected: Projected) -> Tensor:
        return F.dropout(weights, self.dropped()) @ projected.v

    def merge(self, heads: Tensor, projected: Projected) -> Tensor:
        return cast(Tensor, self.proj_lat(merge_heads(heads)))

    def drop(self, tokens: Tensor) -> Tensor:
        return cast(Tensor, self.proj_drop(tokens))

    def output_layer(self) -> LinearLayer | None:
        return linear(self.proj_lat)


class GraftedTokensAttend(GraftedOneSidedCrossAttention, TokensAttend):
    """`TokensAttend`: tokens ask, latents answer."""


class BixtHost(HostAdapter):
    """Sites `blocks.<i>.cross_attention_latents_token.attn`, `.mlp_lat` and `.mlp_pat`, and
    `blocks.<i>.self_attention_latents.attn` and `.mlp`.

    `Sequential` has `.cross_attention_latents_token.attn_pat` besides; `Iterative` has `cross_attention.<i>.attn` and
    `.mlp_lat`, `blocks.<i>.<j>.attn` and `.mlp`.
    """

    name = "bixt"
    summary = "BiXT of any size (attngraft's own bixt_ti_l64_p16, ...) and its baselines, iterative and sequential"
    patched: ClassVar = {
        **PATCHED,
        OneSidedCrossAttention: GraftedOneSidedCrossAttention,
        TokensAttend: GraftedTokensAttend,
    }

    def recognizes(self, model: nn.Module) -> bool:
        return f"{type(model).__module__}.{type(model).__qualname__}" in MODELS

    def sites(self, model: Any) -> list[Site]:
        return list(_Reader(model).sites())

    def example_inputs(self, model: Any, *, batch: int) -> tuple[Tensor, ...]:
        rows, columns = (side * model.patch_embed.stride for side in model.grid_size)
        return random_images(model, (model.in_chans, rows, columns), batch=batch)

    def parts(self, model: nn.Module) -> Mapping[str, tuple[str, ...]]:
        return {"head": own_parameters(model, "head", "fc_norm"), "norms": norm_state(model)}


class _Reader:
    """One model's sites."""

    def __init__(self, model: Any) -> None:
        self._model = model
        rows, columns = model.grid_size
        self._latents = {"dim": model.embed_dim, "tokens": model.latents.shape[1], "init": "xavier_uniform"}
        self._tokens = {
            "dim": model.token_dim,
            "tokens": rows * columns,
            "init": "xavier_uniform",
            "grid": (rows, columns),
        }

    def sites(self) -> Iterator[Site]:
        shared = getattr(self._model, "cross_attention", None)  # Iterative's, which serve several blocks
        for name, block in self._model.blocks.named_children():
            if shared is None:
                yield from self._cross(
                    block.cross_attention_latents_token, f"blocks.{name}.cross_attention_latents_token"
                )
                yield from block_sites(
                    block.self_attention_latents, f"blocks.{name}.self_attention_latents", **self._latents
                )
                continue
            if int(name) < len(shared):
                last = int(name) == len(shared) - 1
                times = len(self._model.blocks) - int(name) if last else 1
                yield from self._cross(shared[int(name)], f"cross_attention.{name}", times=times)
            for inner, each in block.named_children():
                yield from block_sites(each, f"blocks.{name}.{inner}", **self._latents)

    def _cross(self, block: Any, path: str, *, times: int = 1) -> Iterator[Site]:
        """A block of cross-attention; `times` it runs for one input, which counts as so many sequences."""
        latents, tokens = ({**known, "sequences": times} for known in (self._latents, self._tokens))
        yield self._attention(block.attn, f"{path}.attn", latents, tokens)
        if hasattr(block, "attn_pat"):
            yield self._attention(block.attn_pat, f"{path}.attn_pat", tokens, latents)
        yield from mlp_sites(block.mlp_lat, f"{path}.mlp_lat", **latents)
        if hasattr(block, "mlp_pat"):
            yield from mlp_sites(block.mlp_pat, f"{path}.mlp_pat", **tokens)

    def _attention(self, module: Any, path: str, asking: dict[str, Any], answering: dict[str, Any]) -> Site:
        width = module.rv_patches.out_features // (2 * module.heads)
        geometry = AttentionGeometry(
            **{**asking, "tokens": answering["tokens"], "query_tokens": asking["tokens"]},
            heads=module.heads,
            key_width=width,
            value_width=width,
            cross=True,
            keys_grid=answering.get("grid"),
            rows={} if _both_ways(module) else _rows(module, width),
        )
        if _both_ways(module):
            record_tensors = dict.fromkeys(("latents_to_tokens", "tokens_to_latents"), path)
            missing = {**dict.fromkeys(HOOK_POINTS, BOTH_WAYS), **NO_WINDOWS}
            return Site(
                path=path,
                kind="attention",
                geometry=geometry,
                targets={},
                missing=missing,
                record_tensors=record_tensors,
            )
        return global_site(path, geometry, record_tensors={module.offers: path})


def _both_ways(module: nn.Module) -> bool:
    return plain_class(module) is BidirectionalCrossAttention


def _rows(module: Any, width: int) -> dict[str, Any]:
    """Where the projections make queries of the asking side, keys and values of the other."""
    total = module.heads * width
    return {
        "q": head_rows(module, "r_latents", start=0, width=width, step=width),
        "k": head_rows(module, "rv_patches", start=0, width=width, step=width),
        "v": head_rows(module, "rv_patches", start=total, width=width, step=width),
    }


register_host(BixtHost())
