"""Why weights of timm could not be had: said in words that help, without a network."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import safetensors.torch
import timm
import torch
from timm.data import resolve_model_data_config

import attngraft
from attngraft.errors import HostError, UsageError
from attngraft.models.pretrained import why_no_weights

VIT = "vit_tiny_patch16_224"


def failure(kind: str, message: str = "it did not work", cause: Exception | None = None) -> Exception:
    """An error of a class of this name, as the Hub's client and those below it raise."""
    error: Exception = type(kind, (Exception,), {})(message)
    error.__cause__ = cause
    return error


def test_offline_says_which_file_and_where_to_put_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(HostError) as caught:
        attngraft.create_model(f"{VIT}.augreg_in21k", pretrained=True)
    message = str(caught.value)
    assert message.startswith(f"the weights of {VIT}.augreg_in21k are not in the cache and cannot be fetched (")
    for part in (
        f"model.safetensors of https://huggingface.co/timm/{VIT}.augreg_in21k",
        *("--weights FILE", "host.weights", "HF_HOME", "HF_HUB_OFFLINE=1"),
    ):
        assert part in message


def test_a_tag_that_is_not_there_is_answered_with_those_that_are() -> None:
    with pytest.raises(HostError, match=rf"no weights 'in1k' for {VIT}; there are .*{VIT}\.augreg_in21k"):
        attngraft.create_model(f"{VIT}.in1k", pretrained=True)


def test_a_model_without_weights_is_answered_with_those_that_have_some() -> None:
    name = "vit_relpos_small_patch16_rpn_224"
    with pytest.raises(HostError, match=rf"has no weights for {name} \(it has some for vit_relpos_small_patch16_224"):
        attngraft.create_model(name, pretrained=True)


def test_a_name_that_is_not_there_is_answered_with_near_ones() -> None:
    with pytest.raises(UsageError, match=f"there is no model 'vit_tiny_patch16_225'.*did you mean {VIT}"):
        attngraft.create_model("vit_tiny_patch16_225", pretrained=True)


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (failure("GatedRepoError"), f"gated: ask for access at https://huggingface.co/timm/{VIT}"),
        (failure("RepositoryNotFoundError"), rf"the Hugging Face Hub has no timm/{VIT}.*or it is private \(log in"),
        (failure("LocalEntryNotFoundError", "offline", OSError("no route to host\nat all")), r"\(no route to host\)"),
        (failure("HfHubHTTPError", "503 server error."), r"cannot be fetched \(503 server error\)"),
        (ConnectionError("refused"), r"cannot be fetched \(refused\)"),
        (TimeoutError(), r"cannot be fetched \(TimeoutError\)"),
    ],
)
def test_what_the_hub_answers_in_words(error: Exception, message: str) -> None:
    found = why_no_weights(VIT, error)
    assert found is not None
    assert re.search(message, found), found


def test_other_failures_are_not_explained_by_the_network() -> None:
    assert why_no_weights(VIT, TypeError("an argument too many")) is None
    with pytest.raises(HostError, match=f"timm cannot make {VIT} with wings=2"):
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
