"""Dry run of grafting."""

import copy
import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from attngraft.errors import HostError
from attngraft.grafting.apply import install
from attngraft.grafting.cost import describe
from attngraft.grafting.placement import Placement, place, with_options
from attngraft.grafting.report import Change, GraftReport
from attngraft.grafting.spec import Specification
from attngraft.hosts import find_host, forget
from attngraft.suggest import one_line


def plan(model: nn.Module, spec: Specification, *, measure: bool = False, **options: Any) -> GraftReport:
    """Return the report of `graft(model, spec)` without changing the model.

    Parameters and MACs are computed from shapes, on the meta device. With `measure=True` a copy of the model is grafted, and
    both run in evaluation mode on a random batch of two; the global generators (Python's, numpy's, torch's) and the model's
    buffers and modes are not changed.

    Raises:
        GraftSpecError, HostError: see `graft`.
    """
    host = find_host(model)
    parsed = with_options(spec, options)
    placements = place(host, parsed)
    report = describe(host, placements, parsed)
    return replace(report, change=_measure(model, placements)) if measure and placements else report


def _measure(model: nn.Module, placements: list[Placement]) -> Change:
    forget(model)
    with _restored_generators(), torch.no_grad():
        host = find_host(plain := copy.deepcopy(model).eval())
        inputs = host.adapter.example_inputs(host.core, batch=2)
        try:
            before = _tensors(plain(*inputs))
        except Exception as error:  # of the model's own code
            shapes = ", ".join(str(tuple(each.shape)) for each in _tensors(inputs))
            raise HostError(
                f"the model fails without any graft on inputs of shape {shapes} ({one_line(error)}); correct its arguments"
            ) from error
        install(find_host(plain), placements)
        after = _tensors(plain.eval()(*inputs))
    for outputs, which, remedy in (
        (before, "without any graft", "the model's arguments or weights"),
        (after, "with the grafts", "the options of the grafts"),
    ):
        if not all(each.isfinite().all() for each in outputs):
            raise HostError(f"the model's outputs {which} are not finite; correct {remedy}")
    difference = torch.cat([(b - a).flatten().double() for a, b in zip(before, after, strict=True)])
    norm = torch.cat([a.flatten().double() for a in before]).norm()
    return Change(
        mean_absolute=difference.abs().mean().item(),
        max_absolute=difference.abs().max().item(),
        relative=(difference.norm() / norm.clamp_min(1e-30)).item(),
    )


@contextmanager
def _restored_generators() -> Iterator[None]:
    """Restore the generators of Python, numpy and torch (CUDA's if initialized) after the block."""
    devices = list(range(torch.cuda.device_count())) if torch.cuda.is_initialized() else []
    states = random.getstate(), np.random.get_state()
    with torch.random.fork_rng(devices=devices):
        try:
            yield
        finally:
            random.setstate(states[0])
            np.random.set_state(states[1])


def _tensors(outputs: Any) -> list[Tensor]:
    """Return all tensors of a nested output."""
    return [leaf for leaf in tree_leaves(outputs) if isinstance(leaf, Tensor)]
