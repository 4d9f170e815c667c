"""Deprecated module paths and names still work."""

from __future__ import annotations

import importlib
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import attngraft
from attngraft._moved import MOVED, RENAMED
from attngraft.attention import Graft, GraftType, HookPoint, MlpGeometry, Recordable, SpaceSite
from attngraft.hosts.adapter import HostAdapter, Site

TINY: dict[str, Any] = {"img_size": 32, "patch_size": 16, "embed_dim": 12, "depth": 1, "num_heads": 3, "num_classes": 2}


def old_module(path: str) -> Any:
    import sys

    sys.modules.pop(f"attngraft.{path}", None)
    with pytest.warns(DeprecationWarning, match=f"attngraft.{path} has moved to"):
        return importlib.import_module(f"attngraft.{path}")


@pytest.mark.parametrize("old", MOVED)
def test_module_is_found_under_its_old_path(old: str) -> None:
    new = importlib.import_module(f"attngraft.{MOVED[old]}")
    names = [name for name in vars(new) if not name.startswith("_")]
    assert names
    found = old_module(old)
    assert all(getattr(found, name) is getattr(new, name) for name in names)


@pytest.mark.parametrize("old", RENAMED)
def test_name_is_found_under_its_old_name(old: str) -> None:
    homes = {path: importlib.import_module(f"attngraft.{new}") for path, new in MOVED.items()}
    found = {path: home for path, home in homes.items() if hasattr(home, RENAMED[old])}
    assert found
    for path, home in found.items():
        assert getattr(old_module(path), old) is getattr(home, RENAMED[old])


def test_site_arguments() -> None:
    old: Any = {"carriers": {"mlp.end": "a"}, "informants": {"mlp.end": ("b",)}, "taps": {"x": "a"}}
    site = Site(path="a", kind="mlp", geometry=MlpGeometry(dim=2, hidden=4), **old)
    assert (site.targets, site.companions, site.record_tensors) == ({"mlp.end": "a"}, {"mlp.end": ("b",)}, {"x": "a"})


def test_host_adapter_richer() -> None:
    with pytest.warns(DeprecationWarning, match="richer is deprecated"):

        class Host(HostAdapter):
            richer = {nn.Linear: nn.Linear}  # noqa: RUF012

    assert Host.patched == {nn.Linear: nn.Linear}


def test_graft_type_stages() -> None:
    with pytest.warns(DeprecationWarning, match="stages is deprecated"):

        class Type(GraftType[Any]):
            def stages(self, options: Any) -> tuple[HookPoint, ...]:
                return ("heads",)

            def build(self, *_: Any) -> Graft:
                return Graft()

    assert Type().hook_points(None) == ("heads",)


def test_space_site_parks() -> None:
    class Block(SpaceSite, nn.Module):
        parks = ("attn",)

    assert Block.detaches == ("attn",)


def test_offer() -> None:
    class Recorder:
        found: dict[str, Tensor] = {}  # noqa: RUF012

        def wants(self, name: str) -> bool:
            return True

        def __call__(self, name: str, tensor: Tensor) -> None:
            self.found[name] = tensor

    point, value = Recordable(), torch.ones(1)
    point.recorder = Recorder()
    with pytest.warns(DeprecationWarning, match="call record"):
        point.offer("x", value)
    assert Recorder.found == {"x": value}


def test_attributes_of_grafts_and_reports() -> None:
    model = attngraft.create_model("vit_tiny_patch16_224", **TINY)
    report = attngraft.graft(model, "cb_s")
    graft: Any = model.get_submodule("blocks.0.mlp.grafts.cb_s")
    info = next(info for info in attngraft.list_grafts() if info.name == "cb_s")
    entry: Any = report.entries[0]
    for thing, old, expected in (
        (graft, "stage", "mlp.end"),
        (entry, "stage", "mlp.end"),
        (entry, "parked", {}),
        (info, "stages", ("mlp.end",)),
    ):
        with pytest.warns(DeprecationWarning, match=f"{old} is deprecated"):
            assert getattr(thing, old) == expected
