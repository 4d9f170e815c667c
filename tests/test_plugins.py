"""Grafts and hosts that an installed package declares as entry points."""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import attngraft
from attngraft.cli import main
from attngraft.hosts import registry as hosts
from attngraft.mechanisms import registry as grafts

MODULE = """
from timm.models.vision_transformer import VisionTransformer
from attngraft import GraftType
from attngraft.attention import Graft
from attngraft.hosts.timm.vit import TimmViT

class Doubled(Graft):
    def forward(self, heads, x):
        return 2 * heads

class DoubledType(GraftType):
    name, summary, source = "doubled", "twice the heads", "a test"

    def hook_points(self, options):
        return ("heads",)

    def build(self, geometry, hook_point, options):
        return Doubled()

class Taken(DoubledType):
    name = "cb"

class NoSummary(GraftType):
    name = "brief"
    hook_points, build = DoubledType.hook_points, DoubledType.build

class Mine(VisionTransformer):
    pass

class MineHost(TimmViT):
    name, summary = "mine.vit", "a subclass of timm's"

    def recognizes(self, model):
        return type(model) is Mine

class TakenHost(MineHost):
    name = "hf.vit"
"""

ENTRY_POINTS = """
[attngraft.grafts]
doubled = attngraft_plugin:DoubledType
taken = attngraft_plugin:Taken
brief = attngraft_plugin:NoSummary
number = attngraft_plugin:__name__
lost = attngraft_plugin.nowhere:Nothing
[attngraft.hosts]
mine = attngraft_plugin:MineHost
taken = attngraft_plugin:TakenHost
lost = attngraft_plugin:Nothing
"""


@pytest.fixture
def plugin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The module of a package called `attngraft-plugin`, as if it were installed."""
    grafts.graft_types(), hosts.host_adapters()  # not those of the package
    info = tmp_path / "attngraft_plugin-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: attngraft-plugin\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(ENTRY_POINTS)
    (tmp_path / "attngraft_plugin.py").write_text(MODULE)
    monkeypatch.syspath_prepend(str(tmp_path))
    loaded = (grafts._load, hosts._load_plugins)
    for each in loaded:
        each.cache_clear()
    yield importlib.import_module("attngraft_plugin")
    for each in loaded:
        each.cache_clear()
    grafts._types.pop("doubled", None)
    hosts._adapters.pop("mine.vit", None)
    sys.modules.pop("attngraft_plugin")


def test_grafts_and_hosts_of_a_package_are_used_as_the_built_in_ones(plugin: Any) -> None:
    torch.manual_seed(0)
    model = plugin.Mine(img_size=16, patch_size=8, embed_dim=24, depth=2, num_heads=3, num_classes=5).eval()
    images = torch.randn(2, 3, 16, 16)
    before = model(images)
    report = attngraft.graft(model, "doubled@first:1 + cb_s")
    assert report.entries[0].graft == "doubled"
    assert not torch.equal(model(images), before)
    attngraft.ungraft(model)
    assert torch.equal(model(images), before)


def test_what_a_package_declares_wrongly_is_skipped_with_a_warning(
    plugin: Any, caplog: pytest.LogCaptureFixture
) -> None:
    assert type(grafts.graft_types()["cb"]).__module__.startswith("attngraft.")
    hosts.host_adapters()
    warnings = [record.getMessage() for record in caplog.records]
    assert all(" of the package attngraft-plugin: ignoring " in text for text in warnings)
    expected = [
        ("grafts of the package attngraft-plugin: ignoring taken", "a graft named 'cb' is already registered"),
        ("ignoring brief", "it lacks summary, source"),
        ("ignoring number", "it is not a GraftType"),
        ("ignoring lost (attngraft_plugin.nowhere:Nothing)", "ModuleNotFoundError: No module named"),
        ("hosts of the package attngraft-plugin: ignoring taken", "attngraft has a host adapter named 'hf.vit'"),
        ("ignoring lost (attngraft_plugin:Nothing)", "AttributeError"),
    ]
    assert len(warnings) == len(expected)
    for (what, why), text in zip(expected, warnings, strict=True):
        assert what in text
        assert why in text
    caplog.clear()
    grafts.graft_types(), hosts.host_adapters()
    assert not caplog.records, "each is named once"


def test_list_shows_the_packages(plugin: Any, capsys: pytest.CaptureFixture[str]) -> None:
    for what, name, built_in in (("grafts", "doubled", "cb"), ("hosts", "mine.vit", "timm.vit")):
        with pytest.raises(SystemExit):
            main(["list", what, "--json"])
        rows = json.loads(capsys.readouterr().out)
        packages = {row["name"]: row["package"] for row in rows}
        assert (packages[name], packages[built_in]) == ("attngraft-plugin", "attngraft")
    assert {host.package for host in attngraft.list_hosts() if host.name == "mine.vit"} == {"attngraft-plugin"}
