"""Shared parts of the benchmarks of grafts: a grafted copy of a host, and training steps to time."""

from __future__ import annotations

import copy
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.optim.swa_utils import update_bn

import attngraft
from attngraft.bench.result import check_outputs
from attngraft.dispatch import reference_backend


def grafted(host: nn.Module, spec: str) -> nn.Module:
    """Copy `host` with grafts whose values are random and large enough that outputs depend on each of them.

    Matrices preserve the scale of their inputs, biases and scales are about 0.1, norms keep their initial values. Norms of
    weight 0, with which LeViT's branches start, are set to 1, because otherwise no output would depend on the layers before
    them.
    """
    model = copy.deepcopy(host)
    attngraft.graft(model, spec)
    norms = [module for module in model.modules() if "Norm" in type(module).__name__]
    of_norms = {parameter for norm in norms for parameter in norm.parameters()}
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if ".grafts." in name and parameter not in of_norms:
                parameter.normal_(std=parameter[0].numel() ** -0.5 if parameter.ndim > 1 else 0.1)
        for norm in norms:
            weight = getattr(norm, "weight", None)
            if weight is not None and not weight.any():
                weight.fill_(1)
    return model


def check_against_reference(model: nn.Module, images: Tensor, *, what: str) -> None:
    """Check that the model's output equals that of the reference backend.

    Batch norms of a convolutional stem get the statistics of these images. With their initial statistics, a LeViT's tokens
    are close to 0, and an inverse branch, which multiplies three of them, would not affect the output.
    """
    if isinstance(stem := getattr(model, "stem", None), nn.Module):
        update_bn([images], stem)
    with torch.no_grad():
        output = model.eval()(images)
        with reference_backend():
            check_outputs(output, model(images), what=what, rtol=1e-4, atol=1e-5)


def training_step(model: nn.Module, images: Tensor, labels: Tensor) -> Callable[[], object]:
    """Return a function that makes one optimizer step on a fixed batch."""
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, weight_decay=0.05)

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        nn.functional.cross_entropy(model(images), labels).backward()
        optimizer.step()

    return step
