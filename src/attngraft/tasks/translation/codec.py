"""Translation of raw sentences by a trained model, without its data."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attngraft.errors import DataError
from attngraft.tasks.codec import Codec, TextInput
from attngraft.tasks.task import unwrapped
from attngraft.tasks.text.lengths import call_padded, logits_of
from attngraft.tasks.text.tokenizer import pad
from attngraft.tasks.translation.config import DecodingConfig
from attngraft.tasks.translation.source import clean
from attngraft.tasks.translation.trained import PairTokenizer

_LENGTH = 16  #: tokens of example sources and targets


class TranslationCodec(Codec):
    """Sentences as inputs, and their translations as outputs.

    Args:
        tokenizer: tokenizer of the model's sources and targets.
        decoding: settings of beam search.
        max_length: largest number of tokens of a source; None: unlimited.
    """

    lines = True

    def __init__(self, tokenizer: PairTokenizer, decoding: DecodingConfig, *, max_length: int | None) -> None:
        self.tokenizer, self.decoding, self.max_length = tokenizer, decoding, max_length

    def example_inputs(self, batch_size: int) -> tuple[tuple[Any, ...], Mapping[str, Any]]:
        """Return random source and target tokens (B, 16)."""
        length = min(self.max_length or _LENGTH, _LENGTH)
        source, target = torch.randint(self.tokenizer.vocab_size, (2, batch_size, length))
        return (), {"input_ids": source, "attention_mask": torch.ones_like(source), "decoder_input_ids": target}

    def check(self, raw: str) -> None:
        self._ids([raw])

    def encode(self, inputs: Sequence[str]) -> tuple[tuple[Any, ...], Mapping[str, Any]]:
        """Return `input_ids` and `attention_mask` (B, N) of sentences.

        Raises:
            DataError: a sentence has more tokens than the model has positions.
        """
        return (), pad(self._ids(inputs), value=self.tokenizer.pad)

    def _ids(self, texts: Sequence[str]) -> list[np.ndarray]:
        found = self.tokenizer.encode_source([clean(text) for text in texts])
        longest = max(map(len, found))
        if self.max_length is not None and longest > self.max_length:
            raise DataError(
                f"the sentence has {longest} tokens, but the model has {self.max_length} positions; divide the sentence"
            )
        return found

    def run(self, model: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Tensor:
        """Return the tokens of the best translations found by beam search."""
        return self.generate(model, kwargs)

    def generate(self, model: nn.Module, inputs: Mapping[str, Tensor], *, greedy: bool = False) -> Tensor:
        """Return the tokens (B, L) of translations, with the start token, padded.

        Args:
            inputs: `input_ids` and `attention_mask`.
            greedy: decode greedily instead of by beam search.
        """
        options: dict[str, Any] = {"num_beams": 1, "max_new_tokens": self.decoding.max_length}
        if self.decoding.beams > 1 and not greedy:
            penalty = self.decoding.length_penalty
            options |= {"num_beams": self.decoding.beams, "length_penalty": penalty, "early_stopping": True}
        if self.tokenizer.forced is not None:
            options["forced_bos_token_id"] = self.tokenizer.forced

        def call(called: Any, given: Mapping[str, Tensor]) -> Tensor:
            ids = called.generate(**given, **options)
            return F.pad(ids, (0, self.decoding.max_length + 1 - ids.shape[1]), value=self.tokenizer.pad)

        return call_padded(unwrapped(model), inputs, call)

    def text_input(self, model: nn.Module, raw: str, target: str | None = None) -> TextInput:
        source, tokenizer = torch.from_numpy(self._ids([raw])[0]).long()[None], self.tokenizer
        device = next(model.parameters()).device
        if target is None:
            with torch.no_grad():
                inputs = {"input_ids": source.to(device), "attention_mask": torch.ones_like(source, device=device)}
                row = self.generate(model, inputs)[0, 1:].tolist()
            output = row[: row.index(tokenizer.end) + 1] if tokenizer.end in row else row
        else:
            output = tokenizer.encode_target([clean(target)])[0].tolist()
        given = [tokenizer.start, *output[:-1]]
        return TextInput(
            kwargs={"input_ids": source, "decoder_input_ids": torch.tensor([given])},
            source=tokenizer.tokens(source[0].tolist()),
            inputs=tokenizer.tokens(given),
            target=tokenizer.tokens(output),
        )

    def decode(self, outputs: Any) -> list[str]:
        """Return the translations of tokens (B, L), or of the most probable tokens of logits (B, L, V)."""
        ids: Tensor = logits_of(outputs)
        rows = (F.pad(ids.argmax(2), (1, 0)) if ids.ndim == 3 else ids)[:, 1:].tolist()
        end = self.tokenizer.end
        return [self.tokenizer.decode(row[: row.index(end)] if end in row else row) for row in rows]
