"""Adapter for torch's transformer layers, alone, in `nn.Transformer`, or in a user-defined model."""

from dataclasses import replace
from typing import Any, ClassVar, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attngraft.attention import GraftedModule, HookPoint, MlpGeometry, MlpSite, is_graft, plain_class
from attngraft.errors import HostError, UsageError
from attngraft.hosts.adapter import HostAdapter, Site, check_known
from attngraft.hosts.family import Sites
from attngraft.hosts.patched import StepMlp, TwoLinearEnds, check_call, has_grafts
from attngraft.hosts.sites import MLP, refused_site
from attngraft.hosts.torch_nn.attention import GraftedMultiheadAttention, attention_site, may_use_fast_path, plain_copy


class _Layer(TwoLinearEnds, StepMlp):
    """Base of encoder and decoder layers: the MLP, and the dropout after attention."""

    linear_names = ("linear1", "linear2")
    before_mid = ("linear1", "activation", "dropout")
    self_attn: nn.MultiheadAttention
    dropout1: nn.Dropout

    @property
    def in_use(self) -> bool:
        return has_grafts(cast(nn.Module, self))

    def run(self, hook_point: HookPoint, value: Tensor, *context: Tensor | None) -> Tensor:
        """Run the grafts on (B, N, C), regardless of the layer's order of axes."""
        if value.dim() == 2:
            return super().run(hook_point, value.unsqueeze(0), *context).squeeze(0)
        if self.self_attn.batch_first:
            return super().run(hook_point, value, *context)
        return super().run(hook_point, value.transpose(0, 1), *context).transpose(0, 1)

    def _sa_block(
        self, x: Tensor, attn_mask: Tensor | None, key_padding_mask: Tensor | None, is_causal: bool = False
    ) -> Tensor:
        return _attend(self.self_attn, self.dropout1, x, x, (attn_mask, key_padding_mask), is_causal)

    def _ff_block(self, x: Tensor) -> Tensor:
        return MlpSite.forward(self, x)


def _attend(
    attention: nn.Module, drop: nn.Module, x: Tensor, memory: Tensor, masks: tuple[Tensor | None, ...], is_causal: bool
) -> Tensor:
    """Return the output of `attention` after dropout; patched attention applies the dropout itself."""
    given: dict[str, Any] = {"attn_mask": masks[0], "key_padding_mask": masks[1], "is_causal": is_causal}
    if isinstance(attention, GraftedMultiheadAttention):
        return cast(Tensor, attention(x, memory, memory, **given, need_weights=False, drop=drop)[0])
    return cast(Tensor, drop(attention(x, memory, memory, **given, need_weights=False)[0]))


class GraftedEncoderLayer(_Layer, nn.TransformerEncoderLayer):
    """`torch.nn.TransformerEncoderLayer`, without torch's fast path while the layer has grafts."""

    after_mid = ("linear2", "dropout2")

    def forward(
        self,
        src: Tensor,
        src_mask: Tensor | None = None,
        src_key_padding_mask: Tensor | None = None,
        is_causal: bool = False,
    ) -> Tensor:
        """Run the host's forward.

        Raises:
            UsageError: a graft does not support the masks of this call, or `src` is nested.
        """
        # torch disables the fast path too if a module of the layer has hooks
        hooked = any(each._forward_hooks or each._forward_pre_hooks for each in self.modules())
        if self.in_use or hooked or not may_use_fast_path(self, src):
            return self._explicit(src, src_mask, src_key_padding_mask, is_causal)
        plain = plain_copy(self).forward(src, src_mask, src_key_padding_mask, is_causal=is_causal)
        if any(each.is_recording() for each in self.modules() if isinstance(each, GraftedModule)):
            if src.is_nested:
                src, src_key_padding_mask = _pad(src)
            self._explicit(src, src_mask, src_key_padding_mask, is_causal)
        return plain

    def _explicit(self, src: Tensor, mask: Tensor | None, padding: Tensor | None, is_causal: bool) -> Tensor:
        if src.is_nested:
            raise UsageError(
                "nested tensors require torch's fast path, which bypasses grafts; pass a padded tensor with "
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


def _pad(nested: Tensor) -> tuple[Tensor, Tensor]:
    """Return a nested tensor as a padded tensor, and its padding mask."""
    padded = nested.to_padded_tensor(0.0)
    lengths = torch.tensor([each.shape[0] for each in nested.unbind()], device=padded.device)
    return padded, torch.arange(padded.shape[1], device=padded.device) >= lengths[:, None]


class GraftedDecoderLayer(_Layer, nn.TransformerDecoderLayer):
    """`torch.nn.TransformerDecoderLayer`; only its attention modules have a fast path."""

    after_mid = ("linear2", "dropout3")

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
        """Run the host's forward.

        Raises:
            UsageError: a graft does not support the masks of this call.
        """
        check_call(self, padded=tgt_key_padding_mask is not None)
        masks = (tgt_mask, memory_mask, tgt_key_padding_mask, memory_key_padding_mask)
        return nn.TransformerDecoderLayer.forward(self, tgt, memory, *masks, tgt_is_causal, memory_is_causal)

    def _mha_block(
        self,
        x: Tensor,
        mem: Tensor,
        attn_mask: Tensor | None,
        key_padding_mask: Tensor | None,
        is_causal: bool = False,
    ) -> Tensor:
        return _attend(self.multihead_attn, self.dropout2, x, mem, (attn_mask, key_padding_mask), is_causal)


class GraftedEncoder(GraftedModule, nn.TransformerEncoder):
    """`torch.nn.TransformerEncoder` that passes padded instead of nested tensors to grafted layers."""

    @property
    def use_nested_tensor(self) -> bool:  # type: ignore[override]
        """Hide the host's attribute, which takes effect again once the grafts are removed."""
        return False

    @property
    def in_use(self) -> bool:
        return has_grafts(self)


_MASKS = ("mask", "key_padding_mask", "is_causal")
_ENCODER = ("src", *(f"src_{name}" for name in _MASKS), "is_causal")
_DECODER = ("tgt", "memory", *(f"{side}_{name}" for side in ("tgt", "memory") for name in _MASKS))
_CHILDREN = ("self_attn", "linear1", "dropout", "linear2", "norm1", "norm2", "dropout1", "dropout2", "activation")


def encoder_layer_sites(layer: Any, path: str, stacks: tuple[str, ...]) -> Sites:
    """Yield the two sites of an encoder layer; `stacks` are the paths of the encoders around the layer."""
    check_known(layer, path or type(layer).__name__, arguments=_ENCODER, children=_CHILDREN)
    yield _attention(layer.self_attn, child_path(path, "self_attn"), companions=(path, *stacks))
    yield _mlp(layer, path, companions=stacks)


def decoder_layer_sites(layer: Any, path: str) -> Sites:
    """Yield the three sites of a decoder layer: causal self-attention, cross-attention, MLP."""
    children = (*_CHILDREN, "multihead_attn", "norm3", "dropout3")
    check_known(layer, path or type(layer).__name__, arguments=_DECODER, children=children)
    yield _attention(layer.self_attn, child_path(path, "self_attn"), companions=(path,), causal=True)
    cross = child_path(path, "multihead_attn")
    yield _attention(layer.multihead_attn, cross, companions=(path,), causal=True, cross=True)
    yield _mlp(layer, path, causal=True)


def child_path(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def _attention(module: Any, path: str, *, companions: tuple[str, ...], **fields: Any) -> Site:
    if plain_class(module) is nn.MultiheadAttention:
        return attention_site(module, path, companions=companions, **fields)
    return unread_site(module, path, f"its attention is {type(module).__name__}, which is not supported")


def unread_site(module: Any, path: str, why: str) -> Site:
    """Return a site without hook points, for attention that cannot have grafts."""
    return refused_site(path, why, dim=getattr(module, "embed_dim", 0), heads=getattr(module, "num_heads", 1))


def _mlp(layer: Any, path: str, *, companions: tuple[str, ...] = (), **fields: Any) -> Site:
    hidden, dim = layer.linear1.weight.shape
    return Site(
        path=child_path(path, "linear1"),
        kind="mlp",
        geometry=MlpGeometry(dim=dim, hidden=hidden, init="torch", **fields),
        targets=dict.fromkeys(MLP, path),
        companions=dict.fromkeys(MLP, companions) if companions else {},
        rounds=plain_class(layer) is nn.TransformerEncoderLayer,
    )


_LENGTH = 7  #: number of tokens in example inputs; these modules accept any number


class TorchNN(HostAdapter):
    """Sites `<layer>.self_attn`, `<layer>.multihead_attn` and `<layer>.linear1` (the MLP), and others.

    Every other `nn.MultiheadAttention` is a site under its own path, or under `attention` if it is the host itself.
    """

    name = "torch.nn"
    summary = "torch.nn Transformer, its encoders, decoders, layers and MultiheadAttention, also inside your own models"
    gathers = True
    head_names = ()
    patched: ClassVar = {
        nn.MultiheadAttention: GraftedMultiheadAttention,
        nn.TransformerEncoderLayer: GraftedEncoderLayer,
        nn.TransformerDecoderLayer: GraftedDecoderLayer,
        nn.TransformerEncoder: GraftedEncoder,
    }
    models: ClassVar = (*patched, nn.TransformerDecoder, nn.Transformer)

    def recognizes(self, model: nn.Module) -> bool:
        return plain_class(model) in self.models

    def sites(self, model: nn.Module) -> list[Site]:
        return list(self._sites(model))

    def _sites(self, model: nn.Module) -> Sites:
        stacks: list[str] = []
        read: set[nn.Module] = set()
        for path, module in model.named_modules():
            kind = plain_class(module)
            if is_graft(path) or module in read:
                continue
            if kind is nn.TransformerEncoder:
                stacks.append(path)
            elif kind is nn.TransformerEncoderLayer:
                around = tuple(stack for stack in stacks if not stack or path.startswith(f"{stack}."))
                yield from encoder_layer_sites(module, path, around)
                read.add(module.get_submodule("self_attn"))
            elif kind is nn.TransformerDecoderLayer:
                yield from decoder_layer_sites(module, path)
                read |= {module.get_submodule("self_attn"), module.get_submodule("multihead_attn")}
            elif kind is nn.MultiheadAttention:
                yield self._attention_elsewhere(model, module, path)

    def _attention_elsewhere(self, model: nn.Module, module: nn.Module, path: str) -> Site:
        """Return the site of attention in a user-defined block, or of attention that is the host itself."""
        block = model.get_submodule(path.rpartition(".")[0])
        if isinstance(block, nn.TransformerEncoderLayer) and path:
            why = (
                f"it is in a {type(block).__name__}, which inherits torch's fast path that may bypass its attention; use "
                "nn.TransformerEncoderLayer itself, or write an adapter"
            )
            return unread_site(module, path, why)
        no_mlp = "torch.nn.MultiheadAttention has no MLP; use at=attention, or attention grafts"
        site = attention_site(module, path or "attention", target=path)
        return replace(site, missing={**site.missing, **dict.fromkeys(MLP, no_mlp)})

    def example_inputs(self, model: Any, *, batch: int) -> tuple[Tensor, ...]:
        kind = plain_class(model)
        attention = next(each for each in model.modules() if plain_class(each) is nn.MultiheadAttention)
        if kind not in self.models:
            raise HostError(
                f"attngraft found torch's attention in a {kind.__name__}, whose inputs are unknown; set measure=False, or "
                "write an adapter"
            )

        def tokens(width: int, number: int = _LENGTH) -> Tensor:
            parameter = next(model.parameters())
            shape = (batch, number, width) if attention.batch_first else (number, batch, width)
            return torch.randn(shape, device=parameter.device, dtype=parameter.dtype)

        x = tokens(attention.embed_dim)
        if kind is nn.MultiheadAttention:
            same = attention._qkv_same_embed_dim
            return (x, x, x) if same else (x, tokens(attention.kdim), tokens(attention.vdim))
        if kind in (nn.TransformerEncoder, nn.TransformerEncoderLayer):
            return (x,)
        return x, tokens(attention.embed_dim, _LENGTH - 2)
