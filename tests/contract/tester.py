"""The contract of every (host, graft) pair, in one class. A new host is a subclass; a new graft is a line in GRAFTS."""

from __future__ import annotations

import copy
import io
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Literal

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import attngraft
from attngraft.attention import is_graft, sites_with_detached, with_originals
from attngraft.grafting.apply import patch, restore
from attngraft.grafting.placement import place
from attngraft.grafting.report import GraftReport
from attngraft.grafting.spec import parse
from attngraft.hosts import find_host, forget
from attngraft.mechanisms.registry import graft_types
from attngraft.tensors import meta_device
from attngraft.timing.macs import count_macs
from tests.contract.stirring import stir
from tests.grafting import toys  # noqa: F401 - registers the toy grafts
from tests.seeding import seed
from tests.slow import product_but

#: every graft, with the options that change where it stands or what it computes
GRAFTS = [
    "cb",
    "cb(position=mid)",
    "cb(position=front)",
    "cb(at=attention)",
    "cb(at=both)",
    "cb(context=max)",
    "cb(context=class)",
    "cb(tokens=patches)",
    "cb(at=attention, scope=window)",
    "cb_s",
    "cb_s(init=1, position=mid)",
    "cb_s(at=both, position=front)",
    "cb_gate",
    "cb_hybrid",
    "se(reduction=2)",
    "uniform_heads",
    "uniform_heads(value=cb)",
    "ghost",
    "horizontal",
    "horizontal(identity=true)",
    "vertical",
    "vertical(identity=true)",
    "bisa",
    "bisa(learned=true, norm=true)",
    "bisa(transform=mlp, weight=0.3)",
    "bisa(order=inverse_then_self)",
    "bisa(order=self_then_inverse)",
    "bisa(separate=true)",
    "bisa(identity=true)",
    "misa",
    "misa(norm=true, transform=mlp)",
    "identity",
    "identity(stage=heads)",
    "identity(stage='attn.end')",
    "identity(stage='mlp.mid')",
    "toy_scale(start=0.5, stage='mlp.mid')",
    "toy_flatten",
    "toy_values_only",
]

#: those that stand in for a whole attention, for hosts with maps around it
SPACE = [
    "elsa(group_width=4)",
    "elsa(kernel=3, mul=1, strict=true)",
    "lsa(size=3, shift=1)",
    "lsa(network=net7, area=neighborhood, size=3, norm=filter)",
    "involution(kernel=3)",
    "dwconv(kernel=3)",
    "dynamic_dwconv(kernel=3)",
    "ddf(kernel=3)",
    "outlooker",
]

#: further forms of them, for the slow tests
SPACE_FORMS = ["lsa(network=net7, area=neighborhood, size=3, norm=identity)"]

#: a graft for each hook point: enough for a host whose sites are read as those of another are
ONE_PER_STAGE = [
    "bisa(learned=true, norm=true)",
    "toy_flatten + toy_scale(start=0.5, stage=heads)",
    "vertical + cb(at=both)",
    "cb_s(init=1, position=front) + toy_scale(start=0.5, stage='mlp.mid') + se(reduction=2)",
]


def at_once(specs: list[str], *, further: bool = False) -> list[Any]:
    """Return grafts for a host that is not tested with every graft: those that go together as one, and alone on demand.

    Of a `further` form of a host, all others are on demand, too: recording takes it through its attention map.

    Those that use or leave unused the attention map stay alone: others would need it, or leave it unused too. So does a
    second one at `mix`, of which a site takes one.
    """
    beside: list[str] = []
    alone: list[str] = []
    mixed = False
    for spec in specs:
        terms = parse(spec).terms
        points = {point for term in terms for point in graft_types()[term.name].hook_points(term.options)}
        together = points.isdisjoint({"weights", "space"}) and not (mixed and "mix" in points)
        (beside if together else alone).append(spec)
        mixed |= "mix" in points
    if len(beside) < 2:
        return list(specs)
    return [" + ".join(beside), *product_but(beside, []), *(product_but(alone, []) if further else alone)]


class HostContract:
    """Subclass with `make`; everything below then holds for that host with every graft of `specs`."""

    specs: ClassVar[list[str]] = GRAFTS
    #: those of them that stand in for its attention, where it has maps around it
    space: ClassVar[list[str]] = []
    #: grafts that this host refuses, each with a part of the reason it must give
    refused: ClassVar[dict[str, str]] = {}
    #: grafts that some of its sites refuse (a specification, or a name for all its forms) -> where they stand
    where: ClassVar[dict[str, str]] = {}
    layers: ClassVar[int]  #: number of attention sites
    mlps: ClassVar[int | None] = None  #: number of MLP sites, where it is another
    #: what is grafted beside another
    beside: ClassVar[str] = "toy_other(start=0.5) + toy_other(start=0.25, stage='mlp.end')@first:1"
    #: whether the host offers gradient checkpointing; "around": it does not, and a user puts torch's around it
    checkpoints: ClassVar[bool | Literal["around"]] = True
    #: whether its mask follows from its inputs: a program of it may meet padding one day, and refuses averages over all
    masks_programs: ClassVar[bool] = False
    #: which axis of its inputs counts the samples
    batch_axis: ClassVar[int] = 0
    #: whether the model can be made on the meta device, computed in bfloat16, and measured by `plan`
    makes_meta: ClassVar[bool] = True
    runs_in_bf16: ClassVar[bool] = True
    measurable: ClassVar[bool] = True
    #: whether it says where the tokens of its windows stand
    places_known: ClassVar[bool] = True
    #: whether its tokens are put back as they are where a branch ends; others scale them, or cut once for many blocks
    puts_back: ClassVar[bool] = True

    def make(self) -> nn.Module:
        """The host at tiny size, always with the same values, in eval mode, without randomness in training mode."""
        raise NotImplementedError

    def set_fused(self, host: nn.Module, fused: bool) -> None:
        """Let attention run fused kernels, or spell it out."""
        for module in host.modules():
            if hasattr(module, "fused_attn"):
                module.fused_attn = fused

    @pytest.fixture
    def host(self) -> nn.Module:
        seed(1)
        return self.make().eval()

    @pytest.fixture
    def inputs(self, host: nn.Module) -> tuple[Tensor, ...]:
        return self.given(host)

    def given(self, host: nn.Module, *, batch: int = 2) -> tuple[Tensor, ...]:
        """What the host takes, for so many samples, always the same."""
        seed(2)
        found = find_host(host)
        return found.adapter.example_inputs(found.core, batch=batch)

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        if "spec" in metafunc.fixturenames:
            # what this host refuses is tested in test_refusals
            specs: list[Any] = [self.placed(spec) for spec in self.specs if spec not in self.refused]
            if self.specs is not GRAFTS:
                base = type(self).__mro__[1]
                specs = at_once(specs, further=base is not HostContract and base.__module__ == self.__module__)
            specs += map(self.placed, self.space)
            metafunc.parametrize("spec", specs)

    @classmethod
    def placed(cls, spec: str) -> str:
        """`spec`, where only some sites take it, at those."""
        where = cls.where.get(spec) or cls.where.get(spec.partition("(")[0])
        return f"{spec}@{where}" if where else spec

    # -- the host alone ------------------------------------------------------------------------------------------------

    @pytest.mark.oldest
    @pytest.mark.parametrize("training", [False, True])
    @pytest.mark.parametrize("fused", [True, False])
    def test_patched_class_without_grafts_is_the_host(self, host, inputs, fused, training) -> None:
        self.set_fused(host, fused)
        host.train(training)
        expected, gradients = outputs_and_gradients(host, inputs)
        targets = [find_host(host).module(path) for site in find_host(host).sites for path in site.targets.values()]
        for module in (unique := list(dict.fromkeys(targets))):
            patch(module)
        found, found_gradients = outputs_and_gradients(host, inputs)
        for module in unique:
            restore(module)
        assert torch.equal(found, expected)
        assert all(torch.equal(a, b) for a, b in zip(gradients, found_gradients, strict=True))

    @pytest.mark.oldest
    @torch.no_grad()
    def test_patched_class_without_grafts_is_the_host_for_one_sample(self, host) -> None:
        """An axis of size 1 may have any stride, and by strides torch chooses how to convolve."""
        inputs = self.given(host, batch=1)
        expected = host(*inputs)
        forget(host)
        for module in {target for site in find_host(host).sites for target in site.targets.values()}:
            patch(find_host(host).module(module))
        assert torch.equal(host(*inputs), expected)

    @pytest.mark.oldest
    def test_refusals(self, host) -> None:
        maps = {} if self.space else {"elsa": "needs the hook point space, which .* does not have"}
        for spec, reason in {**self.refused, **maps}.items():
            before = [type(module) for module in host.modules()]
            with pytest.raises(attngraft.HostError, match=reason):
                attngraft.graft(host, spec)
            assert [type(module) for module in host.modules()] == before

    @pytest.mark.oldest
    def test_every_site_is_found(self, host) -> None:
        sites = find_host(host).sites
        assert sum(site.kind == "attention" for site in sites) == self.layers
        assert sum(site.kind == "mlp" for site in sites) == (self.layers if self.mlps is None else self.mlps)
        assert len({site.path for site in sites}) == len(sites)

    @pytest.mark.oldest
    @pytest.mark.parametrize("fused", [True, False])
    def test_recording_changes_nothing_and_sees_the_map(self, host, inputs, fused) -> None:
        self.set_fused(host, fused)
        classes = [type(module) for module in host.modules()]
        expected = host(*inputs)
        with attngraft.record(host) as recording:
            found = host(*inputs)
        assert torch.equal(found, expected)
        assert [type(module) for module in host.modules()] == classes
        for site in find_host(host).sites:
            if site.kind == "attention" and "weights" not in site.targets:
                assert "weights" in site.missing
            elif site.kind == "attention":
                weights = recording[site.path]["weights"]
                shape = site.geometry.shape("weights")
                assert shape is None or weights.shape[1:] == shape[1:]
                torch.testing.assert_close(weights.sum(-1), torch.ones_like(weights.sum(-1)))
                assert recording[site.path]["scores"].shape == weights.shape
                assert recording[site.path]["values"].shape[-2] == weights.shape[-1]
                if site.geometry.window is not None:
                    self.check_windows(recording, site)
            else:
                assert recording[site.path]["mlp.end"].shape[-1] == site.geometry.dim

    def check_windows(self, recording, site) -> None:
        """The host says where its windows' tokens stand, and puts them there itself."""
        if not self.places_known:
            with pytest.raises(attngraft.RecordError, match="do not report how they cut windows"):
                recording.token_indices(site.path)
            return
        places, ends = recording.token_indices(site.path), recording[site.path]["attn.end"]
        assert site.geometry.grid in (None, tuple(places.shape))
        assert len(places.flatten().unique()) == places.numel()
        if site.geometry.own_keys and self.puts_back:
            back = recording.on_map(site.path, "tokens")
            torch.testing.assert_close(back, ends.view(back.shape))
            assert recording.full_attention_map(site.path).sum(-1).max() < 1 + 1e-5

    # -- every graft on the host ---------------------------------------------------------------------------------------

    def test_graft(self, host, inputs, spec, tmp_path: Path) -> None:
        """One graft operation and its undo: plan, outputs, costs, precision, stacking, copies, files."""
        before = snapshot(host)
        ungrafted = copy.deepcopy(host)
        one = self.given(host, batch=1)  # what a replacing graft computes once per batch counts once
        expected, plain_macs, bf16_error = self.plain(host, inputs, one)
        planned = self.check_plan(host, spec, before)

        report = attngraft.graft(host, spec)
        assert planned.to_dict() == report.to_dict()
        self.check_parameters(host, report, before)
        with torch.no_grad():
            after = host(*inputs)
        self.check_outputs(after, expected, report)
        self.check_macs(count_macs(host, *one) - plain_macs, host, report)
        self.check_bf16(host, inputs, after, bf16_error)
        self.check_stacking(host, inputs)
        self.check_copies(host, inputs, expected)

        randomize(host, only_grafts=True)
        path = attngraft.save_grafts(host, tmp_path / "grafts.safetensors", fingerprint=True)
        loaded = attngraft.load_grafts(ungrafted, path)
        assert torch.equal(ungrafted(*inputs), host(*inputs))
        assert list(ungrafted.state_dict()) == list(host.state_dict())
        assert loaded.parameters == report.parameters

        attngraft.ungraft(host)
        assert_same_host(host, before)
        with torch.no_grad():  # as before: some hosts take another path without gradients
            assert torch.equal(host(*inputs), expected)
        if self.makes_meta:
            with meta_device():
                model = self.make()
            assert attngraft.graft(model, spec).parameters == report.parameters
            assert all(p.device.type == "meta" for p in model.parameters())

    @torch.no_grad()
    def plain(self, host: nn.Module, inputs: tuple[Tensor, ...], one: tuple[Tensor, ...]) -> tuple[Tensor, int, float]:
        """The host's outputs, operations and error in bfloat16, which are the same in all tests of a class."""
        if type(self) not in _plain:
            expected = host(*inputs)
            error = (in_bf16(host, inputs).float() - expected).abs().max().item() if self.runs_in_bf16 else 0.0
            _plain[type(self)] = expected, count_macs(host, *one), error
        return _plain[type(self)]

    def check_plan(self, host: nn.Module, spec: str, before: Snapshot) -> GraftReport:
        """Planning, measured or not, changes neither the host nor the random state."""
        generator = torch.get_rng_state()
        planned = attngraft.plan(host, spec)
        if not self.measurable:
            with pytest.raises(attngraft.HostError, match="whose inputs are unknown"):
                attngraft.plan(host, spec, measure=True)
        else:
            change = attngraft.plan(host, spec, measure=True).change
            if all(entry.exact for entry in planned.entries):
                assert change.max_absolute == 0
            elif all(entry.identity for entry in planned.entries):
                assert change.max_absolute <= 1e-5
            else:
                assert change.max_absolute > 0
        assert torch.equal(torch.get_rng_state(), generator)
        assert_same_host(host, before)
        return planned

    def check_parameters(self, host: nn.Module, report: GraftReport, before: Snapshot) -> None:
        assert report.parameters == sum(p.numel() for name, p in host.named_parameters() if is_graft(name))
        with with_originals(host):
            plain = {name: p for name, p in host.named_parameters() if not is_graft(name)}
        assert list(plain) == list(before.parameters)
        assert all(torch.equal(plain[name], value) for name, value in before.parameters.items())

    def check_outputs(self, after: Tensor, expected: Tensor, report: GraftReport) -> None:
        if all(entry.identity for entry in report.entries):
            torch.testing.assert_close(after, expected, rtol=0, atol=1e-5)
        assert torch.equal(after, expected) or not all(entry.exact for entry in report.entries)
        assert all(entry.identity for entry in report.entries) or not torch.equal(after, expected)

    def check_macs(self, added: int, host: nn.Module, report: GraftReport) -> None:
        at_weights = any(entry.hook_point == "weights" for entry in report.entries)
        if report.macs is None:  # the number of tokens is unknown
            assert any(site.geometry.tokens is None for site in find_host(host).sites)
        elif not at_weights:  # the explicit path counts the host's own products differently from the fused kernel
            assert added == report.macs

    @torch.no_grad()
    def check_bf16(self, host: nn.Module, inputs: tuple[Tensor, ...], expected: Tensor, error: float) -> None:
        """In bfloat16 and under autocast outputs are as near as those of the plain host."""
        near = {"atol": max(0.25, 2 * error), "rtol": 0.25}
        if self.runs_in_bf16:
            found = in_bf16(host, inputs)
            assert found.dtype == torch.bfloat16
            assert torch.isfinite(found).all()
            torch.testing.assert_close(found.float(), expected, **near)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            mixed = host(*inputs)
        torch.testing.assert_close(mixed.float(), expected, **near)

    def check_stacking(self, host: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        alone = host(*inputs)
        inside = any(site.detached_modules() for _, site in sites_with_detached(host))
        report = attngraft.graft(host, "toy_other(start=0.25, stage='mlp.end')@first:1" if inside else self.beside)
        assert not torch.equal(host(*inputs), alone)
        attngraft.ungraft(host, report.names)
        assert torch.equal(host(*inputs), alone)

    @torch.no_grad()  # a host may keep tensors between calls, and those with a graph cannot be copied
    def check_copies(self, host: nn.Module, inputs: tuple[Tensor, ...], plain: Tensor) -> None:
        forget(host)
        expected = host(*inputs)
        assert torch.equal(copy.deepcopy(host)(*inputs), expected)
        buffer = io.BytesIO()
        torch.save(host, buffer)
        buffer.seek(0)
        again = torch.load(buffer, weights_only=False)
        assert torch.equal(again(*inputs), expected)
        attngraft.ungraft(again)
        assert torch.equal(again(*inputs), plain)

    def make_again(self) -> nn.Module:
        seed(1)
        return self.make().eval()

    def test_every_added_parameter_learns_and_unused_rows_do_not(self, host, inputs, spec) -> None:
        """Gradients after one backward pass, and the same ones with gradient checkpointing."""
        report = attngraft.graft(host, spec)
        randomize(host)
        inert = inert_parameters(host, spec)
        host(*inputs).square().sum().backward()
        added = {name: p for name, p in host.named_parameters() if is_graft(name)}
        assert bool(added) == bool(report.parameters)
        largest = max((p.grad.abs().max().item() for p in added.values() if p.grad is not None), default=0.0)
        for name, parameter in added.items():
            assert parameter.grad is not None, name
            moved = parameter.grad.abs().max().item()
            if f".{name}".rpartition(".grafts.")[2].partition(".")[2] in inert:
                assert moved <= 1e-5 * max(largest, 1.0), f"{name} is declared inert"
            else:
                assert moved > 0, name
        found = find_host(host)
        for entry in report.entries:  # what a graft leaves unused has nothing to learn
            site = next(site for site in found.sites if site.path == entry.site)
            module = found.module(site.targets[entry.hook_point])
            for spans, axis in ((entry.unused.rows, 0), (entry.unused.columns, -1)):
                for name, start, stop in spans:
                    gradient = module.get_parameter(name).grad
                    unmoved = gradient is None or not gradient.narrow(axis, start, stop - start).any()
                    assert unmoved, f"{entry.site} {name}"
            for name in entry.unused.parameters:
                assert not module.get_parameter(name).requires_grad
        self.check_checkpointing(host, inputs)

    def check_checkpointing(self, host: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        if not self.checkpoints:
            with pytest.raises(AssertionError, match="not supported"):
                host.set_grad_checkpointing(True)
            return
        host.train()
        expected, gradients = outputs_and_gradients(host, inputs)
        if self.checkpoints == "around":
            run = partial(checkpoint, host, use_reentrant=False)
            found, found_gradients = outputs_and_gradients(host, inputs, run=run)
        else:
            host.set_grad_checkpointing(True)
            found, found_gradients = outputs_and_gradients(host, inputs)
        torch.testing.assert_close(found, expected)
        for a, b in zip(gradients, found_gradients, strict=True):
            torch.testing.assert_close(b, a, rtol=1e-4, atol=1e-5)


_plain: dict[type[HostContract], tuple[Tensor, int, float]] = {}  #: see `HostContract.plain`


class Snapshot:
    """What must be the same after undo."""

    def __init__(self, model: nn.Module) -> None:
        self.parameters = {name: p.detach().clone() for name, p in model.named_parameters()}
        self.trained = {name: p.requires_grad for name, p in model.named_parameters()}
        self.state = {name: value.clone() for name, value in model.state_dict().items()}
        self.classes = {name: type(module) for name, module in model.named_modules()}
        self.attributes = {name: sorted(vars(module)) for name, module in model.named_modules()}


def snapshot(model: nn.Module) -> Snapshot:
    return Snapshot(model)


def assert_same_host(model: nn.Module, before: Snapshot) -> None:
    now = Snapshot(model)
    assert list(now.state) == list(before.state)
    assert all(torch.equal(now.state[name], value) for name, value in before.state.items())
    assert now.trained == before.trained
    assert now.classes == before.classes
    assert now.attributes == before.attributes


def in_bf16(model: nn.Module, inputs: tuple[Tensor, ...]) -> Tensor:
    """What a copy of the model with all parameters in bfloat16 gives for inputs in bfloat16."""
    forget(model)
    half = copy.deepcopy(model).bfloat16()
    assert all(parameter.dtype == torch.bfloat16 for parameter in half.parameters())
    found: Tensor = half(*(value.bfloat16() if value.is_floating_point() else value for value in inputs))
    return found


def randomize(model: nn.Module, *, only_grafts: bool = False) -> None:
    """Give parameters values at which nothing cancels."""
    stir(model, lambda name, parameter: is_graft(name) or (not only_grafts and parameter.dim() == 1), seed=3)


def inert_parameters(model: nn.Module, spec: str) -> set[str]:
    """Names (within their graft) of the added parameters whose gradient is zero by mathematics."""
    found: set[str] = set()
    plain = copy.deepcopy(model)
    attngraft.ungraft(plain)
    for placement in place(find_host(plain), parse(spec)):
        found |= placement.graft_type.inert_parameters(
            placement.site.geometry, placement.hook_point, placement.term.options
        )
    return found


def outputs_and_gradients(
    model: nn.Module, inputs: tuple[Tensor, ...], *, run: Callable[..., Any] | None = None
) -> tuple[Tensor, list[Tensor]]:
    seed(4)
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    outputs = (run or model)(*inputs)
    outputs = outputs if isinstance(outputs, Tensor) else torch.cat([part.flatten() for part in outputs])
    gradients = torch.autograd.grad(outputs.square().sum(), trained, allow_unused=True)
    return outputs.detach(), [torch.zeros(()) if g is None else g for g in gradients]


__all__ = ["GRAFTS", "ONE_PER_STAGE", "HostContract", "assert_same_host", "randomize", "snapshot"]
