"""Encoder-decoders of `transformers`: cross-attention, and caches of keys and values."""

import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import EncoderDecoderCache
from transformers.models.bert.modeling_bert import BertLayer

from attngraft.attention import Projected
from attngraft.errors import UsageError
from attngraft.hosts.hf.attention import ScalingSite
from attngraft.hosts.hf.family import TextFamily, random_ids

#: argument name of cached keys and values in the installed transformers: `cache` from 5.24 on
CACHE = "cache" if "cache" in inspect.signature(BertLayer.forward).parameters else "past_key_values"


def pop_cache(past_key_values: Any, kwargs: dict[str, Any]) -> Any:
    """Return the cache, passed as `past_key_values` or as `cache`; `cache` is removed from `kwargs`."""
    cache = kwargs.pop("cache", None)
    return past_key_values if cache is None else cache


class CachingSite(ScalingSite):
    """Self- or cross-attention of an encoder or decoder, with a cache of keys and values for `generate`.

    Grafts receive the tokens and queries of the current call, and the map over all keys. Grafts that do not mix tokens
    therefore give the same results as a single call with all tokens.
    """

    is_decoder: bool
    layer_idx: int

    def check_mask(self, mask: Tensor | None) -> None:
        """Check the mask in encoders; decoders are causal and refuse grafts that average over tokens anyway."""
        if not self.is_decoder:
            super().check_mask(mask)

    def run_attention(
        self, hidden_states: Tensor, attention_mask: Tensor | None = None, **kwargs: Any
    ) -> tuple[Tensor, Tensor | None, Projected]:
        kwargs["past_key_values"] = pop_cache(kwargs.get("past_key_values"), kwargs)
        return super().run_attention(hidden_states, attention_mask, **kwargs)

    def project(
        self,
        x: Tensor,
        attention_mask: Tensor | None = None,
        key_value_states: Tensor | None = None,
        past_key_values: Any = None,
        **kwargs: Any,
    ) -> Projected:
        q, tokens = self.project_heads(self.projections[0], x), x if key_value_states is None else key_value_states

        def project_keys() -> tuple[Tensor, ...]:
            return tuple(self.project_heads(name, tokens) for name in self.projections[1:])

        return self.with_keys(x, q, project_keys, attention_mask, key_value_states, past_key_values, **kwargs)

    def with_keys(
        self,
        x: Tensor,
        q: Tensor,
        project_keys: Callable[[], tuple[Tensor, ...]],
        mask: Tensor | None,
        memory: Tensor | None,
        past: Any,
        *,
        is_causal: bool | None = None,
        **kwargs: Any,
    ) -> Projected:
        """Return the projections with keys and values from `project_keys` and the cache.

        Args:
            project_keys: function that returns k and v of `x`, or of the encoder's tokens `memory`.
        """
        k, v = self.keys_and_values(project_keys, past, cross=memory is not None)
        causal = self.kernel_is_causal(q, mask, is_causal)
        if causal and k.shape[2] > q.shape[2]:  # first call with a cache of fixed size, whose other entries are empty
            k, v = (each[:, :, : q.shape[2]] for each in (k, v))
        return Projected(q, k, v, x, bias=mask, causal=causal, keys=memory, present=self.present(mask))

    def project_again(self, x: Tensor, attention_mask: Tensor | None = None, **kwargs: Any) -> Projected:
        """Project tokens that a mix graft passes instead of the input.

        Raises:
            UsageError: a cache is used, which contains only keys of the host's tokens.
        """
        if kwargs.get("past_key_values") is not None:
            raise UsageError(
                f"a graft of {type(self).__name__} projects other tokens, for which the cache has no earlier keys; call the "
                "model with use_cache=False"
            )
        return self.project(x, attention_mask, **kwargs)

    def keys_and_values(
        self, project_keys: Callable[[], tuple[Tensor, ...]], past: Any, *, cross: bool
    ) -> tuple[Tensor, Tensor]:
        """Return keys and values (B, H, Nk, d), including those of a cache `past`, which is updated."""
        split = isinstance(past, EncoderDecoderCache)
        cache = past
        if split:
            cache = past.cross_attention_cache if cross else past.self_attention_cache
        if cross and split and past.is_updated.get(self.layer_idx):
            layer = cache.layers[self.layer_idx]
            return layer.keys, layer.values
        k, v = project_keys()
        if past is not None:
            k, v = cache.update(k, v, self.layer_idx)
            if cross and split:
                past.is_updated[self.layer_idx] = True
        return k, v


class SequenceFamily(TextFamily):
    """Adapter of encoder-decoders, and of encoders without a decoder."""

    head_names = ("lm_head", "final_logits_bias", "classification_head", "classifier", "qa_outputs")

    def example_inputs(self, model: Any, *, batch: int) -> tuple[Tensor, ...]:
        ids, end = random_ids(model, batch=batch), model.config.eos_token_id
        if end is not None:  # classifiers require exactly one end token, as the last token
            other = next(each for each in range(3) if each not in (end, model.config.pad_token_id))
            ids = ids.masked_fill(ids == end, other)
            ids[:, -1] = end
        decodes = any(path.endswith("decoder") for path, _ in model.named_modules())
        if not decodes or hasattr(model, "classification_head"):  # classifiers derive the decoder's input from `ids`
            return (ids,)
        vocabulary = getattr(model.config, "decoder_vocab_size", None) or model.config.vocab_size
        return ids, torch.ones_like(ids), ids[:, :-2].clamp(max=vocabulary - 1)
