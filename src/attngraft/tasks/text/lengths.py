"""Model calls with texts of different lengths: padded, or one length at a time without padding masks."""

import inspect
from collections.abc import Callable, Mapping
from typing import Any, cast

import torch
from torch import Tensor, nn

from attngraft.attention import Graft, GraftedModule
from attngraft.tasks.task import unwrapped


def call_model(model: nn.Module, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
    """Return the logits (B, classes) of padded texts (B, L); see `call_padded`."""
    inputs = {"input_ids": input_ids, "attention_mask": attention_mask}
    return call_padded(model, inputs, lambda called, given: logits_of(called(**given)))


def call_padded(
    model: nn.Module, inputs: Mapping[str, Tensor], call: Callable[[nn.Module, Mapping[str, Tensor]], Tensor]
) -> Tensor:
    """Return `call(model, inputs)`, whose rows belong to those of the inputs, without masks where nothing is padded.

    A model that cannot mask padding is called once for every length, with the texts of that length. Only the first of
    these calls goes through the wrappers of distributed training: DDP synchronizes buffers in each call, so all processes
    must make the same number of calls. The gradients of all calls are synchronized.

    Args:
        inputs: `input_ids` and `attention_mask` (B, L), padded at the end, and others (B, ...), which are not cut.
    """
    lengths = inputs["attention_mask"].sum(1)
    unmasked = {name: value for name, value in inputs.items() if name != "attention_mask"}
    if int(lengths.min()) == unmasked["input_ids"].shape[1]:
        return call(model, unmasked)
    if takes_padding(model):
        return call(model, inputs)
    groups = [(lengths == length).nonzero()[:, 0] for length in lengths.unique()]
    called = [model, *[unwrapped(model)] * (len(groups) - 1)]
    found = []
    for each, rows in zip(called, groups, strict=True):
        of_length = {name: value[rows] for name, value in unmasked.items()}
        of_length["input_ids"] = of_length["input_ids"][:, : int(lengths[rows[0]])]
        found.append(call(each, of_length))
    return torch.cat(found)[torch.cat(groups).argsort()]


def takes_padding(model: nn.Module) -> bool:
    """Return whether a model and its grafts can mask padding (`attention_mask`)."""
    plain = unwrapped(model)
    grafts = [
        cast(Graft, graft)
        for each in plain.modules()
        if isinstance(each, GraftedModule)
        for graft in each.grafts.values()
    ]
    # grafts on attention weights need no padding support, because attention masks padding
    refused = any("padded" in graft.refuses and graft.hook_point != "mix" for graft in grafts)
    return not refused and "attention_mask" in inspect.signature(plain.forward).parameters


def logits_of(outputs: Any) -> Any:
    """Return the logits of a transformers output; other outputs unchanged."""
    return getattr(outputs, "logits", outputs)
