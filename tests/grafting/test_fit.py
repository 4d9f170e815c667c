"""Sites that take a graft, and errors and reports about those that refuse it."""

from __future__ import annotations

import re

import pytest
import timm
import torch
from packaging.version import Version
from torch import nn

import attngraft
from attngraft.grafting import placement
from attngraft.grafting.fit import Fit, fit


def on_meta(name: str) -> nn.Module:
    with torch.device("meta"):
        return timm.create_model(name)


@pytest.mark.parametrize(
    ("host", "where"),
    [
        ("mvitv2_tiny", "stages.2.blocks.1-4,stages.3.blocks.1"),
        ("volo_d1_224", "network.2-4"),
        ("levit_128s", "stages.0,stages.1-2.blocks"),
        ("crossvit_9_240", "blocks.0-2.blocks"),
    ],
)
def test_a_refusal_names_the_sites_that_take_the_graft(host: str, where: str) -> None:
    model = on_meta(host)
    with pytest.raises(
        attngraft.HostError, match=r"^bisa cannot be grafted at .* \(mix\): .* sites accept it: @"
    ) as caught:
        attngraft.graft(model, "bisa")
    assert str(caught.value).endswith(f" sites accept it: @{where}")
    number = re.search(r"; (\d+) of \d+ sites", str(caught.value))
    assert number is not None
    assert len(attngraft.graft(model, f"bisa@{where}").entries) == int(number[1])


def test_a_decoder_points_at_its_encoder() -> None:
    transformers = pytest.importorskip("transformers")
    config = transformers.T5Config(vocab_size=8, d_model=16, d_kv=8, d_ff=16, num_layers=1, num_heads=2)
    with torch.device("meta"):
        model = transformers.T5ForConditionalGeneration(config)
    with pytest.raises(attngraft.HostError, match=r"at decoder.*later ones.*; 1 of 3 sites accept it: @encoder$"):
        attngraft.plan(model, "bisa")


@pytest.mark.parametrize(
    ("host", "reason"), [("cait_xxs24_224", "talking heads"), ("xcit_nano_12_p16_224", "between channels")]
)
def test_if_no_site_takes_a_graft_the_most_frequent_reason_is_given(host: str, reason: str) -> None:
    with pytest.raises(
        attngraft.HostError, match=rf"at blocks\.0\.attn .*{reason}.*; no site of this model accepts it$"
    ):
        attngraft.graft(on_meta(host), "bisa")


def test_a_named_site_gives_its_own_reason() -> None:
    where = "blocks_token_only.1"
    with pytest.raises(
        attngraft.HostError, match=rf"at {where}\.attn .*fewer tokens.*; no site of this model accepts it$"
    ):
        attngraft.graft(on_meta("cait_xxs24_224"), f"bisa@{where}")


def test_sites_without_the_hook_point_list_those_that_have_it() -> None:
    with pytest.raises(attngraft.GraftSpecError, match=r"the sites there lack it: .*; 2 of 14 .* @cls_attn_blocks\n"):
        attngraft.graft(on_meta("xcit_nano_12_p16_224"), "horizontal@blocks")


def test_many_patterns_are_cut() -> None:
    taken, refused = [f"blocks.{i}.attn" for i in range(0, 20, 2)], {f"blocks.{i}.attn": "odd" for i in range(1, 20, 2)}
    text = "10 of 20 sites accept it: blocks.0, blocks.2, blocks.4, blocks.6, ..., blocks.18"
    assert Fit(tuple(taken), refused).remedy() == text


def test_fitting_sites_are_only_computed_after_a_refusal(monkeypatch: pytest.MonkeyPatch) -> None:
    searched = []
    monkeypatch.setattr(placement, "fit", lambda host, term: (searched.append(term.name), fit(host, term))[1])
    report = attngraft.graft(on_meta("levit_128s"), "bisa@stages.0 + horizontal")
    assert {entry.graft for entry in report.entries} == {"bisa", "horizontal"}
    assert searched == []
    with pytest.raises(attngraft.HostError):
        attngraft.graft(on_meta("levit_128s"), "bisa")
    assert searched == ["bisa"]


@pytest.mark.parametrize(
    ("host", "left", "reason"),
    [
        ("xcit_nano_12_p16_224", "12 of 14", "it attends between channels"),
        ("davit_tiny", "6 of 12", "it attends between channels"),
        ("csatv2", "14 of 18", "it attends between the pixels of a single channel"),
    ],
)
def test_skipped_sites_are_counted(host: str, left: str, reason: str) -> None:
    if host == "csatv2" and Version(timm.__version__) <= Version("1.0.26"):
        pytest.skip("timm 1.0.26 cannot make this host on the meta device")
    report = attngraft.plan(on_meta(host), "horizontal + cb_s")
    (note,) = report.warnings
    assert note.startswith(f"horizontal skips {left} attention sites: {reason}")
    assert ";" not in note
    assert report.summary()[-1] == note
    assert str(report).splitlines() == report.summary()
    assert report.to_dict()["warnings"] == (note,)


def test_only_covered_sites_count_as_skipped() -> None:
    model = on_meta("davit_tiny")
    (note,) = attngraft.plan(model, "horizontal@stages.0-1").warnings
    assert note.startswith("horizontal skips 2 of 4 attention sites: ")
    assert not attngraft.plan(model, "horizontal@first:2").warnings
    assert not attngraft.plan(model, "horizontal@stages.*.blocks.*.0").warnings
    assert not attngraft.plan(on_meta("levit_128s"), "horizontal + cb_s").warnings
