"""Attention between the tokens of one text or image, and of its translation or caption, quantized for the explorer page."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import torch
from accelerate.utils import send_to_device
from torch import nn

from attngraft.analysis.explorer import MAPS, QuantizedTensor
from attngraft.attention import AttentionGeometry
from attngraft.errors import RecordError
from attngraft.hosts import find_host
from attngraft.recording.record import record
from attngraft.tasks.codec import TextInput
from attngraft.timing.macs import evaluating

Side = Literal["source", "target", "inputs", "keys"]  #: fields of `TextInput`


@dataclass(frozen=True, kw_only=True)
class TextLayer:
    """Attention map of one layer on one text or image."""

    #: site, followed by a colon and the tensor's name unless it is the attention map, and by the level of cross-attention to
    #: several levels of an encoder
    site: str
    rows: Side  #: tokens of the queries; a decoder's are named by the tokens that they predict
    columns: Side  #: tokens of the keys
    weights: QuantizedTensor  #: (H, Nq, Nk)


@dataclass(frozen=True, kw_only=True)
class TextAttention:
    """Attention of one model on one text or image."""

    tokens: TextInput
    layers: list[TextLayer]
    skipped: dict[str, str]  #: attention sites that cannot be shown, with the reason
    outputs: Any  #: returned by the model


def text_attention(model: nn.Module, tokens: TextInput, *, sites: str = "all") -> TextAttention:
    """Compute the attention of `model` on one text or image.

    The model is run once in eval mode, and is not modified.

    Raises:
        RecordError: no chosen site has an attention map of these tokens, or values are not finite.
        HostError, GraftSpecError: see `attngraft.record`.
    """
    model = getattr(model, "_orig_mod", model)  # unwrap torch.compile's module
    geometries = {site.path: site.geometry for site in find_host(model).sites}
    device = next(model.parameters(), torch.zeros(())).device
    with evaluating(model), torch.no_grad(), record(model, sites=sites) as recording:
        outputs = model(**send_to_device(dict(tokens.kwargs), device))
    layers, skipped = [], {}
    for site in recording:
        geometry = geometries[site]
        if not isinstance(geometry, AttentionGeometry):
            continue
        decodes = bool(tokens.inputs) and geometry.causal
        rows: Side = "target" if decodes else "source"
        columns: Side = "source"
        if not geometry.cross:
            columns = "inputs" if decodes else "keys" if tokens.keys else "source"
        shape = len(getattr(tokens, rows)), len(getattr(tokens, columns))
        for name, tensor in recording[site].items():
            if name.rpartition(".")[2] not in MAPS:
                continue
            title = f"{site}: {name}" if "." in name else site
            levels = geometry.sequences  # of an encoder, which are the sequences of cross-attention
            if tensor.ndim != 4 or len(tensor) != levels or tensor.shape[2:] != shape:
                skipped[title] = (
                    f"the shape {tuple(tensor.shape)} of its map does not fit the {shape[0]} x {shape[1]} tokens"
                )
                continue
            for level, weights in enumerate(tensor, 1):
                own = title if levels == 1 else f"{title}{',' if '.' in name else ':'} level {level}"
                layers.append(TextLayer(site=own, rows=rows, columns=columns, weights=QuantizedTensor.of(weights, own)))
    if not layers:
        why = "; ".join(skipped.values()) or "none of them is an attention module"
        raise RecordError(f"no chosen site has an attention map of the tokens: {why}")
    return TextAttention(tokens=tokens, layers=layers, skipped=skipped, outputs=outputs)
