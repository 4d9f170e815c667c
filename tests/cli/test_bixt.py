"""BiXT at the command line, as a user asks for it: among the hosts, planned with grafts, its paper's table."""

from __future__ import annotations

import json

import pytest

from attngraft.cli import main
from attngraft.papers.schema import load_paper


def printed(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    with pytest.raises(SystemExit) as stop:
        main(list(arguments))
    assert not stop.value.code
    return capsys.readouterr().out


def test_it_is_among_the_hosts(capsys: pytest.CaptureFixture[str]) -> None:
    assert "bixt_ti_l64_p16" in printed(capsys, "list", "hosts")
    rows = {row["name"]: row["what"] for row in json.loads(printed(capsys, "list", "hosts", "--json"))}
    assert "its baselines, iterative and sequential" in rows["bixt"]


def test_a_graft_is_planned(capsys: pytest.CaptureFixture[str]) -> None:
    shown = " ".join(printed(capsys, "plan", "bixt_ti_l64_p16", "horizontal", "--host-arg", "depth=3").split())
    assert (shown.count("│ Attention │ horizontal @ heads"), shown.count("│ OneSidedCrossAttention │")) == (3, 1)
    assert "horizontal skips 2 of 6 attention sites: one similarity serves both directions here" in shown


@pytest.mark.parametrize(
    ("host", "sites"),
    [
        (
            "bixt_ti_l64_p16s8_ft384",
            ["blocks.0.self_attention_latents.attn", "blocks.0.cross_attention_latents_token.mlp_lat"],
        ),
        (
            "sequential_d12",
            ["blocks.1.self_attention_latents.attn", "blocks.1.cross_attention_latents_token.mlp_lat"],
        ),
        ("iterative_sa5_d8_k2", ["blocks.1.0.attn", "blocks.1.0.mlp"]),
    ],
)
def test_a_plan_as_json(capsys: pytest.CaptureFixture[str], host: str, sites: list[str]) -> None:
    spec = " + ".join(f"{graft}@{site}" for graft, site in zip(("bisa", "cb_s"), sites, strict=True))
    report = json.loads(printed(capsys, "plan", host, spec, "--host-arg", "depth=2", "--json"))
    assert report["host"] == "bixt"
    assert {(entry["graft"], entry["site"]) for entry in report["entries"]} == {("bisa", sites[0]), ("cb_s", sites[1])}


@pytest.mark.product  # papers/test_compute.py computes it in CI
def test_table_5_of_its_paper(capsys: pytest.CaptureFixture[str]) -> None:
    """Paper against ours, row by row; what differs is said."""
    shown = printed(capsys, "paper", "bixt", "table5")
    lines = {line.split("│")[1].strip(): line for line in shown.splitlines() if line.startswith("│")}
    for row in load_paper("bixt").table("5").rows:
        assert lines[row.variant].count("✓") == 3 - len(row.errata)
        assert all(number in lines[row.variant] for number in row.printed.values())
    assert " 5.53   5.5344 ✓" in shown
    assert " 9.32  9.3170 ✓" in shown
    assert "tiny, 64 latents (params, M; Mem., M): the paper's count omits the position projection" in shown
    assert "15 cells agree, 3 differ, 0 not computed" in shown
