"""Dry runs: counts, tables, JSON, messages."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable

import numpy as np
import pytest
import timm
import torch
from rich.console import Console
from torch import nn

import attngraft
from attngraft.hosts import find_host
from attngraft.timing.macs import count_macs
from tests.contract.tester import assert_same_host, snapshot
from tests.contract.timm.test_levit import TINY as TINY_LEVIT
from tests.grafting.test_apply import tiny_swin, tiny_vit

PUBLISHED = [  # facts of the papers: parameters that a graft adds
    ("vit_tiny_patch16_224", "cb", 0),
    ("vit_tiny_patch16_224", "cb_s", 2_304),
    ("vit_small_patch16_224", "cb_s", 4_608),
    ("vit_base_patch16_224", "cb_s", 9_216),
    ("swin_tiny_patch4_window7_224", "cb_s", 4_416),
    ("swin_tiny_patch4_window7_224", "cb_s(position=mid)", 4 * 4_416),
    ("vit_small_patch16_224", "se", 221_184),
    ("vit_small_patch16_224", "se(bias=true)", 226_080),
    ("vit_tiny_patch16_224", "horizontal", 197_388),
    ("vit_tiny_patch16_224", "vertical", 334_080),
    ("vit_tiny_patch16_224", "horizontal + vertical", 531_468),
    ("vit_small_patch16_224", "horizontal", 344_844),
    ("vit_small_patch16_224", "vertical", 1_331_712),
    ("vit_base_patch16_224", "horizontal", 639_756),
    ("vit_base_patch16_224", "vertical", 5_317_632),
    ("swin_tiny_patch4_window7_224", "horizontal", 153_996),
    ("swin_tiny_patch4_window7_224", "vertical", 1_621_824),
]


@pytest.mark.parametrize(("host", "spec", "parameters"), PUBLISHED)
def test_published_parameter_counts(host: str, spec: str, parameters: int) -> None:
    with torch.device("meta"):
        model = timm.create_model(host)
    assert attngraft.plan(model, spec).parameters == parameters


def test_published_macs_of_horizontal_and_vertical() -> None:
    with torch.device("meta"):
        model = timm.create_model("swin_tiny_patch4_window7_224", num_classes=100)
    assert attngraft.plan(model, "horizontal").macs == 92_951_040
    assert attngraft.plan(model, "vertical").macs == 260_112_384


def test_dictionary_json_and_table_agree() -> None:
    report = attngraft.plan(tiny_vit(), "horizontal@blocks.0 + cb_s", measure=True)
    assert json.loads(report.to_json()) == json.loads(json.dumps(report.to_dict()))
    assert report.to_dict()["totals"] == {"parameters": report.parameters, "macs": report.macs}
    console = Console(width=160, record=True, file=open("/dev/null", "w"))  # noqa: SIM115 - a sink for the recording
    console.print(report.table())
    text = console.export_text()
    assert "blocks.0.attn" in text
    assert f"{report.parameters:,}" in text
    assert any("Measured at initialization" in line for line in report.summary())


def test_unused_parameters_are_listed() -> None:
    report = attngraft.plan(tiny_vit(), "uniform_heads@blocks.0")
    (entry,) = report.entries
    assert set(entry.unused.rows) == {(f"qkv.{p}", s, s + 8) for p in ("weight", "bias") for s in (16, 40)}
    assert entry.carried == 24 * 72 + 72 + 24 * 24 + 24 - 2 * 8 * 25


def test_no_site_with_the_hook_point() -> None:
    with pytest.raises(attngraft.HostError, match="no windows"):
        attngraft.plan(tiny_vit(), "cb(at=attention, scope=window)")


def test_a_where_clause_without_sites_points_at_the_character() -> None:
    with pytest.raises(attngraft.GraftSpecError, match=r"'blocks\.7-9' matches no site") as caught:
        attngraft.plan(tiny_vit(), "cb@blocks.7-9")
    assert caught.value.position == 3
    with pytest.raises(attngraft.GraftSpecError, match=r"similar paths: layers\.0"):
        attngraft.plan(tiny_swin(), "cb@layer.0")


def test_planning_a_large_model_is_quick() -> None:
    with torch.device("meta"):
        model = timm.create_model("vit_large_patch16_224")
    attngraft.plan(model, "cb")  # imports
    seconds = []
    for _ in range(3):  # the garbage of other tests may be collected in one of them
        start = time.process_time()
        attngraft.plan(model, "horizontal + vertical + cb_s(at=both)")
        seconds.append(time.process_time() - start)
    assert min(seconds) < 0.3


@pytest.mark.parametrize("spec", ["horizontal + vertical + cb(at=both)", "bisa@stages.0.blocks + se + uniform_heads"])
def test_measuring_a_host_in_training_mode_changes_nothing(spec: str) -> None:
    """With dropout, stochastic depth, batch norms and a host that itself draws from every generator."""
    model = timm.create_model("levit_256d", **(TINY_LEVIT | {"drop_rate": 0.3, "drop_path_rate": 0.3})).train()
    model.stem.eval()  # modes may differ
    model.register_forward_pre_hook(draw_from_all)
    model(torch.randn(4, 3, 48, 48))  # running statistics that are nobody's first ones
    before = snapshot(model)
    modes = {name: module.training for name, module in model.named_modules()}
    states = generators()
    report = attngraft.plan(model, spec, measure=True)
    assert report.change is not None
    assert report.change.relative > 0
    assert_same_host(model, before)
    assert {name: module.training for name, module in model.named_modules()} == modes
    assert [name for name, mode in modes.items() if not mode]
    assert generators() == states
    identity = attngraft.plan(model, "cb_s", measure=True).change
    assert identity is not None
    assert identity.max_absolute == 0, "measured without dropout, by the running statistics"


def draw_from_all(*_: object) -> None:
    random.random()
    np.random.rand()
    torch.rand(1)


def generators() -> list[object]:
    """The state of every global generator, as something to compare."""
    return [random.getstate(), *map(str, np.random.get_state()), torch.get_rng_state().tolist()]


@pytest.mark.parametrize("host", [tiny_vit, tiny_swin])
def test_multiply_adds_of_uniform_heads(host: Callable[[], nn.Module]) -> None:
    """None: a map is filled with shares, and nothing is multiplied. What `plan` says is what the graft does."""
    model = host()
    inputs = find_host(model).adapter.example_inputs(model, batch=2)
    for fused in (False, True):
        for module in model.modules():
            if hasattr(module, "fused_attn"):
                module.fused_attn = fused
        plain = count_macs(model, *inputs)
        planned = attngraft.plan(model, "uniform_heads")
        assert {entry.hook_point for entry in planned.entries} == {"weights"}
        assert planned.macs == 0
        assert attngraft.graft(model, "uniform_heads").macs == 0
        assert count_macs(model, *inputs) == plain
        attngraft.ungraft(model)


def test_multiply_adds_at_the_attention_map_are_counted() -> None:
    """By a graft at that stage that does multiply: its plan, and the model's own count with it and without."""
    model, images = tiny_vit(), torch.zeros(2, 3, 16, 16)
    plain = count_macs(model, images)
    planned = attngraft.plan(model, "toy_squared")
    tokens, heads, blocks = 5, 3, 3
    assert planned.macs == blocks * heads * tokens**3
    attngraft.graft(model, "toy_squared")
    assert count_macs(model, images) - plain == len(images) * planned.macs


def test_a_report_in_a_notebook() -> None:
    report = attngraft.plan(tiny_vit(), "cb_s + horizontal")
    table = report._repr_html_()
    assert table.count("<tr>") == 1 + len(report.entries)
    assert "cb_s @ " in table
    assert "start as the identity" in table or "Not the identity" in table


def test_outputs_that_are_not_finite_are_no_change() -> None:
    model = tiny_vit()
    with pytest.raises(attngraft.HostError, match="outputs with the grafts are not finite"):
        attngraft.plan(model, "cb_s(init=1e38)", measure=True)
    torch.nn.init.constant_(model.head.bias, torch.nan)
    with pytest.raises(attngraft.HostError, match="outputs without any graft are not finite"):
        attngraft.plan(model, "cb_s", measure=True)
