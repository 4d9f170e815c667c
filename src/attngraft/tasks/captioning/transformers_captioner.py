"""Captioners of transformers: an image encoder, and a text decoder with cross-attention."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import torch
from torch import Tensor, nn

from attngraft.hosts import HostedModel
from attngraft.models.captioning.sampling import sample
from attngraft.tasks.images.inputs import HostInput

KIND = "captioned images"  #: of the input of such a host (`models.host_input`)


def image_input(host: Mapping[str, Any]) -> HostInput:
    """Return the images of such a host's input."""
    return HostInput.from_model({**host, "kind": "images"})


class TransformersCaptioner(HostedModel):
    """`VisionEncoderDecoderModel` with the calls of a captioner; each image is encoded once for all of its captions.

    Args:
        host: the model, grafted or not.
        given: the host's input (`models.host_input`).
    """

    def __init__(self, host: nn.Module, given: Mapping[str, Any]) -> None:
        super().__init__(host)
        self._images, self._pad, self._decoder = image_input(given), given["pad"], given["decoder"]
        pooler = getattr(host.encoder, "pooler", None)
        if isinstance(pooler, nn.Module):  # has no effect on the captions
            pooler.requires_grad_(False)

    def forward(self, images: Tensor, ids: Tensor, captions: Tensor | None = None) -> Tensor:
        """Return logits (R, Nt, V).

        Args:
            images: uint8 (B, C, H, W).
            ids: caption tokens (R, Nt), beginning with the start token, padded after the end token.
            captions: (R,), the image of each caption; None: adjacent rows are captions of the same image.
        """
        encoded = self._encode(images)
        if captions is None:
            encoded = encoded.repeat_interleave(ids.shape[0] // images.shape[0], dim=0)
        else:
            encoded = encoded[captions]
        return self._decode(encoded, ids, use_cache=False).logits

    def generate(self, images: Tensor, **options: Any) -> Tensor:
        """Return caption tokens (B, L) with the start token, by the host's `generate`; `options` are passed to it."""
        tokens: Tensor = cast(Any, self.host).generate(
            self._images.normalize(images), do_sample=False, early_stopping=False, **options
        )
        return tokens

    def sample(self, images: Tensor, *, count: int, max_new_tokens: int = 20, draws: Tensor | None = None) -> Tensor:
        """Return tokens (B, count, L) of several captions of each image, see `models.captioning.sampling`."""
        from attngraft.hosts.hf.decoder import CACHE  # imports transformers

        def decode_next(tokens: Tensor, state: Any) -> tuple[Tensor, Any]:
            encoded, cache = state
            found = self._decode(encoded, tokens, use_cache=True, **{CACHE: cache})
            return found.logits[:, -1], (encoded, found[CACHE])

        def reorder(state: Any, rows: Tensor) -> Any:  # within the rows of an image
            state[1].reorder_cache(rows)
            return state

        with torch.no_grad():
            encoded = self._encode(images).repeat_interleave(count, dim=0)
        return sample(
            decode_next,
            reorder,
            (encoded, None),
            start=torch.full((len(images),), self._decoder["start"], device=images.device),
            end=self._decoder["end"],
            pad=self._pad,
            max_new_tokens=max_new_tokens,
            count=count,
            draws=draws,
        )

    def _encode(self, images: Tensor) -> Tensor:
        """Return the encoder's output (B, N, C)."""
        encoded: Tensor = cast(Any, self.host).encoder(self._images.normalize(images))[0]
        return encoded

    def _decode(self, encoded: Tensor, ids: Tensor, **options: Any) -> Any:
        return self.host(encoder_outputs=(encoded,), decoder_input_ids=ids, return_dict=True, **options)
