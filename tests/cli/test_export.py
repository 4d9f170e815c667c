"""`attngraft export` as a user types it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import attngraft
from attngraft.cli import main
from tests.export.runs import make_run


def run(*arguments: object) -> int:
    with pytest.raises(SystemExit) as stop:
        main([str(argument) for argument in arguments])
    return int(stop.value.code or 0)


def test_what_was_made_and_checked_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trained = make_run(tmp_path / "run", "cb + horizontal")
    assert run("export", trained, "--out", tmp_path / "out", "--to", "hf", "--fold", "--checkpoint", "best") == 0
    told = capsys.readouterr().out
    assert "model.safetensors" in told
    assert "folding" in told
    assert "cb (blocks.0.mlp, blocks.1.mlp): folded: the half of cb" in told
    assert "horizontal (blocks.0.attn, blocks.1.attn): stays as it is" in told
    assert "timm alone loads the host without its grafts" in told
    assert attngraft.load(tmp_path / "out") is not None


def test_as_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("export", make_run(tmp_path / "run"), "-o", tmp_path / "out", "--dtype", "bf16", "--json") == 0
    told = json.loads(capsys.readouterr().out)
    assert [check["file"] for check in told["checks"]] == ["rounding to bfloat16", "model.safetensors"]
    assert told["uploaded_to"] is None


def test_pushing(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []

    def push(folder: Path, repo_id: str, **options: Any) -> str:
        asked.append((folder, repo_id, options))
        return "https://hub.example/jane/flowers"

    monkeypatch.setattr("attngraft.export.hub.push_to_hub", push)
    trained, out = make_run(tmp_path / "run"), tmp_path / "out"
    assert run("export", trained, "--out", out, "--push", "flowers") == 2
    assert "USER/NAME" in capsys.readouterr().err
    assert not out.exists()
    assert run("export", trained, "--out", out, "--push", "jane/flowers", "--private") == 0
    assert asked == [(out, "jane/flowers", {"private": True})]
    assert "uploaded to https://hub.example/jane/flowers" in capsys.readouterr().out


def test_mistakes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trained = make_run(tmp_path / "run")
    (trained / "finished.json").unlink()
    assert run("export", trained, "--out", tmp_path / "out") == 1
    assert "not finished (1 of 30 epochs)" in capsys.readouterr().err
    assert run("export", trained, "--out", tmp_path / "out", "--unfinished") == 0
    assert run("export", trained, "--out", tmp_path / "out", "--unfinished") == 2
    assert "--overwrite" in capsys.readouterr().err
    assert run("export", trained, "--out", tmp_path / "out", "--unfinished", "--overwrite") == 0
    assert run("export", trained, "--out", tmp_path / "new", "--unfinished", "--checkpoint", "ema") == 1
    assert "no moving average" in capsys.readouterr().err
    assert not (tmp_path / "new").exists()
