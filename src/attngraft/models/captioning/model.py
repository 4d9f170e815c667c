"""The meshed-memory (M2) captioner: an encoder with memory slots, and a decoder that attends to all of its levels.

    x = norm(dropout(relu(linear(regions))))
    x = norm(x + attention(x, [x, memory]));  x = norm(x + mlp(x))                                 level l: x after layer l
    s = norm(x + attention(x));  c_l = norm(s + attention(s, level l));  g_l = sigmoid(linear_l([s, c_l]))          decoder
    x = sum_l g_l c_l / L^0.5;  x = norm(x + mlp(x))

Source: M. Cornia et al., "Meshed-Memory Transformer for Image Captioning", 2020, and its code. The memory of each attention
in the encoder consists of learned keys and values. One cross-attention per decoder layer reads all levels.
"""

import re
from collections.abc import Sequence
from typing import Any, cast

import torch
import torch.nn.functional as F
from timm.layers import Mlp
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from attngraft.errors import UsageError
from attngraft.models.beam import beam_search
from attngraft.models.captioning.sampling import sample
from attngraft.models.t2t_vit import sinusoids
from attngraft.models.translation import model as translation
from attngraft.models.translation.model import KeysValues, additive_mask

REGIONS = 50  #: regions per image in the paper, at most
#: keys and values of self-attention (R, H, Nt, d), and of cross-attention (B L, H, Nr, d), in a decoder layer
LayerCache = tuple[Tensor, Tensor, Tensor, Tensor]
#: which tokens are no padding (R, Nt), and the decoder layers
Cache = tuple[Tensor, tuple[LayerCache, ...]]


class Attention(translation.Attention):
    """Multi-head attention with biases and without dropout of attention maps; keys and values may include a memory."""

    def __init__(self, dim: int, heads: int, *, dropout: float, cross: bool = False, slots: int = 0) -> None:
        super().__init__(dim, heads, dropout=0.0, cross=cross)
        self.q, self.k, self.v, self.proj = (nn.Linear(dim, dim) for _ in range(4))
        self.proj_drop = nn.Dropout(dropout)
        self.slots = slots
        if slots:
            self.memory_k, self.memory_v = (nn.Parameter(torch.empty(1, slots, dim)) for _ in range(2))

    def keys_values(self, x: Tensor, past: KeysValues | None = None) -> KeysValues:
        """As in the base class, with d^0.5 `memory_k` and M^0.5 `memory_v` of M slots after the keys and values."""
        k, v = super().keys_values(x, past)
        if not self.slots:
            return k, v
        memory_k = self.split(self.memory_k * self.scale**-1).expand(x.shape[0], -1, -1, -1)
        memory_v = self.split(self.memory_v * self.slots**0.5).expand(x.shape[0], -1, -1, -1)
        return torch.cat([k, memory_k.to(k.dtype)], dim=2), torch.cat([v, memory_v.to(v.dtype)], dim=2)


class EncoderLayer(nn.Module):
    """Self-attention with a memory, and MLP."""

    def __init__(self, dim: int, heads: int, *, hidden: int, dropout: float, slots: int) -> None:
        super().__init__()
        self.self_attn = Attention(dim, heads, dropout=dropout, slots=slots)
        self.self_attn_norm = nn.LayerNorm(dim)
        self.mlp = Mlp(dim, hidden, act_layer=nn.ReLU, drop=dropout)
        self.mlp_norm = nn.LayerNorm(dim)

    def forward(self, x: Tensor, bias: Tensor | None = None) -> Tensor:
        """Transform (B, N, C); `bias` is the additive mask of padding regions, with the slots of the memory."""
        x = self.self_attn_norm(x + self.self_attn(x, bias=bias)[0])
        return cast(Tensor, self.mlp_norm(x + self.mlp(x)))


class DecoderLayer(nn.Module):
    """Causal self-attention, gated cross-attention to all levels of the encoder, and MLP."""

    def __init__(self, dim: int, heads: int, *, levels: int, hidden: int, dropout: float) -> None:
        super().__init__()
        self.self_attn = Attention(dim, heads, dropout=dropout)
        self.self_attn_norm = nn.LayerNorm(dim)
        self.cross_attn = Attention(dim, heads, dropout=dropout, cross=True)
        self.cross_attn_norm = nn.LayerNorm(dim)
        self.gates = nn.ModuleList(nn.Linear(2 * dim, dim) for _ in range(levels))
        self.mlp = Mlp(dim, hidden, act_layer=nn.ReLU, drop=dropout)
        self.mlp_norm = nn.LayerNorm(dim)

    def forward(
        self,
        x: Tensor,
        levels: Tensor,
        shown: Tensor,
        *,
        bias: Tensor | None = None,
        causal: bool = False,
        level_bias: Tensor | None = None,
        captions: Tensor | None = None,
        past: LayerCache | None = None,
    ) -> tuple[Tensor, LayerCache]:
        """Transform (R, N, C), with the levels (B, L, Nr, C).

        Args:
            shown: (R, N, 1), 0 at padding tokens, whose outputs are 0.
            bias, causal: masks of self-attention.
            level_bias: additive mask of padding regions.
            captions: as in `M2Transformer.decode`, for a call without `past`.

        Returns:
            The tokens, and the keys and values of both attentions.
        """
        attended, own = self.self_attn(x, bias=bias, causal=causal, past=None if past is None else past[:2])
        x = self.self_attn_norm(x + attended) * shown
        count, memory = levels.shape[1], levels.flatten(0, 1)
        if past is not None:
            other = past[2:]
        else:  # projected once per image, also if it has several captions
            other = self.cross_attn.keys_values(memory)
            if captions is not None:
                other = (_of_captions(other[0], captions, count), _of_captions(other[1], captions, count))
        images = other[0].shape[0] // count
        queries = x.unflatten(0, (images, -1)).flatten(1, 2)  # the rows of an image are queries of one sequence
        queries = queries.unsqueeze(1).expand(-1, count, -1, -1).flatten(0, 1)
        attended, _ = self.cross_attn(queries, memory, bias=level_bias, past=other)
        contexts = self.cross_attn_norm(queries + attended).unflatten(0, (images, count)).transpose(0, 1)
        contexts = contexts.reshape(count, *x.shape) * shown
        gated = [
            gate(torch.cat([x, context], dim=-1)).sigmoid() * context
            for gate, context in zip(self.gates, contexts, strict=True)
        ]
        x = torch.stack(gated).sum(dim=0) * count**-0.5
        return self.mlp_norm(x + self.mlp(x)) * shown, (*own, *other)


class M2Transformer(nn.Module):
    """Encoder-decoder from features of image regions to logits of the next caption tokens.

    The default arguments are the paper's, and its special tokens: 38,411,264 parameters. Tokens attend to no later ones and
    to no padding tokens.

    Args:
        vocab_size: V, tokens of the vocabulary.
        feature_dim: width of the features of a region.
        dim: C.
        depth: number of layers, or (encoder, decoder).
        heads: H.
        hidden: width of the MLPs.
        slots: learned keys and values in each attention of the encoder.
        dropout: rate after the embedded features, at the end of attention, and twice in MLPs.
        official_mask: find padding regions as the authors' code does, by embedded features whose sum is 0. It misses
            padding and hides some regions by accident of rounding. Use it with the authors' weights only. By default,
            padding regions are rows of zeros in the features.
        positions: largest number of tokens.
        pad, start, end: ids of the special tokens.

    Raises:
        ValueError: sizes are inconsistent.
    """

    positions: Tensor  #: codes of the positions (positions, C), sinusoidal except in the authors' weights

    def __init__(
        self,
        *,
        vocab_size: int = 10201,
        feature_dim: int = 2048,
        dim: int = 512,
        depth: int | Sequence[int] = 3,
        heads: int = 8,
        hidden: int = 2048,
        slots: int = 40,
        dropout: float = 0.1,
        official_mask: bool = False,
        positions: int = 54,
        pad: int = 1,
        start: int = 2,
        end: int = 3,
    ) -> None:
        super().__init__()
        depths = (depth, depth) if isinstance(depth, int) else tuple(depth)
        if len(depths) != 2 or min(depths) < 1:
            raise ValueError(f"depth must be a number or two, of encoder and decoder layers, not {depth!r}")
        if heads < 1 or dim % heads:
            raise ValueError(f"dim={dim} is not divisible by heads={heads}")
        if slots < 0:
            raise ValueError(f"slots={slots} must not be negative")
        for name, token in (("pad", pad), ("start", start), ("end", end)):
            if not 0 <= token < vocab_size:
                raise ValueError(f"{name}={token} is no token of a vocabulary with vocab_size={vocab_size}")
        self.start, self.end, self.pad = start, end, pad
        self.slots, self.official_mask = slots, official_mask
        self.embed_regions = nn.Linear(feature_dim, dim)
        self.embed_drop, self.encoder_norm = nn.Dropout(dropout), nn.LayerNorm(dim)
        sizes: dict[str, Any] = {"hidden": hidden, "dropout": dropout}
        self.encoder = nn.ModuleList(EncoderLayer(dim, heads, slots=slots, **sizes) for _ in range(depths[0]))
        self.embed = nn.Embedding(vocab_size, dim, padding_idx=pad)
        self.register_buffer("positions", sinusoids(positions + 1, dim)[1:].clone())
        self.decoder = nn.ModuleList(DecoderLayer(dim, heads, levels=depths[0], **sizes) for _ in range(depths[1]))
        self.head = nn.Linear(dim, vocab_size, bias=False)
        for name, parameter in self.named_parameters():
            if parameter.ndim > 1:
                nn.init.xavier_uniform_(parameter)
            elif name.endswith(("q.bias", "k.bias", "v.bias", "proj.bias")) or ".gates." in name:
                nn.init.zeros_(parameter)
        self.grad_checkpointing = False
        #: any vocabulary fits: the task passes its size and special tokens as arguments
        self.attngraft_input = {
            "kind": "regions",
            "feature_dim": feature_dim,
            "vocab_size": None,
            "pad": pad,
            "decoder": {"start": start, "end": end, "max_length": positions, "forced": None},
        }

    def set_grad_checkpointing(self, enable: bool = True) -> None:
        """Enable activation checkpointing of the layers."""
        self.grad_checkpointing = enable

    def forward(self, features: Tensor, ids: Tensor, captions: Tensor | None = None) -> Tensor:
        """Return logits (R, Nt, V).

        Args:
            features: (B, Nr, feature_dim); rows of zeros are padding.
            ids: caption tokens (R, Nt), beginning with the start token. R is a multiple of B: adjacent rows are captions of
                the same image.
            captions: (R,), the image of each caption, if they are not adjacent or not equally many; each image is encoded
                once.

        Raises:
            UsageError: an image has no regions, or there are more tokens than positions.
        """
        levels, mask = self.encode(features)
        return self.decode(ids, levels, mask, captions=captions)[0]

    def encode(self, features: Tensor) -> tuple[Tensor, Tensor]:
        """Return the outputs of all encoder layers (B, L, Nr, C), and the mask (B, Nr) of regions that are no padding.

        Raises:
            UsageError: an image has no regions.
        """
        x = self.encoder_norm(self.embed_drop(self.embed_regions(features).relu()))
        mask = x.sum(dim=-1) != 0 if self.official_mask else (features != 0).any(dim=-1)
        _check_regions(mask)
        bias = _padding_bias(mask, x)
        if bias is not None:
            bias = F.pad(bias, (0, self.slots))  # the memory is always visible
        levels = []
        for layer in self.encoder:
            x = self._run(layer, x, bias)
            levels.append(x)
        return torch.stack(levels, dim=1), mask

    def decode(
        self,
        ids: Tensor,
        levels: Tensor,
        mask: Tensor,
        cache: Cache | None = None,
        captions: Tensor | None = None,
    ) -> tuple[Tensor, Cache]:
        """Return logits (R, Nt, V), and the cache for the call with the next tokens.

        Args:
            ids: (R, Nt), the caption tokens that are not in the cache. R is a multiple of B: the adjacent rows of an image,
                such as its beams, share its keys and values.
            levels, mask: from `encode`.
            cache: from the call with the preceding tokens.
            captions: (R,), the image of each row; None: all images have the same number of adjacent rows.

        Raises:
            UsageError: there are more tokens than positions, or the rows do not fit the images.
        """
        earlier = cache[0].shape[1] if cache else 0
        length = earlier + ids.shape[1]
        self._check_length(length, "ids")
        if ids.shape[0] % levels.shape[0] if captions is None else captions.shape != ids.shape[:1]:
            given = "no captions" if captions is None else f"captions of shape {tuple(captions.shape)}"
            raise UsageError(
                f"ids has {len(ids)} rows for {len(levels)} images and {given}; pass captions, the image of each row"
            )
        shown = ids != self.pad
        x = self.embed(ids) + self.positions[earlier:length]
        written = torch.cat([cache[0], shown], dim=1) if cache else shown
        bias, causal = _causal_bias(written, ids.shape[1], x)
        seen = mask if captions is None else mask[captions]
        level_bias = _padding_bias(seen.repeat_interleave(levels.shape[1], dim=0), x)
        updated = []
        for layer, past in zip(self.decoder, cache[1] if cache else [None] * len(self.decoder), strict=True):
            masks = {"bias": bias, "causal": causal, "level_bias": level_bias, "captions": captions, "past": past}
            x, present = self._run(layer, x, levels, shown.unsqueeze(-1).to(x.dtype), **masks)
            updated.append(present)
        return self.head(x), (written, tuple(updated))

    def generate(
        self,
        features: Tensor,
        *,
        num_beams: int = 5,
        length_penalty: float = 0.0,
        max_new_tokens: int = 20,
        early_stopping: bool = False,
    ) -> Tensor:
        """Return caption tokens (B, L) by beam search (`models.beam`): the start token, then the best caption, padded.

        Call `eval()` first. As in the paper, captions are not scored by their length.

        Raises:
            UsageError: an image has no regions, or there are more tokens than positions.
        """
        self._check_length(max_new_tokens, "max_new_tokens")
        with torch.no_grad():
            levels, mask = self.encode(features)
        return beam_search(
            self._decode_next,
            select,
            (levels, mask, None),
            start=torch.full((len(features), 1), self.start, device=features.device),
            end=self.end,
            pad=self.pad,
            max_new_tokens=max_new_tokens,
            num_beams=num_beams,
            length_penalty=length_penalty,
            early_stopping=early_stopping,
        )[0]

    def sample(self, features: Tensor, *, count: int, max_new_tokens: int = 20, draws: Tensor | None = None) -> Tensor:
        """Return tokens (B, count, L) of several captions of each image: beams, or random ones with `draws` (`sampling`).

        Raises:
            UsageError: an image has no regions, or there are more tokens than positions.
        """
        self._check_length(max_new_tokens, "max_new_tokens")
        with torch.no_grad():
            levels, mask = self.encode(features)
        images = torch.arange(len(features), device=features.device)
        return sample(
            self._decode_next,
            lambda state, rows: select(state, rows, images),
            (levels, mask, None),
            start=torch.full((len(features),), self.start, device=features.device),
            end=self.end,
            pad=self.pad,
            max_new_tokens=max_new_tokens,
            count=count,
            draws=draws,
        )

    def _decode_next(self, tokens: Tensor, state: Any) -> tuple[Tensor, Any]:
        levels, mask, cache = state
        logits, cache = self.decode(tokens, levels, mask, cache)
        return logits[:, -1], (levels, mask, cache)

    def _run(self, layer: nn.Module, *inputs: Any, **options: Any) -> Any:
        if self.grad_checkpointing and self.training:
            return checkpoint(layer, *inputs, use_reentrant=False, **options)
        return layer(*inputs, **options)

    def _check_length(self, length: int, what: str) -> None:
        if length > len(self.positions):
            raise UsageError(
                f"{what}: {length} tokens, but the model has {len(self.positions)} positions; pass fewer, or create the "
                f"model with --host-arg positions={length}"
            )


def select(state: Any, rows: Tensor, images: Tensor) -> Any:
    """Select rows and images of (levels, mask, cache), for `beam_search`."""
    levels, mask, (written, layers) = state
    if len(images) == len(levels):
        kept = tuple((own_k[rows], own_v[rows], k, v) for own_k, own_v, k, v in layers)
        return levels, mask, (written[rows], kept)
    count = levels.shape[1]
    layers = tuple(
        (own_k[rows], own_v[rows], _of_captions(k, images, count), _of_captions(v, images, count))
        for own_k, own_v, k, v in layers
    )
    return levels[images], mask[images], (written[rows], layers)


def checkpoint_filter_fn(state_dict: dict[str, Tensor], model: M2Transformer) -> dict[str, Tensor]:
    """Rename the tensors of the authors' weights; those of `model` stay as they are.

    The state of their decoder is dropped, and so is the position of padding tokens, which has no effect. Their table of
    positions is kept: their initialization overwrites the sinusoids.
    """
    if "decoder.word_emb.weight" not in state_dict:
        return state_dict
    renamed = {}
    for name, value in state_dict.items():
        if "running_" in name or name in ("enc_output", "mask_enc"):
            continue
        for pattern, ours in _OFFICIAL_NAMES:
            name = re.sub(pattern, ours, name)
        name = re.sub(r"\.gates\.(\d+)", lambda found: f".gates.{int(found[1]) - 1}", name)
        renamed[name] = value
    renamed["positions"] = renamed["positions"][1:]
    return renamed


#: pattern in names of the authors' weights -> ours, applied in this order
_OFFICIAL_NAMES = (
    (r"^encoder\.fc\.", "embed_regions."),
    (r"^encoder\.layer_norm\.", "encoder_norm."),
    (r"^decoder\.word_emb\.", "embed."),
    (r"^decoder\.pos_emb\.weight$", "positions"),
    (r"^decoder\.fc\.", "head."),
    (r"^(encoder|decoder)\.layers\.", r"\1."),
    (r"\.(mhatt|self_att)\.", ".self_attn."),
    (r"\.enc_att\.", ".cross_attn."),
    (r"\.attention\.fc_([qkv])\.", r".\1."),
    (r"\.attention\.fc_o\.", ".proj."),
    (r"\.attention\.m_([kv])$", r".memory_\1"),
    (r"_attn\.layer_norm\.", "_attn_norm."),
    (r"\.pwff\.layer_norm\.", ".mlp_norm."),
    (r"\.pwff\.", ".mlp."),
    (r"\.fc_alpha(\d+)\.", r".gates.\1."),
)


def _of_captions(tensor: Tensor, captions: Tensor, levels: int) -> Tensor:
    """Select images of a tensor (B L, ...)."""
    return tensor.unflatten(0, (-1, levels))[captions].flatten(0, 1)


def _check_regions(mask: Tensor) -> None:
    """Check that each image has a region, except in compiled programs.

    Raises:
        UsageError: an image has none.
    """
    if mask.is_meta or torch.compiler.is_compiling():
        return
    empty = (~mask.any(dim=1)).nonzero().flatten().tolist()
    if empty:
        raise UsageError(
            f"features: {len(empty)} of {len(mask)} images have no regions, the first at index {empty[0]}: all of their "
            "rows are zeros or hidden; leave these images out"
        )


def _padding_bias(mask: Tensor, x: Tensor) -> Tensor | None:
    """Return the additive mask (B, 1, 1, Nr); None if no region is hidden, except in compiled programs."""
    if mask.is_meta or (not torch.compiler.is_compiling() and bool(mask.all())):
        return None
    return additive_mask(mask[:, None, None], x)


def _causal_bias(written: Tensor, new: int, x: Tensor) -> tuple[Tensor | None, bool]:
    """Return the additive mask of the last `new` tokens of (R, Nt), and whether the kernel's causal mask is enough.

    Padding tokens at the end of a caption are hidden from all others by the causal mask.
    """
    length = written.shape[1]
    hides = not written.is_meta and (torch.compiler.is_compiling() or bool((written[:, 1:] & ~written[:, :-1]).any()))
    if not hides and (new == 1 or new == length):  # the kernel's causal mask requires as many keys as queries
        return None, new > 1
    visible = x.new_ones(new, length, dtype=torch.bool).tril(length - new)
    return additive_mask(visible & written[:, None, None] if hides else visible, x), False
