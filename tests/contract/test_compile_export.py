"""torch.compile(fullgraph=True) and torch.export: every graft on a ViT, every host with several."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import attngraft
from attngraft.grafting.spec import parse
from attngraft.hosts import find_host
from tests.contract.tester import GRAFTS, SPACE, HostContract
from tests.contract.timm import test_levit as levit
from tests.contract.timm import test_sam as sam
from tests.contract.timm import test_swin as swin
from tests.contract.timm import test_vit as vit
from tests.slow import product_but

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


#: every graft once, where it computes most; alone on demand, in CI as many beside each other as go together
EACH_GRAFT = [
    "cb(context=class)",
    "cb_s(init=1, position=mid)",
    "cb_gate",
    "cb_hybrid",
    "se(reduction=2)",
    "uniform_heads(value=cb)",
    "ghost",
    "horizontal",
    "vertical",
    "bisa(learned=true, norm=true)",
    "bisa(order=self_then_inverse)",
    "misa(norm=true, transform=mlp)",
]

#: likewise of those that replace a whole attention: the first form of each
EACH_REPLACING = list({parse(spec).terms[0].name: spec for spec in reversed(SPACE)}.values())[::-1]
#: the grafts of EACH_GRAFT, on the two blocks of a ViT
BESIDE = [
    "bisa(learned=true, norm=true)@blocks.1 + horizontal + vertical + cb_s(init=1, position=mid)"
    " + uniform_heads(value=cb)@blocks.0 + cb_gate",
    "misa(norm=true, transform=mlp)@blocks.1 + ghost@blocks.0 + cb(context=class) + cb_hybrid + se(reduction=2)",
    "bisa(order=self_then_inverse)",
]

#: the grafts of EACH_REPLACING, one in each block of a Swin
SWIN_BLOCKS = ("layers.0.blocks.0", "layers.0.blocks.1", "layers.1.blocks.0")
BESIDE_REPLACING = [
    " + ".join(f"{spec}@{block}" for spec, block in zip(EACH_REPLACING[first:], SWIN_BLOCKS, strict=False))
    for first in range(0, len(EACH_REPLACING), len(SWIN_BLOCKS))
]


def grafted(contract: type[HostContract], spec: str) -> nn.Module:
    model = contract().make_again()
    attngraft.graft(model, spec)
    return model


def example_inputs(model: nn.Module) -> tuple[Tensor, ...]:
    host = find_host(model)
    return host.adapter.example_inputs(host.core, batch=2)


def check_compile(model: nn.Module, inputs: tuple[Tensor, ...] | None = None, *, backend: str = "inductor") -> None:
    """`aot_eager` traces the whole model as inductor does and spares the C++ compiler, which takes ten seconds a model."""
    inputs = example_inputs(model) if inputs is None else inputs
    expected = model(*inputs)
    torch._dynamo.reset()
    compiled = torch.compile(model, fullgraph=True, backend=backend)
    torch.testing.assert_close(compiled(*inputs), expected, atol=1e-5, rtol=1e-4)


def check_export(model: nn.Module, inputs: tuple[Tensor, ...] | None = None, *, batch_axis: int = 0) -> None:
    """A program for batches of any size, called with another than it was made with."""
    inputs = example_inputs(model) if inputs is None else inputs
    expected = model(*inputs)
    batch = {batch_axis: torch.export.Dim("batch", min=2, max=64)}
    exported = torch.export.export(model, inputs, dynamic_shapes=(batch,) * len(inputs), strict=False)
    twice = tuple(torch.cat([value, value], batch_axis) for value in inputs)
    found = exported.module()(*twice).narrow(batch_axis, 0, 2)
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-4)


def test_each_graft_is_named() -> None:
    names = {term.name for spec in EACH_GRAFT for term in parse(spec).terms}
    assert names == {parse(spec).terms[0].name for spec in GRAFTS if not spec.startswith(("toy_", "identity"))}
    assert set(EACH_GRAFT) <= set(GRAFTS)


@pytest.mark.parametrize(("beside", "each"), [(BESIDE, EACH_GRAFT), (BESIDE_REPLACING, EACH_REPLACING)])
def test_each_graft_is_beside_others(beside: list[str], each: list[str]) -> None:
    forms = [(term.name, term.options) for spec in each for term in parse(spec).terms]
    found = [(term.name, term.options) for spec in beside for term in parse(spec).terms]
    assert len(found) == len(forms)
    assert all(form in found for form in forms)


@pytest.mark.parametrize("spec", product_but(dict.fromkeys([*BESIDE, *EACH_GRAFT]), [BESIDE[0], BESIDE[2]]))
def test_every_graft_compiles_on_a_vit(spec: str) -> None:
    """But those that `test_training_compiles`."""
    check_compile(grafted(vit.TestViT, spec), backend="aot_eager")


@pytest.mark.parametrize("spec", [*BESIDE, *product_but([spec for spec in EACH_GRAFT if spec not in BESIDE], [])])
def test_every_graft_exports_on_a_vit(spec: str) -> None:
    check_export(grafted(vit.TestViT, spec))


@pytest.mark.parametrize("spec", product_but([*BESIDE_REPLACING, *EACH_REPLACING], [*BESIDE_REPLACING, SPACE[0]]))
def test_every_replacing_graft_compiles_on_a_swin(spec: str) -> None:
    check_compile(grafted(swin.TestSwin, spec), backend="inductor" if spec == SPACE[0] else "aot_eager")


@pytest.mark.parametrize(
    "spec", [BESIDE_REPLACING[0], *product_but([*BESIDE_REPLACING[1:], *EACH_REPLACING], BESIDE_REPLACING)]
)
def test_every_replacing_graft_exports_on_a_swin(spec: str) -> None:
    check_export(grafted(swin.TestSwin, spec))


#: a ViT compiles and exports with grafts of all kinds above; a second host of a family on demand
FAMILIES = [swin.TestSwin, levit.TestLevit, sam.TestSam]


@pytest.mark.parametrize("contract", product_but(COMPILED, FAMILIES))
def test_every_host_compiles_with_three_grafts(contract: type[HostContract]) -> None:
    check_compile(grafted(contract, "bisa@first:1 + horizontal + cb_s(init=0.5)"), backend="aot_eager")


@pytest.mark.parametrize("contract", product_but(HOSTS, FAMILIES))
def test_every_host_exports_with_three_grafts(contract: type[HostContract]) -> None:
    check_export(grafted(contract, f"bisa@{contract.where.get('bisa', 'all')} + vertical + cb(at=both)"))


@pytest.mark.parametrize("spec", product_but(BESIDE, BESIDE[1:2]))
def test_training_compiles(spec: str) -> None:
    """By inductor, forward and backward."""
    model = grafted(vit.TestViT, spec).train()
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
