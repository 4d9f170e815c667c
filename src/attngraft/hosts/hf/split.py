"""Layers as BERT's: one module makes the heads and another projects them, and so with the MLP.

`BertSelfAttention` carries `mix`, `weights` and `heads`. What follows stands in `BertSelfOutput`, whose forward ends behind
the residual and its norm; so `BertAttention`, which holds both, spells it out and carries `tokens` and `attn.end`. Of the
MLP `BertIntermediate` carries the front and the middle, `BertOutput` the end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any, ClassVar, cast

from torch import Tensor, nn
from transformers.cache_utils import EncoderDecoderCache

from attngraft.attention import CLASS, GraftedModule, HookPoint, LinearLayer, Mixed, MlpGeometry, Projected
from attngraft.errors import UsageError
from attngraft.hosts.adapter import Site, check_known
from attngraft.hosts.calls import check_call
from attngraft.hosts.hf.attention import attention_site, hides
from attngraft.hosts.hf.chunks import in_chunks
from attngraft.hosts.hf.decoder import CACHE, CachingSite, kept
from attngraft.hosts.hf.family import TextFamily
from attngraft.hosts.hf.mlp import MaskedLayer
from attngraft.hosts.linear_ends import linear
from attngraft.hosts.sites import mlp_site

Behind = list[Callable[[Tensor], Tensor]]
PROJECTIONS = ("query", "key", "value")


class Heads(CachingSite):
    """The sentence up to the heads (`BertSelfAttention`); returns (heads side by side, weights) as the host does."""

    projections = PROJECTIONS
    width = "attention_head_size"
    precise = False
    ends = ()
    crosses: ClassVar[bool] = False
    dropout: nn.Dropout

    def project(  # type: ignore[override]
        self,
        x: Tensor,
        attention_mask: Tensor | None = None,
        past_key_values: Any = None,
        behind: Behind | None = None,
        encoder_hidden_states: Tensor | None = None,
        is_causal: bool | None = None,
        **kwargs: Any,
    ) -> Projected:
        """`behind` is to be filled with what remains to be done behind the projection.

        Raises:
            UsageError: a graft that needs the queries' own keys meets others, or the cache has no room for cross attention.
        """
        if self.crosses and not (past_key_values is None or isinstance(past_key_values, EncoderDecoderCache)):
            raise UsageError(
                f"{type(self).__name__} keeps its keys in an EncoderDecoderCache, and the call gives a "
                f"{type(past_key_values).__name__}; give none, or generate with transformers.EncoderDecoderModel"
            )
        if past_key_values is not None and not self.is_decoder:  # keys that somebody put in front
            check_call(self, cross=True)
        memory = encoder_hidden_states if self.crosses else None
        projected = super().project(x, attention_mask, memory, past_key_values, is_causal=is_causal)
        return projected._replace(rest=behind)

    def finish(self, tokens: Tensor, mixed: Mixed, *, projected: Projected, drop: Any) -> Tensor:
        if mixed.after is not None:
            projected.rest.more.append(mixed.after)
        return tokens

    def merge(self, heads: Tensor, projected: Projected) -> Tensor:
        return heads.transpose(1, 2).contiguous().flatten(2)

    def dropped(self) -> float:
        return self.dropout.p if self.training else 0.0

    def output_layer(self) -> LinearLayer | None:
        return None


class CrossHeads(Heads):
    """The same with the keys of other tokens (`BertCrossAttention`), which only decoders have."""

    crosses = True
    is_decoder = True


class Around(GraftedModule):
    """The rest of the sentence (`BertAttention`): projection, dropout, and behind them residual and norm."""

    output: Any
    is_cross_attention: bool

    @property
    def in_use(self) -> bool:
        return super().in_use or bool(self._mixers())

    def _mixers(self) -> list[nn.Module]:
        inner = self._inner()
        return inner.grafts_at("mix") if isinstance(inner, GraftedModule) else []

    def _inner(self) -> Any:
        return getattr(self, "self")  # noqa: B009 - of this name

    def forward(
        self,
        hidden_states: Tensor,
        attention_mask: Tensor | None = None,
        encoder_hidden_states: Tensor | None = None,
        encoder_attention_mask: Tensor | None = None,
        past_key_values: Any = None,
        **kwargs: Any,
    ) -> tuple[Tensor, Tensor | None]:
        """The host's own, with `BertSelfOutput` spelled out."""
        check_call(self, padded=hides(attention_mask), causal=bool(kwargs.get("is_causal")))
        behind: Behind = []
        heads, weights = self._inner()(
            hidden_states,
            encoder_hidden_states=encoder_hidden_states,
            attention_mask=encoder_attention_mask if self.is_cross_attention else attention_mask,
            **{CACHE: kept(past_key_values, kwargs)},
            **({"behind": behind} if self._mixers() else {}),
            **kwargs,
        )
        tokens = self.output.dense(heads)
        for after in behind:
            tokens = after(tokens)
        tokens = self.run("tokens", tokens, hidden_states)
        tokens = self.run("attn.end", self.output.dropout(tokens))
        return self.output.LayerNorm(tokens + hidden_states), weights

    def between(self, hook_point: HookPoint) -> str | None:
        made = next((mixer for mixer in self._mixers() if getattr(mixer, "adds_after", False)), None)
        if made is not None:
            return f"{cast(Any, made).kind} adds its own output after the host's output projection"
        if hook_point == "attn.end" and self.grafts_at("tokens"):
            return "another graft lies between it and the host's output projection"
        return None

    def linear_before(self, hook_point: HookPoint) -> LinearLayer | None:
        return None if self.between(hook_point) else linear(self.output.dense)


class Front(GraftedModule):
    """Front and middle of the MLP (`BertIntermediate`)."""

    dense: nn.Module
    intermediate_act_fn: Callable[[Tensor], Tensor]

    def forward(self, hidden_states: Tensor) -> Tensor:
        """The host's own, with places at both ends."""
        x = self.dense(self.run("mlp.front", hidden_states))
        return self.run("mlp.mid", self.intermediate_act_fn(x))

    def linear_after(self, hook_point: HookPoint) -> LinearLayer | None:
        return linear(self.dense) if hook_point == "mlp.front" else None


class End(GraftedModule):
    """End of the MLP, and behind it residual and norm (`BertOutput`)."""

    dense: nn.Module
    dropout: nn.Module
    LayerNorm: nn.Module

    def forward(self, hidden_states: Tensor, input_tensor: Tensor) -> Tensor:
        """The host's own, with a place before the residual."""
        x = self.run("mlp.end", self.dropout(self.dense(hidden_states)))
        return cast(Tensor, self.LayerNorm(x + input_tensor))

    def linear_before(self, hook_point: HookPoint) -> LinearLayer | None:
        return linear(self.dense)


class Layer(MaskedLayer):
    """It gives its mask to the attention alone (`BertLayer`)."""

    unaware = ("intermediate", "output")


class SplitFamily(TextFamily):
    """Sites `encoder.layer.<i>.attention` (`.crossattention`) and `encoder.layer.<i>.intermediate`, the whole MLP."""

    def read(self, layer: Any, path: str) -> Iterable[Site]:
        arguments = ("hidden_states", "attention_mask", "encoder_hidden_states", "encoder_attention_mask")
        shared = (*arguments, CACHE, "kwargs")
        check_known(layer, path, arguments=shared, children=("attention", "crossattention", "intermediate", "output"))
        causal = bool(layer.is_decoder)
        known = {
            "dim": layer.output.dense.out_features,
            "causal": causal,
            "prefix": () if causal else CLASS,
        }
        yield _attention_site(layer.attention, f"{path}.attention", arguments=shared, **known)
        if layer.add_cross_attention:
            yield _attention_site(layer.crossattention, f"{path}.crossattention", arguments=shared, cross=True, **known)
        yield _mlp_site(layer, path, **known)


def _attention_site(module: Any, path: str, *, arguments: tuple[str, ...], **known: Any) -> Site:
    check_known(module, path, arguments=arguments, children=("self", "output"))
    _check_output(module.output, f"{path}.output")
    site = attention_site(
        module.get_submodule("self"),
        f"{path}.self",
        end=path,
        out=None,
        projections=PROJECTIONS,
        width="attention_head_size",
        arguments=(CACHE, "encoder_hidden_states"),
        children=("dropout",),
        **known,
    )
    targets = {**site.targets, "tokens": path} if site.targets else {}
    return replace(site, path=path, targets=targets, companions={"mix": (path,)})


def _mlp_site(layer: Any, path: str, **known: Any) -> Site:
    front, end = f"{path}.intermediate", f"{path}.output"
    children = ("dense", "intermediate_act_fn")
    check_known(layer.intermediate, front, arguments=("hidden_states",), children=children)
    _check_output(layer.output, end)
    geometry = MlpGeometry(**known, hidden=layer.intermediate.dense.out_features)
    return mlp_site(front, geometry, in_chunks(layer), end=end, layer=path)


def _check_output(module: nn.Module, path: str) -> None:
    check_known(module, path, arguments=("hidden_states", "input_tensor"), children=("dense", "LayerNorm", "dropout"))
