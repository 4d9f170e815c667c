"""torch.compile(fullgraph=True) and torch.export: every graft on a ViT, every host with several."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import attngraft
from attngraft.hosts import find_host
from tests.contract.tester import GRAFTS, SPACE, SPACE_FORMS, HostContract
from tests.contract.timm import test_levit as levit
from tests.contract.timm import test_sam as sam
from tests.contract.timm import test_swin as swin
from tests.contract.timm import test_vit as vit
from tests.slow import slow_but

pytestmark = pytest.mark.oldest

# named through their modules, so that pytest does not collect the contract a second time here
HOSTS = [
    vit.TestViT,
    vit.TestViTWithRegisters,
    vit.TestDistilledDeiT,
    swin.TestSwin,
    levit.TestLevit,
    levit.TestLevitConv,
    sam.TestSam,
]
#: LeViT's maps are its tokens but for views, and half a minute; SAM's encoder takes a minute
COMPILED = [host for host in HOSTS if host not in (levit.TestLevitConv, sam.TestSam)]


#: grafts that are exported at every change: one for each hook point
QUICK = ("bisa(learned=true, norm=true)", "ghost", "horizontal", "vertical", "cb_s(init=1, position=mid)")


def grafted(contract: type[HostContract], spec: str) -> nn.Module:
    model = contract().make_again()
    attngraft.graft(model, spec)
    return model


def example_inputs(model: nn.Module) -> tuple[Tensor, ...]:
    host = find_host(model)
    return host.adapter.example_inputs(host.core, batch=2)


def check_compile(model: nn.Module, inputs: tuple[Tensor, ...] | None = None) -> None:
    inputs = example_inputs(model) if inputs is None else inputs
    expected = model(*inputs)
    torch._dynamo.reset()
    torch.testing.assert_close(torch.compile(model, fullgraph=True)(*inputs), expected, atol=1e-5, rtol=1e-4)


def check_export(model: nn.Module, inputs: tuple[Tensor, ...] | None = None, *, batch_axis: int = 0) -> None:
    """A program for batches of any size, called with another than it was made with."""
    inputs = example_inputs(model) if inputs is None else inputs
    expected = model(*inputs)
    batch = {batch_axis: torch.export.Dim("batch", min=2, max=64)}
    exported = torch.export.export(model, inputs, dynamic_shapes=(batch,) * len(inputs))
    twice = tuple(torch.cat([value, value], batch_axis) for value in inputs)
    found = exported.module()(*twice).narrow(batch_axis, 0, 2)
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("spec", [spec for spec in GRAFTS if spec not in vit.NO_WINDOWS])
def test_every_graft_compiles_on_a_vit(spec: str) -> None:
    check_compile(grafted(vit.TestViT, spec))


@pytest.mark.parametrize("spec", slow_but([spec for spec in GRAFTS if spec not in vit.NO_WINDOWS], *QUICK))
def test_every_graft_exports_on_a_vit(spec: str) -> None:
    check_export(grafted(vit.TestViT, spec))


@pytest.mark.slow
@pytest.mark.parametrize("spec", [*SPACE, *SPACE_FORMS])
def test_what_stands_in_for_an_attention_compiles_on_a_swin(spec: str) -> None:
    check_compile(grafted(swin.TestSwin, spec))


@pytest.mark.parametrize("spec", slow_but([*SPACE, *SPACE_FORMS], SPACE[0]))
def test_what_stands_in_for_an_attention_exports_on_a_swin(spec: str) -> None:
    check_export(grafted(swin.TestSwin, spec))


@pytest.mark.slow
@pytest.mark.parametrize("contract", COMPILED)
def test_every_host_compiles_with_three_grafts(contract: type[HostContract]) -> None:
    check_compile(grafted(contract, "bisa@first:1 + horizontal + cb_s(init=0.5)"))


@pytest.mark.parametrize("contract", slow_but(HOSTS, vit.TestViT))
def test_every_host_exports_with_three_grafts(contract: type[HostContract]) -> None:
    check_export(grafted(contract, f"bisa@{contract.where.get('bisa', 'all')} + vertical + cb(at=both)"))


@pytest.mark.slow
def test_training_compiles() -> None:
    model = grafted(vit.TestViT, "bisa@blocks.1 + horizontal + vertical + cb_s + uniform_heads@blocks.0").train()
    inputs = example_inputs(model)
    model(*inputs).square().sum().backward()
    expected = [p.grad.clone() for p in model.parameters() if p.grad is not None]
    model.zero_grad()
    torch._dynamo.reset()
    torch.compile(model, fullgraph=True)(*inputs).square().sum().backward()
    found = [p.grad for p in model.parameters() if p.grad is not None]
    for a, b in zip(expected, found, strict=True):
        torch.testing.assert_close(b, a, atol=1e-4, rtol=1e-3)


@pytest.mark.slow
def test_recording_inside_a_compiled_model_is_left_out_of_the_graph() -> None:
    """A model compiled before recording starts still runs, and one compiled within gives the same outputs."""
    model = grafted(vit.TestViT, "horizontal")
    inputs = example_inputs(model)
    expected = model(*inputs)
    with attngraft.record(model, "weights") as recording:
        torch.testing.assert_close(model(*inputs), expected)
    assert len(recording) == 2
    torch.testing.assert_close(torch.compile(model, fullgraph=True)(*inputs), expected, atol=1e-5, rtol=1e-4)
