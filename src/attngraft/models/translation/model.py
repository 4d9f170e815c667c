"""The translation Transformer of the HV paper: an encoder-decoder with post-norm layers and one embedding matrix.

    x = norm(dropout(embed(ids) sqrt(C) + positions))                          of source and target, each with its own norm
    x = norm(x + attention(x));  x = norm(x + attention(x, memory));  x = norm(x + mlp(x))          cross-attention: decoder
    logits = x embed^T

Source: L. Yu, J. Zhang, "Horizontal and Vertical Attention in Transformers", 2022, and the code of its host (Vaswani et al.,
2017). Projections of attention have no biases. All matrices are Xavier-uniform, including the padding token's embedding.
"""

from collections.abc import Sequence
from typing import Any, Literal, cast

import torch
import torch.nn.functional as F
from timm.layers import Mlp
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from attngraft.errors import UsageError
from attngraft.models.beam import beam_search
from attngraft.models.t2t_vit import sinusoids

KeysValues = tuple[Tensor, Tensor]  #: each (B, H, N, d)
#: keys and values of self-attention (R, H, Nt, d), and of cross-attention (B, H, Ns, d), in each decoder layer
Cache = tuple[tuple[Tensor, Tensor, Tensor, Tensor], ...]
EPS = 1e-6
MASKED = -1e9  #: score of a hidden token; finite, so a query without visible keys attends to all keys equally


def additive_mask(visible: Tensor, like: Tensor) -> Tensor:
    """Return 0 for visible tokens and `MASKED` for hidden ones, or the minimum of the dtype of `like`."""
    hidden = max(MASKED, torch.finfo(like.dtype).min)
    return torch.zeros_like(visible, dtype=like.dtype).masked_fill(~visible, hidden)


class Attention(nn.Module):
    """Multi-head self-attention, or cross-attention to a memory, with projections without biases."""

    def __init__(self, dim: int, heads: int, *, dropout: float, cross: bool = False) -> None:
        super().__init__()
        self.num_heads, self.cross, self.scale = heads, cross, (dim // heads) ** -0.5
        self.q, self.k, self.v, self.proj = (nn.Linear(dim, dim, bias=False) for _ in range(4))
        self.attn_drop, self.proj_drop = nn.Dropout(dropout), nn.Dropout(dropout)

    def split(self, x: Tensor) -> Tensor:
        """Reshape (B, N, H d) to (B, H, N, d)."""
        return x.unflatten(-1, (self.num_heads, -1)).transpose(1, 2)

    def keys_values(self, x: Tensor, past: KeysValues | None) -> KeysValues:
        """Return keys and values of `x`, after those of earlier tokens; of a memory, `past` is returned unchanged."""
        if self.cross and past is not None:
            return past
        k, v = self.split(self.k(x)), self.split(self.v(x))
        return (k, v) if past is None else (torch.cat([past[0], k], dim=2), torch.cat([past[1], v], dim=2))

    def forward(
        self,
        x: Tensor,
        memory: Tensor | None = None,
        *,
        bias: Tensor | None = None,
        causal: bool = False,
        past: KeysValues | None = None,
    ) -> tuple[Tensor, KeysValues]:
        """Return tokens (B, N, C), and keys and values.

        Args:
            memory: tokens (B, Nk, C) of cross-attention.
            bias: additive mask, broadcastable to (B, H, N, Nk).
            causal: whether tokens attend to no later tokens, in addition to `bias`.
            past: keys and values of an earlier call.
        """
        k, v = self.keys_values(x if memory is None else memory, past)
        dropout = self.attn_drop.p if self.training else 0.0
        heads = F.scaled_dot_product_attention(
            self.split(self.q(x)), k, v, attn_mask=bias, dropout_p=dropout, is_causal=causal, scale=self.scale
        )
        return self.proj_drop(self.proj(heads.transpose(1, 2).flatten(2))), (k, v)


class EncoderLayer(nn.Module):
    """Self-attention and MLP."""

    def __init__(self, dim: int, heads: int, *, hidden: int, dropout: float) -> None:
        super().__init__()
        self.self_attn = Attention(dim, heads, dropout=dropout)
        self.self_attn_norm = nn.LayerNorm(dim, eps=EPS)
        self.mlp = Mlp(dim, hidden, act_layer=nn.ReLU, drop=(0.0, dropout))
        self.mlp_norm = nn.LayerNorm(dim, eps=EPS)

    def forward(self, x: Tensor, bias: Tensor | None = None) -> Tensor:
        """Transform (B, N, C); `bias` is the additive mask of padding tokens."""
        x = self.self_attn_norm(x + self.self_attn(x, bias=bias)[0])
        return cast(Tensor, self.mlp_norm(x + self.mlp(x)))


class DecoderLayer(nn.Module):
    """Causal self-attention, cross-attention and MLP."""

    def __init__(self, dim: int, heads: int, *, hidden: int, dropout: float) -> None:
        super().__init__()
        self.self_attn = Attention(dim, heads, dropout=dropout)
        self.self_attn_norm = nn.LayerNorm(dim, eps=EPS)
        self.cross_attn = Attention(dim, heads, dropout=dropout, cross=True)
        self.cross_attn_norm = nn.LayerNorm(dim, eps=EPS)
        self.mlp = Mlp(dim, hidden, act_layer=nn.ReLU, drop=(0.0, dropout))
        self.mlp_norm = nn.LayerNorm(dim, eps=EPS)

    def forward(
        self,
        x: Tensor,
        memory: Tensor,
        bias: Tensor | None = None,
        past: tuple[Tensor, Tensor, Tensor, Tensor] | None = None,
    ) -> tuple[Tensor, tuple[Tensor, Tensor, Tensor, Tensor]]:
        """Transform (R, N, C), with memory (B, Ns, C) and the additive mask of its padding tokens.

        R is a multiple of B: the adjacent rows of a sentence share its memory.

        Returns:
            The tokens, and the keys and values of both attentions.
        """
        own, other = (None, None) if past is None else (past[:2], past[2:])
        earlier, length = 0 if own is None else own[0].shape[2], x.shape[1]
        mask = None
        if earlier and length > 1:  # the kernel's causal mask requires as many keys as queries
            mask = additive_mask(x.new_ones(length, earlier + length, dtype=torch.bool).tril(earlier), x)
        attended, own = self.self_attn(x, bias=mask, causal=not earlier and length > 1, past=own)
        x = self.self_attn_norm(x + attended)
        queries = x.unflatten(0, (memory.shape[0], -1)).flatten(1, 2)
        attended, other = self.cross_attn(queries, memory, bias=bias, past=other)
        x = self.cross_attn_norm(x + attended.reshape(x.shape))
        return self.mlp_norm(x + self.mlp(x)), (*own, *other)


class TranslationTransformer(nn.Module):
    """Encoder-decoder from source and target tokens to logits of the next target tokens.

    The default arguments are the paper's: 48,978,432 parameters. Called as encoder-decoders of transformers are, as is
    `generate`. Target tokens attend to no later ones, so padding tokens at the end of a target need no mask.

    Args:
        vocab_size: V, tokens of the vocabulary shared by source and target.
        dim: C.
        depth: number of layers, or (encoder, decoder).
        heads: H.
        hidden: width of the MLPs.
        dropout: rate after the embeddings, of attention maps, and at the end of attention and MLP.
        scale: `emb` multiplies embeddings by C^0.5; `prj` multiplies logits by C^-0.5.
        positions: largest number of tokens.
        pad, start, end: ids of the special tokens.

    Raises:
        ValueError: sizes are inconsistent, or an option has an unknown value.
    """

    positions: Tensor  #: sinusoidal codes (positions, C)

    def __init__(
        self,
        *,
        vocab_size: int = 9521,
        dim: int = 512,
        depth: int | Sequence[int] = 6,
        heads: int = 8,
        hidden: int = 2048,
        dropout: float = 0.1,
        scale: Literal["emb", "prj"] = "emb",
        positions: int = 200,
        pad: int = 0,
        start: int = 2,
        end: int = 3,
    ) -> None:
        super().__init__()
        depths = (depth, depth) if isinstance(depth, int) else tuple(depth)
        if len(depths) != 2 or min(depths) < 1:
            raise ValueError(f"depth must be a number or two, of encoder and decoder layers, not {depth!r}")
        if heads < 1 or dim % heads:
            raise ValueError(f"dim={dim} is not divisible by heads={heads}")
        if scale not in ("emb", "prj"):
            raise ValueError(f"scale must be 'emb' or 'prj', not {scale!r}")
        for name, token in (("pad", pad), ("start", start), ("end", end)):
            if not 0 <= token < vocab_size:
                raise ValueError(f"{name}={token} is no token of a vocabulary with vocab_size={vocab_size}")
        self.start, self.end, self.pad = start, end, pad
        self.embed_scale = dim**0.5 if scale == "emb" else 1.0
        self.logit_scale = dim**-0.5 if scale == "prj" else 1.0
        self.embed = nn.Embedding(vocab_size, dim, padding_idx=pad)
        self.register_buffer("positions", sinusoids(positions, dim), persistent=False)
        self.embed_drop = nn.Dropout(dropout)
        self.encoder_norm, self.decoder_norm = nn.LayerNorm(dim, eps=EPS), nn.LayerNorm(dim, eps=EPS)
        sizes: dict[str, Any] = {"hidden": hidden, "dropout": dropout}
        self.encoder = nn.ModuleList(EncoderLayer(dim, heads, **sizes) for _ in range(depths[0]))
        self.decoder = nn.ModuleList(DecoderLayer(dim, heads, **sizes) for _ in range(depths[1]))
        self.head = nn.Linear(dim, vocab_size, bias=False)
        self.head.weight = self.embed.weight
        for parameter in self.parameters():
            if parameter.ndim > 1:
                nn.init.xavier_uniform_(parameter)
        self.grad_checkpointing = False
        #: any vocabulary fits: the task passes its size and special tokens as arguments
        self.attngraft_input = {
            "kind": "text",
            "tokenizer": None,
            "max_length": positions,
            "vocab_size": None,
            "pad": pad,
            "decoder": {"start": start, "end": end, "max_length": positions, "forced": None},
        }

    def set_grad_checkpointing(self, enable: bool = True) -> None:
        """Enable activation checkpointing of the layers."""
        self.grad_checkpointing = enable

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor | None = None, decoder_input_ids: Tensor | None = None
    ) -> Tensor:
        """Return logits (B, Nt, V).

        Args:
            input_ids: source tokens (B, Ns).
            attention_mask: (B, Ns), 0 at padding tokens; None: there are none.
            decoder_input_ids: target tokens (B, Nt), beginning with the start token.

        Raises:
            UsageError: `decoder_input_ids` is missing, or there are more tokens than positions.
        """
        if decoder_input_ids is None:
            raise UsageError("decoder_input_ids is missing; pass the target tokens, or call generate()")
        return self.decode(decoder_input_ids, self.encode(input_ids, attention_mask), attention_mask)[0]

    def encode(self, input_ids: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        """Return the encoder's tokens (B, Ns, C), the memory of `decode`."""
        x = self.encoder_norm(self._embedded(input_ids, "source"))
        bias = self._padding_bias(attention_mask, x)
        for layer in self.encoder:
            x = self._run(layer, x, bias)
        return cast(Tensor, x)

    def decode(
        self,
        decoder_input_ids: Tensor,
        memory: Tensor,
        attention_mask: Tensor | None = None,
        cache: Cache | None = None,
    ) -> tuple[Tensor, Cache]:
        """Return logits (R, Nt, V), and the cache for the call with the next tokens.

        Args:
            decoder_input_ids: (R, Nt), the target tokens that are not in the cache. R is a multiple of B: the adjacent
                rows of a sentence, such as its beams, share its memory.
            memory: (B, Ns, C), from `encode`.
            attention_mask: as in `forward`.
            cache: from the call with the preceding tokens. Its first two tensors per layer have R rows, the others B.
        """
        earlier = cache[0][0].shape[2] if cache else 0
        x = self.decoder_norm(self._embedded(decoder_input_ids, "target", earlier))
        bias = self._padding_bias(attention_mask, x)
        updated = []
        for layer, past in zip(self.decoder, cache or [None] * len(self.decoder), strict=True):
            x, present = self._run(layer, x, memory, bias, past)
            updated.append(present)
        return self.head(x * self.logit_scale), tuple(updated)

    def generate(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        *,
        num_beams: int = 1,
        length_penalty: float = 1.0,
        max_new_tokens: int | None = None,
        early_stopping: bool = False,
    ) -> Tensor:
        """Return target tokens (B, L) by beam search (`models.beam`): the start token, then the best sequence, padded.

        Call `eval()` first. `max_new_tokens` is the number of positions by default.

        Raises:
            UsageError: there are more tokens than positions.
        """
        limit = len(self.positions) if max_new_tokens is None else max_new_tokens
        self._check_length(limit, "max_new_tokens")

        def step(tokens: Tensor, state: Any) -> tuple[Tensor, Any]:
            memory, mask, cache = state
            logits, cache = self.decode(tokens, memory, mask, cache)
            return logits[:, -1], (memory, mask, cache)

        with torch.no_grad():
            encoded = self.encode(input_ids, attention_mask)
        return beam_search(
            step,
            select,
            (encoded, attention_mask, None),
            start=input_ids.new_full((len(input_ids), 1), self.start),
            end=self.end,
            pad=self.pad,
            max_new_tokens=limit,
            num_beams=num_beams,
            length_penalty=length_penalty,
            early_stopping=early_stopping,
        )[0]

    def _run(self, layer: nn.Module, *inputs: Any) -> Any:
        if self.grad_checkpointing and self.training:
            return checkpoint(layer, *inputs, use_reentrant=False)
        return layer(*inputs)

    def _embedded(self, ids: Tensor, what: str, earlier: int = 0) -> Tensor:
        length = earlier + ids.shape[1]
        self._check_length(length, what)
        return cast(Tensor, self.embed_drop(self.embed(ids) * self.embed_scale + self.positions[earlier:length]))

    def _check_length(self, length: int, what: str) -> None:
        if length > len(self.positions):
            raise UsageError(
                f"{what}: {length} tokens, but the model has {len(self.positions)} positions; pass fewer, or create the "
                f"model with --host-arg positions={length}"
            )

    def _padding_bias(self, mask: Tensor | None, x: Tensor) -> Tensor | None:
        """Return the additive mask (B, 1, 1, Ns); None if no token is hidden, except in compiled programs."""
        if mask is None or mask.is_meta or (not torch.compiler.is_compiling() and bool(mask.all())):
            return None
        return additive_mask(mask.bool()[:, None, None], x)


def select(state: Any, rows: Tensor, sentences: Tensor) -> Any:
    """Select rows and sentences of (memory, attention mask, cache), for `beam_search`."""
    memory, mask, cache = state

    def kept(tensor: Tensor) -> Tensor:
        return tensor if len(sentences) == len(memory) else tensor[sentences]

    layers = tuple((own_k[rows], own_v[rows], kept(k), kept(v)) for own_k, own_v, k, v in cache)
    return kept(memory), None if mask is None else kept(mask), layers
