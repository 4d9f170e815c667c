"""Names in received folders reach no network; names that the user types do."""

from __future__ import annotations

import contextlib
import json
import re
import socket
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch.hub

import attngraft
from attngraft.cli import main
from attngraft.downloads import (
    DownloadRefused,
    caches_alone,
    downloads,
    downloads_of,
    may_download,
    permitted_downloads,
    received,
)
from attngraft.errors import AttngraftError, DataError, HostError
from attngraft.export.predict import open_model
from attngraft.export.run import export_run
from attngraft.models.create import create_host
from attngraft.targets.handle import open_handle
from attngraft.targets.judged import open_target
from attngraft.training.evaluate import evaluate_run
from tests.models.hub_cache import fill

DATA = Path(__file__).parent / "compat" / "data"
REFUSED = (
    r"not in the cache, and its name was read from a file or folder; to download it, add --allow-download \(in Python"
)
HUB = "hf-hub:someone/model"


@pytest.fixture
def reached(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Addresses that were looked up or connected to; none of them answers. The caches are empty."""
    found: list[Any] = []

    def fail(*args: Any, **_: Any) -> Any:
        found.append(args)
        raise OSError("no network")

    for name in ("getaddrinfo", "create_connection"):
        monkeypatch.setattr(socket, name, fail)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr("attngraft.models.hub._reached", set())
    monkeypatch.setenv("TORCH_HOME", str(tmp_path / "torch"))
    return found


@pytest.fixture
def folder(tmp_path: Path) -> Callable[..., Path]:
    """Unpacks a folder, and changes its texts as someone might who hands it on."""

    def make(name: str, changes: dict[str, str]) -> Path:
        with tarfile.open(DATA / f"{name}.tar.xz") as archive:
            archive.extractall(tmp_path, filter="data")
        for path in (tmp_path / name).rglob("*"):
            if path.name in ("recipe.yaml", "study.yaml", "attngraft.json"):
                text = path.read_text()
                for pattern, new in changes.items():
                    text, count = re.subn(pattern, new, text)
                    assert count or path.name == "recipe.yaml", (path, pattern)
                path.write_text(text)
        return tmp_path / name

    return make


def call(*arguments: object) -> int:
    with pytest.raises(SystemExit) as stop:
        main([str(each) for each in arguments])
    return int(stop.value.code or 0)


def test_what_is_permitted() -> None:
    assert may_download("hf:a/b") and permitted_downloads() is None
    with received():
        assert not may_download("hf:a/b")
        with received(allow_download=True):
            assert not may_download("hf:a/b"), "the outermost block decides"
        with received("timm:hfds/x"):
            assert may_download("hfds/x") and not may_download("hf:a/b")
    with received(allow_download=True), received():
        assert may_download("hf:a/b")
    with downloads_of([], allow_download=True):
        permitted = permitted_downloads()
    assert permitted is not None
    with downloads(permitted), received():
        assert may_download("hf:a/b")
    assert may_download("hf:a/b")


@pytest.mark.parametrize(
    ("name", "text", "permitted"),
    [
        ("hf:a/b", "hf:a/b", True),
        ("hf:a/b", "host.name=hf:a/b", True),
        ("hf:a/b", "{host: hf:a/b, graft: cb}", True),
        ("vit_tiny", "timm:vit_tiny", True),
        ("hfds/x", "timm:hfds/x", True),
        ("hf:a", "data", False),
        ("hf:a", "hf:a/b", False),
        ("hf:runs/a", "runs/a", False),
        ("vit_tiny", "runs/vit_tiny", False),
        ("vit_tiny", "vit_tiny_patch16_224", False),
        ("vit_tiny", "hf:vit_tiny", False),
        ("hf-hub:a/b", "hf:a/b", False),
    ],
)
def test_a_typed_name_is_a_whole_word(name: str, text: str, permitted: bool) -> None:
    with downloads_of(["--json", text]):
        assert may_download(name) is permitted


@pytest.mark.parametrize(
    ("name", "pretrained", "arguments"),
    [
        (HUB, False, {}),
        ("timm:hf-hub:someone/model", False, {}),
        ("hf:someone/model", False, {}),
        ("vit_tiny_patch16_224", True, {}),
        ("resnet18.tv_in1k", True, {"pretrained_cfg_overlay": {"hf_hub_id": None, "url": "https://example.org/x.pth"}}),
        ("torchvision:resnet18", True, {}),
    ],
)
def test_hosts_are_looked_up_in_the_caches_alone(
    reached: list[Any], name: str, pretrained: bool, arguments: dict[str, Any]
) -> None:
    with received(), pytest.raises(HostError, match=REFUSED):
        create_host(name, pretrained=pretrained, **arguments)
    assert not reached
    with received(name), pytest.raises(HostError):
        create_host(name, pretrained=pretrained, **arguments)
    assert reached


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("torchvision:resnet18", {"pretrained": True}),
        ("torchvision:fcn_resnet50", {"weights_backbone": "DEFAULT"}),
        ("torchvision:fcn_resnet50", {"pretrained_backbone": True}),
        ("vit_tiny_patch16_224", {"pretrained": True}),
    ],
)
def test_arguments_of_a_received_host_download_nothing(
    reached: list[Any], name: str, arguments: dict[str, Any], recwarn: pytest.WarningsRecorder
) -> None:
    with received(), contextlib.suppress(AttngraftError, TypeError):
        create_host(name, **arguments)
    assert not reached


def test_a_configuration_downloads_no_backbone(reached: list[Any], tmp_path: Path) -> None:
    """Even in a folder that the user types, the configuration is someone else's."""
    pytest.importorskip("transformers")
    config = {"model_type": "dpt", "architectures": ["DPTForSemanticSegmentation"], "backbone": "someone/backbone"}
    config |= {"use_pretrained_backbone": True, "is_hybrid": False, "backbone_config": None}
    (tmp_path / "dpt").mkdir()
    (tmp_path / "dpt" / "config.json").write_text(json.dumps(config))
    with pytest.raises(AttngraftError):
        create_host(f"hf:{tmp_path / 'dpt'}")
    assert not reached


def test_a_host_in_the_cache_needs_no_permission(reached: list[Any], tmp_path: Path) -> None:
    tag = "vit_tiny_patch16_224.augreg_in21k"
    arguments = {"img_size": 32, "patch_size": 8, "embed_dim": 32, "depth": 1, "num_heads": 2}
    model = create_host(tag, **arguments)
    fill(tmp_path, tag, model)
    with received():
        found = create_host(tag, pretrained=True, **arguments)
    assert torch.equal(found.get_parameter("head.weight"), model.get_parameter("head.weight"))
    assert not reached


def test_torch_hub_downloads_again_after_the_block(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.hub.urlopen", lambda *_: "opened")
    hub: Any = torch.hub
    with received(), caches_alone("x"), pytest.raises(DownloadRefused):
        hub.urlopen("https://example.org")
    with caches_alone("x"):
        assert hub.urlopen("https://example.org") == "opened"
    assert hub.urlopen("https://example.org") == "opened"


@pytest.mark.parametrize("reader", ["hfds", "HFDS", "hfids", "tfds", "wds"])
def test_data_of_a_received_recipe(reached: list[Any], reader: str) -> None:
    from attngraft.tasks.images.config import DataConfig
    from attngraft.tasks.images.sources import open_source

    name = f"{reader}/someone/images"
    with (
        received(),
        pytest.raises(DataError, match=rf"the {reader.lower()} reader may download it, .*--allow-download"),
    ):
        open_source(DataConfig(source=f"timm:{name}"))
    assert not reached


def test_a_received_run(reached: list[Any], folder: Callable[..., Path], capsys: pytest.CaptureFixture[str]) -> None:
    run = folder("run", {r"name: vit_\S+": f"name: {HUB}"})
    images = DATA / "images"
    commands = [
        ["eval", run],
        ["eval", run, "--suite", "clean"],
        ["eval", run, "--data", "digits"],
        ["predict", run, images],
        ["analyze", "entropy", "--model", run, "--image", images / "0.png", "--out", run.parent / "looks"],
        ["explore", "--model", run, "--image", images / "0.png", "--out", run.parent / "page.html"],
        ["export", run, "--out", run.parent / "new"],
        ["bench", "model", run],
        ["train", "--recipe", run / "recipe.yaml", "--out", run.parent / "again"],
    ]
    for command in commands:
        capsys.readouterr()
        assert call(*command) != 0, command
        assert "add --allow-download" in " ".join(capsys.readouterr().err.split()), command
        assert not reached, command
    assert call("predict", run, images, "--allow-download") != 0
    assert "cannot be downloaded" in capsys.readouterr().err
    assert reached


def test_a_received_run_in_python(reached: list[Any], folder: Callable[..., Path]) -> None:
    run = folder("run", {r"name: vit_\S+": f"name: {HUB}"})
    calls: list[Callable[..., Any]] = [
        evaluate_run,
        open_model,
        lambda path, **given: open_handle(str(path), **given),
        lambda path, **given: export_run(path, run.parent / "new", **given),
    ]
    for act in calls:
        with pytest.raises(HostError, match=REFUSED):
            act(run)
        assert not reached
        with pytest.raises(HostError, match="cannot be downloaded"):
            act(run, allow_download=True)
        assert reached
        reached.clear()


def test_a_received_export(reached: list[Any], folder: Callable[..., Path], capsys: pytest.CaptureFixture[str]) -> None:
    path = folder("exported", {r'"name": "vit_[^"]+"': f'"name": "{HUB}"'})
    for act in (attngraft.load, open_model, lambda path, **given: open_target(str(path), **given)):
        with pytest.raises(HostError, match=REFUSED):
            act(path)
        assert not reached
        with pytest.raises(HostError, match="cannot be downloaded"):
            act(path, allow_download=True)
        assert reached
        reached.clear()
    assert call("eval", path, "--data", "digits") != 0
    assert "add --allow-download" in " ".join(capsys.readouterr().err.split())
    assert not reached


def test_a_received_study(reached: list[Any], folder: Callable[..., Path], capsys: pytest.CaptureFixture[str]) -> None:
    study = folder("study", {r"name: vit_\S+": f"name: {HUB}"})
    options = ["--out", study.parent / "again", "--jobs", "1"]
    assert call("compare", "--study", study / "study.yaml", *options) != 0
    assert "add --allow-download" in " ".join(capsys.readouterr().err.split())
    assert not reached
    own = study.parent / "own.yaml"
    own.write_bytes((study / "study.yaml").read_bytes())
    for command in (["--study", study / "study.yaml", "--allow-download"], ["--study", own]):
        assert call("compare", *command, *options) != 0
        assert reached, command
        reached.clear()


def test_names_that_are_typed_are_downloaded(reached: list[Any], capsys: pytest.CaptureFixture[str]) -> None:
    for command in (
        ["eval", HUB, "--pretrained", "--data", "digits"],
        ["eval", "vit_tiny_patch16_224", "--pretrained", "--data", "digits"],
        ["explore", "--model", "hf:someone/model", "--pretrained", "--image", DATA / "images" / "0.png"],
        [
            "compare",
            "--host",
            "vit_tiny_patch16_224",
            "--pretrained",
            "--graft",
            "cb",
            "--data",
            "digits",
            "--out",
            "x",
        ],
        ["train", "--host", "vit_tiny_patch16_224", "--pretrained", "--data", "digits", "--out", "x"],
    ):
        assert call(*command) != 0
        assert reached, command
        assert "cannot be downloaded" in capsys.readouterr().err
        reached.clear()
