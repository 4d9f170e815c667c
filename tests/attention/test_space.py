"""Detached modules are not children of the model, but are moved, loaded and restored with it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from torch import Tensor, nn

import attngraft
from attngraft.attention import detached_state, load_detached_state, sites_with_detached, with_originals
from attngraft.errors import GraftFileError, HostError
from tests.seeding import seed

TINY: dict[str, Any] = {
    "img_size": 28,
    "window_size": 4,
    "depths": (2, 1),
    "embed_dim": 16,
    "num_heads": (2, 4),
    "num_classes": 5,
}
OWN = "layers.0.blocks.1.attn"  #: the modules that the graft replaces


def swin() -> nn.Module:
    seed(0)
    return timm.create_model("swin_tiny_patch4_window7_224", **TINY).eval()


@pytest.fixture
def host() -> nn.Module:
    return swin()


@pytest.fixture
def images() -> Tensor:
    return torch.randn(2, 3, 28, 28, generator=torch.Generator().manual_seed(0))


def graft(host: nn.Module, spec: str = "dwconv(kernel=3)@layers.0.blocks.1") -> attngraft.GraftReport:
    return attngraft.graft(host, spec)


def test_detached_modules_are_neither_trained_nor_counted_nor_saved(host: nn.Module) -> None:
    own = host.get_submodule(OWN)
    names = [name for name in host.state_dict() if name.startswith(OWN)]
    report = graft(host)
    assert host.get_submodule(OWN) is own
    assert own not in set(host.modules())
    assert not [name for name in (*host.state_dict(), *dict(host.named_parameters())) if name.startswith(f"{OWN}.")]
    assert set(names) == set(detached_state(host))
    assert [path for path, _ in sites_with_detached(host)] == ["layers.0.blocks.1"]
    [entry] = report.entries
    assert {f"layers.0.blocks.1.{name}" for name in entry.detached} == {
        f"{OWN}.{name}" for name, _ in own.named_parameters()
    }
    assert sum(entry.detached.values()) == sum(parameter.numel() for parameter in own.parameters())
    assert f"{sum(entry.detached.values()):,} parameters are detached" in str(report)


def test_undo_restores_order_and_modes(host: nn.Module) -> None:
    names, parameters = list(host.state_dict()), [name for name, _ in host.named_parameters()]
    graft(host)
    host.train()
    with with_originals(host):
        assert [name for name in host.state_dict() if ".grafts." not in name] == names
    assert not host.get_submodule(OWN).training
    attngraft.ungraft(host)
    assert list(host.state_dict()) == names
    assert [name for name, _ in host.named_parameters()] == parameters
    assert all(module.training for module in host.modules())


def test_detached_modules_follow_device_and_precision(host: nn.Module) -> None:
    graft(host)
    host.to(torch.float64)
    assert {value.dtype for value in detached_state(host).values() if value.is_floating_point()} == {torch.float64}
    host.to("meta")
    assert {value.device.type for value in detached_state(host).values()} == {"meta"}


def test_host_weights_load_into_detached_modules(host: nn.Module, images: Tensor) -> None:
    weights = {name: value + 0.01 for name, value in host.state_dict().items() if value.is_floating_point()}
    graft(host)
    found = host.load_state_dict(weights, strict=False)
    assert not found.unexpected_keys
    assert all(".grafts." in name for name in found.missing_keys)
    attngraft.ungraft(host)
    other = swin()
    other.load_state_dict(weights, strict=False)
    assert torch.equal(host(images), other(images))


def test_weights_of_a_grafted_model_contain_no_detached_values(host: nn.Module) -> None:
    graft(host)
    host.load_state_dict(host.state_dict())
    weights = swin().state_dict()
    part = {name: value for name, value in weights.items() if name != f"{OWN}.qkv.bias"}
    assert f"{OWN}.qkv.bias" in host.load_state_dict(part, strict=False).missing_keys
    with pytest.raises(RuntimeError, match="size mismatch"):
        host.load_state_dict({**host.state_dict(), f"{OWN}.qkv.bias": torch.zeros(1)})
    with pytest.raises(RuntimeError, match="Unexpected key.*attn.unknown"):
        host.load_state_dict({**host.state_dict(), f"{OWN}.unknown": torch.zeros(1)})


def test_detached_state_can_be_saved_and_loaded(host: nn.Module, images: Tensor) -> None:
    expected = host(images)
    graft(host)
    state = {name: value.clone() for name, value in detached_state(host).items()}
    with torch.no_grad():
        for value in detached_state(host).values():
            value.zero_()
    load_detached_state(host, state)
    attngraft.ungraft(host)
    assert torch.equal(host(images), expected)


# -- beside other grafts -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("other", ["horizontal", "bisa", "vertical", "cb(at=attention, scope=window)", "involution"])
@pytest.mark.parametrize("first", [True, False])
def test_a_replaced_branch_takes_no_other_graft(host: nn.Module, other: str, first: bool) -> None:
    terms = [f"{other}@layers.0", "dwconv(kernel=3)@layers.0.blocks.1"]
    with pytest.raises(
        HostError, match=r"layers.0.blocks.1.attn already has a graft at hook point \S+.*ungraft it first"
    ):
        attngraft.graft(host, " + ".join(terms if first else reversed(terms)))
    assert not list(sites_with_detached(host))
    attngraft.graft(host, terms[not first])
    with pytest.raises(HostError, match="already"):
        attngraft.graft(host, terms[first])


def test_grafts_around_a_replaced_branch_work(host: nn.Module, images: Tensor) -> None:
    expected = host(images)
    graft(host)
    alone = host(images)
    report = attngraft.graft(host, "cb_s(at=attention, init=1)@layers.0 + se(reduction=2) + horizontal@layers.1")
    assert not torch.equal(host(images), alone)
    attngraft.ungraft(host, report.names)
    assert torch.equal(host(images), alone)
    attngraft.ungraft(host)
    assert torch.equal(host(images), expected)


def test_a_graft_file_names_the_conflicting_graft(host: nn.Module, tmp_path: Path) -> None:
    graft(host)
    path = attngraft.save_grafts(host, tmp_path / "grafts.safetensors")
    other = swin()
    attngraft.graft(other, "horizontal")
    with pytest.raises(
        GraftFileError, match=r"grafts.safetensors: layers.0.blocks.1.attn already has a graft at hook point heads"
    ):
        attngraft.load_grafts(other, path)


def test_recording_includes_tensors_of_the_replacement(host: nn.Module, images: Tensor) -> None:
    graft(host, "elsa(kernel=3, group_width=4)@layers.0.blocks.1")
    expected = host(images)
    with attngraft.record(host) as recording:
        assert torch.equal(host(images), expected)
    found = recording[OWN]
    assert found["elsa.local_filters"].shape == (2, 2, 9, 7, 7)
    assert found["elsa.ghost_add"].shape == (16, 3, 3)
    assert found["space"].shape == (2, 7, 7, 16)
    assert "weights" not in found
