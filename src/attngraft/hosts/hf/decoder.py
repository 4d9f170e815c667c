"""Encoder-decoders of `transformers`: keys of other tokens than the queries, and keys kept from earlier calls."""

from __future__ import annotations

import inspect
from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import EncoderDecoderCache
from transformers.models.bert.modeling_bert import BertLayer

from attngraft.attention import Projected
from attngraft.errors import UsageError
from attngraft.hosts.hf.attention import ScalingSite
from attngraft.hosts.hf.family import TextFamily, random_ids

#: what the installed transformers calls the kept keys and values on their way through its modules: `cache` from 5.24 on
CACHE = "cache" if "cache" in inspect.signature(BertLayer.forward).parameters else "past_key_values"


def kept(past_key_values: Any, given: dict[str, Any]) -> Any:
    """Keys and values of earlier calls, by either name; the newer one is taken out of what else was `given`."""
    cache = given.pop("cache", None)
    return past_key_values if cache is None else cache


class CachingSite(ScalingSite):
    """Self or cross attention of an encoder or a decoder, with what `generate` keeps of it between calls.

    Kept are keys and values. Grafts get the queries of this call, their tokens, and the map over all keys, so those that
    mix no tokens give each token what they would give it in one call for all.
    """

    is_decoder: bool
    layer_idx: int

    def check(self, mask: Tensor | None) -> None:
        """In a decoder nothing stands that a mask could harm: what averages over tokens is refused for its causality."""
        if not self.is_decoder:
            super().check(mask)

    def attended(
        self, hidden_states: Tensor, attention_mask: Tensor | None = None, **kwargs: Any
    ) -> tuple[Tensor, Tensor | None, Projected]:
        kwargs["past_key_values"] = kept(kwargs.get("past_key_values"), kwargs)
        return super().attended(hidden_states, attention_mask, **kwargs)

    def project(
        self,
        x: Tensor,
        attention_mask: Tensor | None = None,
        key_value_states: Tensor | None = None,
        past_key_values: Any = None,
        **kwargs: Any,
    ) -> Projected:
        q = self.project_to(self.projections[0], x)
        k, v = self.keys_and_values(x, key_value_states, past_key_values)
        causal = self.causal(q, attention_mask, kwargs.get("is_causal"))
        if causal and k.shape[2] > q.shape[2]:  # a cache of fixed size at the first call: the rest of it is empty
            k, v = (each[:, :, : q.shape[2]] for each in (k, v))
        present = self.present(attention_mask)
        return Projected(q, k, v, x, bias=attention_mask, causal=causal, keys=key_value_states, present=present)

    def again(self, x: Tensor, attention_mask: Tensor | None = None, **kwargs: Any) -> Projected:
        """As `project`.

        Raises:
            UsageError: keys of earlier calls are kept, which other tokens than the host's have none of.
        """
        if kwargs.get("past_key_values") is not None:
            raise UsageError(
                f"a graft of {type(self).__name__} projects tokens of its own, and a cache has no keys of earlier ones; "
                "call the model with use_cache=False"
            )
        return self.project(x, attention_mask, **kwargs)

    def keys_and_values(self, x: Tensor, memory: Tensor | None, past: Any) -> tuple[Tensor, Tensor]:
        """Those of the encoder's tokens (`memory`) or of x, (B, H, Nk, d) each; `past` is the cache, and is brought up
        to date."""
        cross, split = memory is not None, isinstance(past, EncoderDecoderCache)
        cache = past
        if split:
            cache = past.cross_attention_cache if cross else past.self_attention_cache
        if cross and split and past.is_updated.get(self.layer_idx):
            kept = cache.layers[self.layer_idx]
            return kept.keys, kept.values
        tokens = x if memory is None else memory
        k, v = (self.project_to(name, tokens) for name in self.projections[1:])
        if past is not None:
            k, v = cache.update(k, v, self.layer_idx)
            if cross and split:
                past.is_updated[self.layer_idx] = True
        return k, v


class SequenceFamily(TextFamily):
    """Models that read one sequence and may write another."""

    heads = ("lm_head", "final_logits_bias", "classification_head", "classifier", "qa_outputs")

    def example_inputs(self, model: Any, *, batch: int) -> tuple[Tensor, ...]:
        ids = self._ended(model, random_ids(model, batch=batch))
        writes = any(path.endswith("decoder") for path, _ in model.named_modules())
        if not writes or hasattr(model, "classification_head"):  # which makes the decoder's input of the text itself
            return (ids,)
        most = getattr(model.config, "decoder_vocab_size", None) or model.config.vocab_size
        return ids, torch.ones_like(ids), ids[:, :-2].clamp(max=most - 1)

    def _ended(self, model: Any, ids: Tensor) -> Tensor:
        """Texts as a classifier reads them: the end stands once, at the end."""
        end, padding = model.config.eos_token_id, model.config.pad_token_id
        if end is None:
            return ids
        other = next(each for each in range(3) if each not in (end, padding))
        ids = ids.masked_fill(ids == end, other)
        ids[:, -1] = end
        return ids
