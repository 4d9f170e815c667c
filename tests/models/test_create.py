"""Errors of unavailable pretrained weights, without a network."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import pytest
import safetensors.torch
import timm
import torch
from timm.data import resolve_model_data_config

import attngraft
from attngraft.cli import main
from attngraft.errors import HostError, UsageError
from attngraft.models.schemes import build_anywhere
from attngraft.models.unavailable import why_no_weights
from tests.models.hub_cache import fill

VIT = "vit_tiny_patch16_224"


def failure(kind: str, message: str = "it did not work", cause: Exception | None = None) -> Exception:
    """An error of a class of this name, as the Hub's client and those below it raise."""
    error: Exception = type(kind, (Exception,), {})(message)
    error.__cause__ = cause
    return error


def test_offline_errors_name_the_file_and_its_location(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(HostError) as caught:
        attngraft.create_model(f"{VIT}.augreg_in21k", pretrained=True)
    message = str(caught.value)
    assert message.startswith(f"the weights of {VIT}.augreg_in21k are not in the cache and cannot be downloaded (")
    for part in (
        f"model.safetensors of https://huggingface.co/timm/{VIT}.augreg_in21k",
        *("--weights FILE", "--host-weights FILE", "HF_HOME"),
    ):
        assert part in message


def test_an_unknown_tag_lists_the_known_ones() -> None:
    with pytest.raises(HostError, match=rf"no weights 'in1k' for {VIT}; available: .*{VIT}\.augreg_in21k"):
        attngraft.create_model(f"{VIT}.in1k", pretrained=True)


def test_a_model_without_weights_lists_similar_ones_with_weights() -> None:
    name = "vit_relpos_small_patch16_rpn_224"
    with pytest.raises(
        HostError, match=rf"has no weights for {name} \(but it has weights for vit_relpos_small_patch16_224"
    ):
        attngraft.create_model(name, pretrained=True)


def test_no_argument_names_a_file_to_read() -> None:
    with pytest.raises(HostError, match=r"checkpoint_path: not supported; give weights with --weights FILE"):
        attngraft.create_model("vit_tiny_patch16_224", checkpoint_path="/etc/passwd")


@pytest.mark.parametrize("number", [2**31, 10**30, [8, 10**9]])
def test_arguments_that_fill_the_memory_are_refused(number: Any) -> None:
    with pytest.raises(HostError, match=r"host argument depth: .* is above 1,000,000; correct it"):
        attngraft.create_model(VIT, depth=number)


def test_endless_layers_are_refused() -> None:
    one = torch.nn.Identity()
    with pytest.raises(HostError, match=r"more than 20,000 modules; correct its arguments"):
        build_anywhere(lambda: torch.nn.Sequential(*[one] * 30_000))
    build_anywhere(lambda: torch.nn.Sequential(*[one] * 10_000))


def test_an_unknown_name_lists_similar_ones() -> None:
    with pytest.raises(UsageError, match=f"there is no model 'vit_tiny_patch16_225'.*did you mean {VIT}"):
        attngraft.create_model("vit_tiny_patch16_225", pretrained=True)


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (failure("GatedRepoError"), f"gated: request access at https://huggingface.co/timm/{VIT}"),
        (failure("RepositoryNotFoundError"), rf"the Hugging Face Hub has no timm/{VIT}.*or it is private \(log in"),
        (failure("LocalEntryNotFoundError", "offline", OSError("no route to host\nat all")), r"\(no route to host\)"),
        (failure("HfHubHTTPError", "503 server error."), r"cannot be downloaded \(503 server error\)"),
        (ConnectionError("refused"), r"cannot be downloaded \(refused\)"),
        (TimeoutError(), r"cannot be downloaded \(TimeoutError\)"),
    ],
)
def test_errors_of_the_hub_are_explained(error: Exception, message: str) -> None:
    found = why_no_weights(VIT, error)
    assert found is not None
    assert re.search(message, found), found


def test_other_failures_are_not_explained_by_the_network() -> None:
    assert why_no_weights(VIT, TypeError("an argument too many")) is None
    found = why_no_weights("local-dir:here", UnpicklingError("invalid load key"))
    assert "cannot load the .safetensors file of local-dir:here; run pip install -U timm" in str(found)
    with pytest.raises(HostError, match=f"timm cannot create {VIT} with wings=2"):
        attngraft.create_model(VIT, wings=2)


def test_pretrained_weights_of_a_local_folder(tmp_path: Path) -> None:
    """What `pretrained` does where the weights are there: timm's own doing, a new head, the folder's own mean."""
    torch.manual_seed(1)
    args = {"img_size": 32, "patch_size": 8, "embed_dim": 32, "depth": 2, "num_heads": 2}
    model = timm.create_model(VIT, num_classes=5, **args)
    safetensors.torch.save_file(model.state_dict(), tmp_path / "model.safetensors")
    config = {"mean": [0.1, 0.2, 0.3], "std": [0.4, 0.5, 0.6], "input_size": [3, 32, 32], "num_classes": 5}
    config |= {"first_conv": "patch_embed.proj", "classifier": "head", "crop_pct": 0.8, "interpolation": "bilinear"}
    facts = {"architecture": VIT, "num_classes": 5, "model_args": args, "pretrained_cfg": config}
    (tmp_path / "config.json").write_text(json.dumps(facts))
    made = attngraft.create_model(f"local-dir:{tmp_path}", "cb_s", pretrained=True, num_classes=3)
    for name, value in model.state_dict().items():
        if not name.startswith("head."):
            assert torch.equal(made.state_dict()[name], value), name
    assert made.head.weight.shape == (3, 32)
    assert tuple(resolve_model_data_config(made)["mean"]) == (0.1, 0.2, 0.3)


#: tag -> arguments of a small one; one of each family, and two tags of the same architecture
TAGS: dict[str, dict[str, Any]] = {
    f"{VIT}.augreg_in21k": {"img_size": 32, "patch_size": 8, "embed_dim": 32, "depth": 2, "num_heads": 2},
    f"{VIT}.augreg_in21k_ft_in1k": {"img_size": 32, "patch_size": 8, "embed_dim": 32, "depth": 2, "num_heads": 2},
    "swin_tiny_patch4_window7_224.ms_in1k": {
        "img_size": 32,
        "patch_size": 2,
        "window_size": 4,
        "embed_dim": 16,
        "depths": (1, 1),
        "num_heads": (2, 4),
    },
    "levit_128s.fb_dist_in1k": {
        "img_size": 32,
        "embed_dim": (16, 24),
        "key_dim": 4,
        "depth": (1, 1),
        "num_heads": (2, 3),
    },
}


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A Hugging Face home of this test, in a process that was started without a network."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    return tmp_path


def made(tag: str, seed: int) -> torch.nn.Module:
    """A model such as the one whose weights were published under the tag."""
    torch.manual_seed(seed)
    model: torch.nn.Module = timm.create_model(tag, **TAGS[tag])
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.1)
    return model.eval()


@pytest.mark.parametrize("tag", TAGS)
def test_a_tags_weights_come_from_the_cache_by_name(home: Path, tag: str) -> None:
    known = {each: made(each, seed) for seed, each in enumerate(TAGS)}
    for each, model in known.items():
        fill(home, each, model)
    heads = timm.models.get_pretrained_cfg(tag).classifier
    prefixes = tuple(f"{name}." for name in ([heads] if isinstance(heads, str) else heads))
    found = attngraft.create_model(tag, "cb_s", pretrained=True, num_classes=3, **TAGS[tag]).state_dict()
    for name, value in known[tag].state_dict().items():
        if name.startswith(prefixes):
            assert len(found[name]) == 3
        else:
            assert torch.equal(found[name], value), name
    whole = attngraft.create_model(tag, "cb_s", pretrained=True, **TAGS[tag]).eval()
    images = torch.randn(2, 3, 32, 32)
    with torch.no_grad():
        assert torch.equal(whole(images), known[tag](images))  # its head, too


def test_a_name_without_a_tag_takes_timms_first_one(home: Path) -> None:
    first = f"{VIT}.augreg_in21k_ft_in1k"
    fill(home, first, model := made(first, 5))
    found = attngraft.create_model(VIT, pretrained=True, **TAGS[first])
    assert torch.equal(found.head.weight, model.head.weight)
    with pytest.raises(HostError, match=rf"the weights of {VIT}\.augreg_in21k are not in the cache"):
        attngraft.create_model(f"{VIT}.augreg_in21k", pretrained=True, **TAGS[first])


def test_without_the_weights_nothing_is_begun(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tag = f"{VIT}.augreg_in21k_ft_in1k"
    words = ["--host", tag, "--pretrained", "--data", "digits", "--recipe", "graft-only", "--graft", "cb_s"]
    with pytest.raises(SystemExit) as ended:
        main(["compare", *words, "--epochs", "1", "--out", str(home / "study")])
    assert ended.value.code == 2
    said = " ".join(capsys.readouterr().err.split())
    assert f"the weights of {tag} are not in the cache and cannot be downloaded" in said
    assert not (home / "study" / "runs").exists()


@pytest.mark.slow
def test_a_copied_cache_is_all_that_training_needs(tmp_path: Path) -> None:
    """As someone without a network does it: HF_HOME set to a copy, the tag as --host."""
    tag = f"{VIT}.augreg_in21k_ft_in1k"
    fill(tmp_path / "home", tag, model := made(tag, 5))
    host = {
        **TAGS[tag],
        "img_size": 8,
        "patch_size": 4,
        "in_chans": 1,
    }  # the cached ones are of another size, in colour
    arguments = [text for name, value in host.items() for text in ("--host-arg", f"{name}={value}")]
    arguments += ["--host", tag, "--pretrained", "--data", "digits", "--recipe", "graft-only", "--graft", "cb_s"]
    arguments += ["--epochs", "1", "--set", "train.batch_size=512"]

    environment = {name: value for name, value in os.environ.items() if not name.startswith("HF_")}
    environment |= {"HF_HOME": str(tmp_path / "home"), "HF_HUB_OFFLINE": "1"}
    run = tmp_path / "run"
    command = [sys.executable, "-m", "attngraft", "train", *arguments, "--out", str(run)]
    told = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=200, check=False)
    assert told.returncode == 0, told.stderr
    assert tag in json.loads((run / "start.json").read_text())["from"]
    last = torch.load(run / "checkpoints" / "last.pt", weights_only=True)["model"]
    for name, value in model.state_dict().items():
        if name.startswith("blocks."):  # the host was frozen
            assert torch.equal(last[name], value), name
