"""Sets of grafts for a host."""

from __future__ import annotations

import pytest
import timm
import torch
from torch import nn

import attngraft
from attngraft.errors import HostError, UsageError
from attngraft.grafting import sets
from attngraft.grafting.plan import plan
from attngraft.grafting.sets import graft_set
from attngraft.grafting.spec import parse
from attngraft.mechanisms.registry import graft_types, package_of_graft, register_graft

from .toys import ToyScale


def host(name: str, **arguments: object) -> nn.Module:
    with torch.device("meta"):
        return timm.create_model(name, **arguments)


@pytest.mark.parametrize(
    ("name", "scratch"),
    [
        ("vit_tiny_patch16_224", ["cb", "cb_s", "vertical", "bisa@first:2"]),
        ("swin_tiny_patch4_window7_224", ["cb", "cb_s", "vertical", "bisa@first:2", "elsa"]),
        ("levit_128s", ["cb", "cb_s", "vertical", "bisa@first:2"]),
        ("mixer_s32_224", ["cb", "cb_s"]),
        ("cait_xxs24_224", ["cb", "cb_s", "vertical"]),
        ("volo_d1_224", ["cb", "cb_s", "vertical", "bisa@first:2", "elsa"]),
        ("pvt_v2_b0", ["cb", "cb_s", "vertical", "bisa@stages.3"]),
    ],
)
def test_the_shortlist_of_a_host(name: str, scratch: list[str]) -> None:
    model = host(name)
    assert graft_set(model, "shortlist") == scratch
    for spec in scratch:
        assert plan(model, spec).entries
    forms = {"cb_s": "cb_s", "vertical": "vertical(identity=true)"}
    pretrained = graft_set(model, "shortlist", pretrained=True)
    assert pretrained == [
        forms.get(spec, spec.replace("bisa", "bisa(identity=true)"))
        for spec in scratch
        if not spec.startswith("elsa") and spec != "cb"
    ]
    assert all(entry.identity for spec in pretrained for entry in plan(model, spec).entries)


def test_all_has_every_graft_that_fits_except_the_control() -> None:
    model = host("twins_svt_small")
    ours = {name for name in graft_types() if package_of_graft(name) == "attngraft"}
    found = [spec for spec in graft_set(model, "all") if parse(spec).terms[0].name in ours]
    reports = {spec: plan(model, spec) for spec in found}
    names = [report.entries[0].graft for report in reports.values()]
    assert len(names) == len(set(names))
    assert "identity" not in names
    for name in ours - set(names) - {"identity"}:
        with pytest.raises(HostError):
            plan(model, name)
    restricted = reports[next(spec for spec in found if spec.startswith("bisa@"))]
    with pytest.raises(HostError, match=f"{len(restricted.entries)} of 18 sites accept it"):
        plan(model, "bisa")
    trained = graft_set(model, "all", pretrained=True)
    assert {"horizontal(identity=true)", "vertical(identity=true)", "cb", "se"} <= set(trained)


def test_all_has_the_grafts_of_other_packages() -> None:
    assert "toy_scale" in graft_types()
    model = host("vit_tiny_patch16_224", depth=1)
    assert "toy_scale" in graft_set(model, "all")
    assert "toy_scale" not in graft_set(model, "shortlist")


def test_a_set_that_does_not_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(HostError, match="not a supported host"):
        graft_set(host("resnet18"), "all")
    monkeypatch.setattr(sets, "SHORTLIST", ("elsa", "bisa"))
    with pytest.raises(HostError, match="no graft of shortlist fits MlpMixer: .*attngraft doctor --host NAME"):
        graft_set(host("mixer_s32_224"), "shortlist")
    with pytest.raises(UsageError, match="unknown set of grafts 'many'; sets: shortlist, all"):
        attngraft.graft_set(host("vit_tiny_patch16_224", depth=1), "many")


@pytest.mark.parametrize("name", ["shortlist", "all", "none"])
def test_a_graft_cannot_have_the_name_of_a_set(name: str) -> None:
    class Named(ToyScale):
        pass

    Named.name = name
    with pytest.raises(ValueError, match="reserved"):
        register_graft(Named())
    if name != "none":
        with pytest.raises(attngraft.GraftSpecError, match=f"attngraft plan HOST {name}"):
            plan(host("vit_tiny_patch16_224", depth=1), f"cb + {name}")
