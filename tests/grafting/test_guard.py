"""Surgery is all or nothing, one thread at a time, and refused inside of a live wrapper."""

from __future__ import annotations

import copy
import gc
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

import attngraft
from attngraft.attention import Geometry, HookPoint, Unused
from attngraft.errors import HostError, UsageError
from attngraft.grafting.guard import surgery
from attngraft.mechanisms.registry import register_graft
from tests.grafting.test_apply import tiny_swin, tiny_vit
from tests.grafting.toys import Scale, ScaleOptions, ToyScale

IMAGES = torch.linspace(-1, 1, 2 * 3 * 16 * 16).reshape(2, 3, 16, 16)


class Stop(Exception):
    pass


class Bomb:
    """Raises at the call of `method` after `calls` others."""

    method, calls = "", 0

    def __call__(self, method: str) -> None:
        if method == self.method:
            self.calls -= 1
            if self.calls == -1:
                raise Stop(method)


bomb = Bomb()


class BombGraft(Scale):
    """A graft whose every method may raise."""

    def __init__(self, width: int, start: float) -> None:
        bomb("__init__")
        super().__init__(width, start)

    def _apply(self, *args: Any, **kwargs: Any) -> Any:
        bomb("_apply")
        return super()._apply(*args, **kwargs)

    def train(self, mode: bool = True) -> Any:
        bomb("train")
        return super().train(mode)

    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        bomb("state_dict")
        return super().state_dict(*args, **kwargs)

    def load_state_dict(self, *args: Any, **kwargs: Any) -> Any:
        bomb("load_state_dict")
        return super().load_state_dict(*args, **kwargs)

    def forward(self, value: Tensor, x: Tensor | None = None) -> Tensor:
        bomb("forward")
        return super().forward(value, x)

    def __setattr__(self, name: str, value: Any) -> None:
        bomb(f"set {name}")
        super().__setattr__(name, value)

    def __getattribute__(self, name: str) -> Any:
        if not name.startswith("_"):
            bomb(f"get {name}")
        return super().__getattribute__(name)


class BombType(ToyScale):
    """A graft type whose every method may raise; its grafts leave the host's projections unused."""

    name = "bomb"

    def hook_points(self, options: ScaleOptions) -> tuple[HookPoint, ...]:
        bomb("hook_points")
        return super().hook_points(options)

    def build(self, geometry: Geometry, hook_point: HookPoint, options: ScaleOptions) -> BombGraft:
        bomb("build")
        return BombGraft(geometry.width(hook_point), options.start)

    def refusal(self, geometry: Geometry, hook_point: HookPoint, options: ScaleOptions) -> str | None:
        bomb("refusal")
        return None

    def starts_as_identity(self, options: ScaleOptions) -> bool:
        bomb("starts_as_identity")
        return True

    def unused(self, geometry: Geometry, hook_point: HookPoint, options: ScaleOptions) -> Unused:
        bomb("unused")
        return Unused(parameters=("proj.bias",) if hook_point == "tokens" else ())

    def notes(self, geometry: Geometry, hook_point: HookPoint, options: ScaleOptions) -> tuple[str, ...]:
        bomb("notes")
        return ()


class BombEnd(BombType):
    """The same at the end of the block, which in Swin is another module."""

    name = "bomb_end"

    def hook_points(self, options: ScaleOptions) -> tuple[HookPoint, ...]:
        bomb("hook_points")
        return ("attn.end",)


class BombSpace(BombType):
    """The same, which replaces the host's attention."""

    name = "bomb_space"

    def hook_points(self, options: ScaleOptions) -> tuple[HookPoint, ...]:
        bomb("hook_points")
        return ("space",)


for each in (BombType(), BombEnd(), BombSpace()):
    register_graft(each)


@pytest.fixture(autouse=True)
def _disarmed() -> Iterator[None]:
    bomb.method = ""
    yield
    bomb.method = ""


def elsa() -> nn.Module:
    """A Swin with a graft that replaces the attention of its first block."""
    model = tiny_swin()
    attngraft.graft(model, "elsa@layers.0.blocks.0")
    return model


def trace(model: nn.Module) -> dict[str, Any]:
    """All that surgery might leave behind: bits, classes, hooks, flags, children and attributes, detached ones included."""
    modules = dict(model.named_modules())
    for path, module in list(modules.items()):
        hidden = {name: value for name, value in vars(module).items() if isinstance(value, nn.Module)}
        for name, value in hidden.items():
            modules |= {f"{path}!{name}.{inner}": each for inner, each in value.named_modules()}
    return {
        "state": OrderedDict((name, value.clone()) for name, value in model.state_dict().items()),
        "modules": {path: (id(module), type(module), module.training) for path, module in modules.items()},
        "children": {path: list(module._modules) for path, module in modules.items()},
        "parameters": {name: (id(p), p.requires_grad) for name, p in model.named_parameters()},
        "hooks": {
            path: [list(value) for name, value in vars(module).items() if name.endswith("_hooks") and value]
            for path, module in modules.items()
        },
        "attributes": {path: sorted(vars(module)) for path, module in modules.items()},
    }


def assert_untouched(model: nn.Module, before: dict[str, Any]) -> None:
    now = trace(model)
    assert all(torch.equal(now["state"][name], value) for name, value in before["state"].items())
    assert list(now.pop("state")) == list(before["state"])
    for name, value in now.items():
        assert value == before[name], name


def detonated(model: nn.Module, method: str, act: Callable[[], object]) -> int:
    """Let `act` fail at each call of `method` in turn, and return the number of calls; the model stays as it was."""
    before = trace(model)
    for count in range(1000):
        bomb.method, bomb.calls = method, count
        try:
            act()
        except Stop:
            bomb.method = ""
            assert_untouched(model, before)
        else:
            bomb.method = ""
            return count
    raise AssertionError("it always raises")


METHODS = ["hook_points", "build", "refusal", "starts_as_identity", "unused", "notes", "__init__", "_apply", "train"]
METHODS += ["set hook_point", "set kind", "set options", "set refuses", "set unused", "set frozen", "get unused"]


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(
    ("make", "spec"),
    [
        pytest.param(tiny_vit, "bomb@last:2 + bomb_end@last:2", marks=pytest.mark.product),  # one module of Swin's two
        (tiny_swin, "bomb@last:2 + bomb_end@last:2"),
        (elsa, "cb_s + bomb_space@layers.0.blocks.1,layers.1"),
    ],
)
def test_graft_leaves_nothing_when_a_method_raises(make: Callable[[], nn.Module], spec: str, method: str) -> None:
    model = make()
    next(model.parameters()).requires_grad_(False)
    for module in list(model.modules())[::2]:
        module.training = True
    assert detonated(model, method, lambda: attngraft.graft(model, spec)) >= (1 if method == "hook_points" else 2)


@pytest.mark.parametrize("make", [tiny_vit, tiny_swin, elsa])
def test_ungraft_leaves_the_grafts_when_it_fails(make: Callable[[], nn.Module]) -> None:
    model = make()
    attngraft.graft(model, "bomb@last:2 + vertical@last:2 + cb_s")
    count = detonated(model, "get hook_point", lambda: attngraft.ungraft(model))
    assert count >= 2
    assert not any(".grafts." in name for name in model.state_dict())


@pytest.mark.parametrize("make", [pytest.param(tiny_vit, marks=pytest.mark.product), tiny_swin])
@pytest.mark.parametrize(
    "method", ["build", "refusal", "unused", "_apply", "state_dict", "load_state_dict", "set frozen"]
)
def test_load_grafts_leaves_nothing_when_a_method_raises(
    make: Callable[[], nn.Module], method: str, tmp_path: Path
) -> None:
    model, plain = make(), make()
    attngraft.graft(model, "bomb@last:2 + bomb_end@last:2")
    file = attngraft.save_grafts(model, tmp_path / "g.safetensors", include=["head", "norms"])
    nn.init.normal_(plain.head.weight if isinstance(plain.head, nn.Linear) else plain.head.fc.weight)
    assert detonated(plain, method, lambda: attngraft.load_grafts(plain, file)) >= 4


@pytest.mark.parametrize("make", [tiny_vit, elsa])
@pytest.mark.parametrize("method", ["forward", "get recorder", "set recorder"])
def test_record_leaves_nothing_when_a_method_raises(make: Callable[[], nn.Module], method: str) -> None:
    model = make()
    attngraft.graft(model, "bomb@last:2")
    images = IMAGES if make is tiny_vit else torch.zeros(1, 3, 28, 28)

    def act() -> None:
        with attngraft.record(model):
            model(images)

    assert detonated(model, method, act) >= 2


def test_interrupts_count_too() -> None:
    model: Any = tiny_vit()
    before = trace(model)

    def change() -> None:
        with surgery(model):
            model.train()
            model.head = nn.Identity()
            del model.blocks[0].attn.scale
            model.norm.register_forward_hook(lambda *_: None)
            model.norm.weight.requires_grad_(False)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        change()
    assert_untouched(model, before)


def in_thread(act: Callable[[], Any]) -> Any:
    """Return what `act` returns or raises in another thread."""
    found: list[Any] = []

    def run() -> None:
        try:
            found.append(act())
        except Exception as error:
            found.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join(30)
    assert found, "it hangs"
    return found[0]


def test_another_thread_cannot_graft_what_is_recorded(tmp_path: Path) -> None:
    model, plain = tiny_vit(), tiny_vit()
    attngraft.graft(plain, "cb_s")
    file = attngraft.save_grafts(plain, tmp_path / "g.safetensors")
    attngraft.graft(model, "cb@blocks.0")
    with attngraft.record(model, "weights", sites="blocks.1") as recording:
        before = trace(model)
        for act in (
            lambda: attngraft.graft(model, "cb"),
            lambda: attngraft.ungraft(model),
            lambda: attngraft.load_grafts(model, file),
            lambda: attngraft.graft(nn.Sequential(model), "cb"),
        ):
            error = in_thread(act)
            assert isinstance(error, UsageError) and "another thread is recording this model" in str(error)
        assert_untouched(model, before)
        assert in_thread(lambda: attngraft.graft(plain, "cb")).entries, "another model may be grafted"
        model(IMAGES)
    assert len(recording.calls("blocks.1.attn", "weights")) == 1
    assert in_thread(lambda: attngraft.ungraft(model)) == ["blocks.0.mlp.grafts.cb"]


def test_two_threads_that_graft_wait_for_each_other() -> None:
    model = tiny_vit()
    barrier = threading.Barrier(4)

    def graft() -> None:
        barrier.wait()
        attngraft.graft(model, "cb_s")

    threads = [threading.Thread(target=graft) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert list(model.blocks[0].mlp.grafts) == ["cb_s", "cb_s_2", "cb_s_3", "cb_s_4"]


def ddp(model: nn.Module) -> nn.Module:
    return nn.parallel.DistributedDataParallel(model)


@pytest.fixture
def process_group(tmp_path: Path) -> Iterator[None]:
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path / 'store'}", rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()


@pytest.mark.parametrize(("wrap", "name"), [(torch.compile, "torch.compile"), (ddp, "DistributedDataParallel")])
@pytest.mark.parametrize("outer", [False, True])
def test_the_inside_of_a_live_wrapper_is_refused(
    wrap: Callable[[nn.Module], Any], name: str, outer: bool, process_group: None, tmp_path: Path
) -> None:
    model = tiny_vit()
    whole = nn.Sequential(model) if outer else model
    attngraft.graft(model, "cb")
    file = attngraft.save_grafts(model, tmp_path / "g.safetensors")
    attngraft.ungraft(model)
    wrapped = wrap(whole)
    before = trace(model)
    for act in (lambda: attngraft.graft(whole, "cb"), lambda: attngraft.load_grafts(whole, file)):
        with pytest.raises(HostError, match=f"live {name} module"):
            act()
    assert_untouched(model, before)
    assert attngraft.plan(whole, "cb").entries
    del wrapped
    assert attngraft.graft(whole, "cb").entries, "the wrapper is gone"
    gc.collect()


def test_a_module_called_module_is_no_wrapper(process_group: None) -> None:
    class Own(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.module = tiny_vit()

    assert attngraft.graft(Own().module, "cb").entries


def test_what_fsdp_manages_is_refused() -> None:
    model: Any = tiny_vit()
    model._is_fsdp_managed_module = True  # FSDP itself needs an accelerator
    with pytest.raises(HostError, match="live FSDP module"):
        attngraft.graft(model, "cb")


def test_grafts_of_inference_mode_can_be_trained() -> None:
    model = tiny_vit()
    with torch.inference_mode():
        attngraft.graft(model, "vertical")
    model(IMAGES).sum().backward()
    assert not any(parameter.is_inference() for parameter in model.parameters())


class Halved(nn.Module):
    def forward(self, weight: Tensor) -> Tensor:
        return weight / 2


def test_modules_parametrized_since_keep_working() -> None:
    model = nn.TransformerEncoderLayer(24, 3, 48, 0, batch_first=True).eval()
    inputs, plain = torch.randn(2, 5, 24), copy.deepcopy(model)
    parametrize.register_parametrization(plain.self_attn, "in_proj_weight", Halved())
    attngraft.graft(model, "horizontal(identity=true)")
    parametrize.register_parametrization(model.self_attn, "in_proj_weight", Halved())
    torch.testing.assert_close(model(inputs), plain(inputs))
    with pytest.raises(attngraft.HostError, match="parametrized after grafting; call"):
        attngraft.ungraft(model)
    torch.testing.assert_close(model(inputs), plain(inputs))
    parametrize.remove_parametrizations(model.self_attn, "in_proj_weight", leave_parametrized=False)
    attngraft.ungraft(model)
    assert type(model.self_attn) is nn.MultiheadAttention
    with attngraft.record(model, {"weights"}):
        parametrize.register_parametrization(model.self_attn, "in_proj_weight", Halved())
    torch.testing.assert_close(model(inputs), plain(inputs))
