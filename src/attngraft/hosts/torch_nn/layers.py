"""torch's `TransformerEncoderLayer` and `TransformerDecoderLayer`, and the stack that may give its layers nested tensors."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attngraft.attention import HOOK_POINTS, AttentionGeometry, GraftedModule, HookPoint, MlpGeometry, MlpSite
from attngraft.errors import UsageError
from attngraft.hosts.adapter import Site, check_known
from attngraft.hosts.calls import check_call
from attngraft.hosts.linear_ends import LinearEnds
from attngraft.hosts.torch_nn.attention import KNOWN, GraftedMultiheadAttention, attention_site
from attngraft.hosts.torch_nn.plain import hooked, plain_twin, without_graph


def grafted_within(module: nn.Module) -> bool:
    """Whether `module`, or one in it, has grafts."""
    return any(isinstance(each, GraftedModule) and bool(each.grafts) for each in module.modules())


class _Layer(LinearEnds, MlpSite):
    """What both layers share: their MLP stands in them piece by piece, and they drop what their attentions put out."""

    linear_names = ("linear1", "linear2")
    self_attn: nn.MultiheadAttention
    linear1: nn.Linear
    linear2: nn.Linear
    dropout: nn.Dropout
    activation: Any

    @property
    def in_use(self) -> bool:
        return grafted_within(cast(nn.Module, self))

    def run(self, hook_point: HookPoint, value: Tensor, *context: Tensor | None) -> Tensor:
        """Grafts see (B, N, C), whatever the layer's order of axes is."""
        if value.dim() == 2:
            return super().run(hook_point, value.unsqueeze(0), *context).squeeze(0)
        if self.self_attn.batch_first:
            return super().run(hook_point, value, *context)
        return super().run(hook_point, value.transpose(0, 1), *context).transpose(0, 1)

    def hidden(self, x: Tensor) -> Tensor:
        return cast(Tensor, self.dropout(self.activation(self.linear1(x))))

    def _ff_block(self, x: Tensor) -> Tensor:
        return MlpSite.forward(self, x)


def _attended(
    attention: nn.Module, drop: nn.Module, x: Tensor, memory: Tensor, masks: tuple[Tensor | None, ...], is_causal: bool
) -> Tensor:
    """An attention and its dropout; one with grafts drops by itself, for those that stand behind."""
    given: dict[str, Any] = {"attn_mask": masks[0], "key_padding_mask": masks[1], "is_causal": is_causal}
    if isinstance(attention, GraftedMultiheadAttention):
        return cast(Tensor, attention(x, memory, memory, **given, need_weights=False, drop=drop)[0])
    return cast(Tensor, drop(attention(x, memory, memory, **given, need_weights=False)[0]))


class GraftedEncoderLayer(_Layer, nn.TransformerEncoderLayer):
    """`torch.nn.TransformerEncoderLayer`, which never takes torch's fast path while there are grafts in it."""

    def forward(
        self,
        src: Tensor,
        src_mask: Tensor | None = None,
        src_key_padding_mask: Tensor | None = None,
        is_causal: bool = False,
    ) -> Tensor:
        """As the host's.

        Raises:
            UsageError: a graft cannot work with the masks of this call, or `src` is nested.
        """
        if self.in_use or hooked(self) or not without_graph(self, src):
            return self._spelled(src, src_mask, src_key_padding_mask, is_causal)
        plain = plain_twin(self).forward(src, src_mask, src_key_padding_mask, is_causal=is_causal)
        if any(
            each.is_recording() for each in self.modules() if isinstance(each, GraftedModule)
        ):  # for what they offer
            if src.is_nested:
                src, src_key_padding_mask = _padded(src)
            self._spelled(src, src_mask, src_key_padding_mask, is_causal)
        return plain

    def _spelled(self, src: Tensor, mask: Tensor | None, padding: Tensor | None, is_causal: bool) -> Tensor:
        if src.is_nested:
            raise UsageError(
                "nested tensors go through torch's fast path alone, which goes past grafts; give a padded tensor with "
                "src_key_padding_mask (TransformerEncoder: enable_nested_tensor=False)"
            )
        check_call(self, causal=mask is not None or is_causal, padded=padding is not None)
        canonical = cast(Any, F)._canonical_mask
        padding = canonical(padding, "src_key_padding_mask", cast(Any, F)._none_or_dtype(mask), "src_mask", src.dtype)
        mask = canonical(mask, "src_mask", None, "", src.dtype, check_other=False)
        x = src
        if self.norm_first:
            x = x + self._sa_block(self.norm1(x), mask, padding, is_causal)
            return x + self._ff_block(self.norm2(x))
        x = self.norm1(x + self._sa_block(x, mask, padding, is_causal))
        return cast(Tensor, self.norm2(x + self._ff_block(x)))

    def _sa_block(
        self, x: Tensor, attn_mask: Tensor | None, key_padding_mask: Tensor | None, is_causal: bool = False
    ) -> Tensor:
        return _attended(self.self_attn, self.dropout1, x, x, (attn_mask, key_padding_mask), is_causal)

    def out(self, x: Tensor) -> Tensor:
        return cast(Tensor, self.dropout2(self.linear2(x)))


def _padded(nested: Tensor) -> tuple[Tensor, Tensor]:
    """A nested tensor as a padded one, and where it is padded."""
    padded = nested.to_padded_tensor(0.0)
    lengths = torch.tensor([each.shape[0] for each in nested.unbind()], device=padded.device)
    return padded, torch.arange(padded.shape[1], device=padded.device) >= lengths[:, None]


class GraftedDecoderLayer(_Layer, nn.TransformerDecoderLayer):
    """`torch.nn.TransformerDecoderLayer`; it has no fast path, and its attentions see to theirs."""

    def forward(  # type: ignore[override]
        self,
        tgt: Tensor,
        memory: Tensor,
        tgt_mask: Tensor | None = None,
        memory_mask: Tensor | None = None,
        tgt_key_padding_mask: Tensor | None = None,
        memory_key_padding_mask: Tensor | None = None,
        tgt_is_causal: bool = False,
        memory_is_causal: bool = False,
    ) -> Tensor:
        """As the host's.

        Raises:
            UsageError: a graft cannot work with the masks of this call.
        """
        check_call(self, padded=tgt_key_padding_mask is not None)
        return nn.TransformerDecoderLayer.forward(
            self,
            tgt,
            memory,
            tgt_mask,
            memory_mask,
            tgt_key_padding_mask,
            memory_key_padding_mask,
            tgt_is_causal,
            memory_is_causal,
        )

    def _sa_block(
        self, x: Tensor, attn_mask: Tensor | None, key_padding_mask: Tensor | None, is_causal: bool = False
    ) -> Tensor:
        return _attended(self.self_attn, self.dropout1, x, x, (attn_mask, key_padding_mask), is_causal)

    def _mha_block(
        self,
        x: Tensor,
        mem: Tensor,
        attn_mask: Tensor | None,
        key_padding_mask: Tensor | None,
        is_causal: bool = False,
    ) -> Tensor:
        return _attended(self.multihead_attn, self.dropout2, x, mem, (attn_mask, key_padding_mask), is_causal)

    def out(self, x: Tensor) -> Tensor:
        return cast(Tensor, self.dropout3(self.linear2(x)))


class GraftedEncoder(GraftedModule, nn.TransformerEncoder):
    """`torch.nn.TransformerEncoder` with grafts in its layers: it gives them padded tensors, never nested ones."""

    @property
    def use_nested_tensor(self) -> bool:  # type: ignore[override]
        """What the host's own forward asks; the host's answer stays in the module for when the grafts are gone."""
        return False

    @property
    def in_use(self) -> bool:
        return grafted_within(self)


_MASKS = ("mask", "key_padding_mask", "is_causal")
_ENCODER = ("src", *(f"src_{name}" for name in _MASKS), "is_causal")
_DECODER = ("tgt", "memory", *(f"{side}_{name}" for side in ("tgt", "memory") for name in _MASKS))
_CHILDREN = ("self_attn", "linear1", "dropout", "linear2", "norm1", "norm2", "dropout1", "dropout2", "activation")


def encoder_layer_sites(layer: Any, path: str, around: tuple[str, ...]) -> Iterator[Site]:
    """The two sites of an encoder layer; `around` are paths of the stacks that hold it."""
    check_known(layer, path or type(layer).__name__, arguments=_ENCODER, children=_CHILDREN)
    told = (path, *around)
    yield _attention(layer.self_attn, below(path, "self_attn"), companions=told)
    yield _mlp(layer, path, companions=around)


def decoder_layer_sites(layer: Any, path: str) -> Iterator[Site]:
    """The three sites of a decoder layer, whose tokens must not see later ones."""
    children = (*_CHILDREN, "multihead_attn", "norm3", "dropout3")
    check_known(layer, path or type(layer).__name__, arguments=_DECODER, children=children)
    yield _attention(layer.self_attn, below(path, "self_attn"), companions=(path,), causal=True)
    yield _attention(layer.multihead_attn, below(path, "multihead_attn"), companions=(path,), causal=True, cross=True)
    yield _mlp(layer, path, causal=True)


def below(path: str, name: str) -> str:
    """The path of a module's child."""
    return f"{path}.{name}" if path else name


def _attention(module: Any, path: str, *, companions: tuple[str, ...], **known: Any) -> Site:
    if type(module) in KNOWN:
        return attention_site(module, path, companions=companions, **known)
    return unread(module, path, f"its attention is {type(module).__name__}, which this adapter does not read")


def unread(module: Any, path: str, why: str) -> Site:
    """A place where some attention stands that cannot carry grafts."""
    geometry = AttentionGeometry(
        dim=getattr(module, "embed_dim", 0), heads=getattr(module, "num_heads", 1), key_width=0, value_width=0
    )
    return Site(path=path, kind="attention", geometry=geometry, targets={}, missing=dict.fromkeys(HOOK_POINTS, why))


def _mlp(layer: Any, path: str, *, companions: tuple[str, ...] = (), **known: Any) -> Site:
    hook_points: tuple[HookPoint, ...] = ("mlp.front", "mlp.mid", "mlp.end")
    hidden, dim = layer.linear1.weight.shape
    return Site(
        path=below(path, "linear1"),
        kind="mlp",
        geometry=MlpGeometry(dim=dim, hidden=hidden, init="torch", **known),
        targets=dict.fromkeys(hook_points, path),
        companions=dict.fromkeys(hook_points, companions) if companions else {},
        rounds=type(layer) in (nn.TransformerEncoderLayer, GraftedEncoderLayer),
    )
