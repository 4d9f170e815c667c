"""The command line's small verbs, as a user runs them: output, JSON, exit codes."""

from __future__ import annotations

import json
import logging
import re
from importlib.metadata import version
from types import SimpleNamespace

import pytest

from attngraft import __version__
from attngraft.cli import main
from attngraft.cli.doctor import _runs

TINY = [f"--host-arg={text}" for text in ("img_size=16", "patch_size=8", "embed_dim=24", "depth=2", "num_heads=3")]


def run(arguments: list[str]) -> int:
    with pytest.raises(SystemExit) as stop:
        main(arguments)
    return int(stop.value.code or 0)


def test_plan_prints_a_table(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["plan", "vit_tiny_patch16_224", "cb_s@last:1 + horizontal", *TINY]) == 0
    shown = capsys.readouterr().out
    assert "blocks.1.mlp" in shown
    assert "blocks.0.attn" in shown
    assert "Not the identity at initialization: horizontal" in shown
    assert "\x1b" not in shown


def test_plan_as_json_measures(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["plan", "vit_tiny_patch16_224", "cb", "--measure", "--json", *TINY]) == 0
    report = json.loads(capsys.readouterr().out)
    assert [entry["site"] for entry in report["entries"]] == ["blocks.0.mlp", "blocks.1.mlp"]
    assert report["change"]["max_absolute"] > 0


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["plan", "vit_tiny_patch16_224", "cbs", *TINY], 2, "did you mean cb_s?"),
        (["plan", "vit_tiny_patch16_224", "cb@blocks.9", *TINY], 2, "matches no site"),
        (["plan", "vit_tiny_patch16_224", "cb", "--host-arg", "img_size"], 2, "NAME=VALUE"),
        (["plan", "vit_tiny_patch16_225", "cb"], 2, "did you mean vit_tiny_patch16_224"),
        (["plan", "resnet18", "cb"], 2, "register_host"),
        (["plan"], 2, "Missing argument"),
        (["list", "plants"], 2, "grafts"),
    ],
)
def test_errors(capsys: pytest.CaptureFixture[str], arguments: list[str], code: int, message: str) -> None:
    assert run(arguments) == code
    shown = capsys.readouterr()
    assert message in shown.err
    assert "Traceback" not in shown.err


@pytest.mark.parametrize("what", ["grafts", "hosts", "recipes", "papers", "tasks", "analyses", "suites"])
def test_list(capsys: pytest.CaptureFixture[str], what: str) -> None:
    assert run(["list", what, "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert rows
    assert run(["list", what]) == 0
    assert rows[0]["name"] in capsys.readouterr().out


def test_list_grafts_shows_options_and_presets(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["list", "--json"]) == 0
    rows = {row["name"]: row for row in json.loads(capsys.readouterr().out)}
    assert "mean | max | class" in rows["cb"]["options"]["context"]
    assert rows["cb_deeper_half"]["what"] == "short for cb@last:50%"


def test_which_of_timms_models(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    names = ["levit_128s", "shvit_s1", "resnet18", "vit_tiny_patch16_224"]
    monkeypatch.setattr("attngraft.models.coverage.timm_names", lambda: names)
    assert run(["list", "hosts", "--coverage"]) == 0
    shown = capsys.readouterr().out
    assert "horizontal: 66.7% of 3 names" in shown
    shown = " ".join(shown.split())
    assert "SHSA: its single head" in shown
    assert "(1 of 1)" in shown
    assert run(["list", "hosts", "--coverage", "--json"]) == 0
    count = json.loads(capsys.readouterr().out)
    assert count["names"] == 3
    assert [family["names"] for family in count["families"]] == [[name] for name in sorted(names) if name != "resnet18"]
    assert count["share"]["bisa"] == pytest.approx(2 / 3)
    assert run(["list", "grafts", "--coverage"]) == 2
    assert "list hosts --coverage" in capsys.readouterr().err


def test_doctor_looks_into_a_model(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["doctor", "--host", "vit_tiny_patch16_224", *TINY]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "VisionTransformer: supported by timm.vit" in shown
    assert "blocks.0.attn to blocks.1.attn (2)" in shown
    assert "4 tokens" not in shown  # the class token counts
    assert "5 tokens of 24, 3 heads" in shown
    assert run(["doctor", "--host", "t2t_vit_14", "--host-arg", "depth=1"]) == 0
    sites = capsys.readouterr().out.partition("with default options")[0]
    assert sites.count("part of the") == 2  # once for each of two places, however many stages they lack
    assert run(["doctor", "--host", "xcit_nano_12_p16_224", "--host-arg", "depth=1"]) == 0
    assert "attends between channels" in " ".join(capsys.readouterr().out.split())
    assert run(["doctor", "--host", "mixer_s32_224"]) == 0
    assert "tokens are mixed by weights, not by attention" in " ".join(capsys.readouterr().out.split())
    assert run(["doctor", "--host", "levit_128s"]) == 0
    fits = capsys.readouterr().out.partition("with default options")[2]
    row = next(line for line in fits.splitlines() if "bisa" in line)
    assert "9 of 11" in row
    assert "stages.0.blocks.0.attn to stages.2.blocks.3.attn (9)" in row
    assert run(["doctor", "--host", "bixt_ti_l64_p16", "--host-arg", "depth=3"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "BiXT: supported by bixt" in shown
    assert "recordable:" in shown
    assert "tokens_to_latents" in shown
    assert "one similarity serves both directions" in shown
    assert "attention without a site" not in shown
    assert run(["doctor", "--host", "shvit_s1"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "SHSA: its single head" in shown
    assert "register_host" in shown
    assert run(["doctor", "--host", "shvit_s1", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["adapter"] is None
    assert run(["doctor", "--host", "vit_tiny_patch16_225"]) == 2
    assert "did you mean" in capsys.readouterr().err


def test_doctor_names_the_sites_that_take_a_graft_where_others_stand_between() -> None:
    sites = [SimpleNamespace(path=f"blocks.{i}.{kind}") for i in range(5) for kind in ("attn", "mlp")]
    taken = ["blocks.0.attn", "blocks.2.attn", "blocks.3.attn", "blocks.0.mlp"]
    assert list(_runs(sites, taken)) == ["blocks.0.attn, blocks.2.attn to blocks.3.attn (2)", "blocks.0.mlp"]


def test_doctor(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["doctor", "--json"]) == 0
    findings = json.loads(capsys.readouterr().out)
    assert findings["versions"]["torch"]
    assert {"inverse_attention", "bidirectional_attention"} <= set(findings["backends"])
    assert "GiB free" in findings["disk"]["here"]


def test_version_names_packages_and_device(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--version"]) == 0
    pattern = rf"attngraft {re.escape(__version__)} \(torch {re.escape(version('torch'))}, timm [\w.]+, device \w+\)\n"
    assert re.fullmatch(pattern, capsys.readouterr().out)


@pytest.mark.parametrize("verbose", [False, True])
def test_failed_attempts_to_download_are_shown_on_request_only(
    capfd: pytest.CaptureFixture[str], verbose: bool
) -> None:
    assert run([*(["--verbose"] if verbose else []), "list", "recipes"]) == 0
    for name in ("huggingface_hub.utils._http", "huggingface_hub.file_download"):
        assert logging.getLogger(name).isEnabledFor(logging.WARNING) == verbose
        assert logging.getLogger(name).isEnabledFor(logging.ERROR)


@pytest.mark.parametrize("verb", ["compare", "train", "eval", "features", "convert", "plan", "paper", "list", "doctor"])
def test_help_has_examples(capsys: pytest.CaptureFixture[str], verb: str) -> None:
    assert run([verb, "--help"]) == 0
    assert f"attngraft {verb}" in capsys.readouterr().out
