"""What the benchmarks of grafts share: a grafted copy of a host, and the work that is timed."""

from __future__ import annotations

import copy
from collections.abc import Callable

import torch
from torch import Tensor, nn

import attngraft
from attngraft.bench.gate import check_outputs, reference_backend


def grafted(host: nn.Module, spec: str) -> nn.Module:
    """A copy of `host` with grafts, their values away from any identity."""
    model = copy.deepcopy(host)
    attngraft.graft(model, spec)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if ".grafts." in name:
                parameter.normal_(std=0.02)
    return model


def check_against_reference(model: nn.Module, images: Tensor, *, what: str) -> None:
    """The gate: the model must put out what it does with the equations themselves."""
    with torch.no_grad():
        output = model.eval()(images)
        with reference_backend():
            check_outputs(output, model(images), what=what, rtol=1e-4, atol=1e-5)


def training_step(model: nn.Module, images: Tensor, labels: Tensor) -> Callable[[], object]:
    """Work: one optimizer step on a fixed batch."""
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, weight_decay=0.05)

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        nn.functional.cross_entropy(model(images), labels).backward()
        optimizer.step()

    return step
