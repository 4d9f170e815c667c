"""Grafted models under DistributedDataParallel: two processes have the gradients of one with the whole batch."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import attngraft
from tests.contract.timm import test_vit as vit
from tests.training.processes import finish, run_together

SPEC = "bisa(learned=true)@blocks.1 + horizontal + vertical + cb_s(init=0.5) + uniform_heads + cb(at=attention)"


def grafted() -> nn.Module:
    model = vit.TestViT().make_again().double().train()
    attngraft.graft(model, SPEC)
    return model


def gradients_of(model: nn.Module, images: Tensor) -> dict[str, Tensor]:
    model(images).square().mean().backward()
    found = {name.removeprefix("module."): p.grad for name, p in model.named_parameters()}
    return {name: gradient for name, gradient in found.items() if gradient is not None}


def whole_batch() -> Tensor:
    return torch.linspace(-1, 1, 4 * 3 * 16 * 16, dtype=torch.float64).reshape(4, 3, 16, 16)


def half_of_the_batch(folder: str) -> None:
    """What each process does: the first writes the gradients that both agreed on."""
    torch.distributed.init_process_group("gloo")
    rank = torch.distributed.get_rank()
    model = nn.parallel.DistributedDataParallel(grafted())
    found = gradients_of(model, whole_batch()[2 * rank : 2 * rank + 2])
    if rank == 0:
        torch.save(found, Path(folder) / "gradients.pt")


@pytest.mark.slow
def test_two_processes_have_the_gradients_of_one(tmp_path: Path) -> None:
    codes = [finish(process) for process in run_together(half_of_the_batch, str(tmp_path), processes=2)]
    assert codes == [0, 0]
    found = torch.load(tmp_path / "gradients.pt", weights_only=True)
    expected = gradients_of(grafted(), whole_batch())
    assert found.keys() == expected.keys()
    for name, gradient in expected.items():
        torch.testing.assert_close(found[name], gradient, rtol=1e-9, atol=1e-12)
