"""Weights from the Hub, where the Hub does not answer."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
import timm
import torch

import attngraft
from attngraft.errors import HostError
from attngraft.models.hub import hub_or_cache
from tests.models.hub_cache import fill

TAG = "vit_tiny_patch16_224.augreg_in21k"
ARGS = {"img_size": 32, "patch_size": 8, "embed_dim": 32, "depth": 1, "num_heads": 2}


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A Hugging Face home, and a Hub at a port that refuses connections."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    return tmp_path


def test_it_is_tried_once(home: Path) -> None:
    begin = time.monotonic()
    with pytest.raises(HostError, match=r"are not in the cache and cannot be downloaded \(.*refused"):
        attngraft.create_model(TAG, pretrained=True, **ARGS)
    with pytest.raises(HostError, match=r"^hf:someone/model is not in the cache and cannot be downloaded \(.*refused"):
        attngraft.create_model("hf:someone/model", pretrained=True)
    assert time.monotonic() - begin < 5, "huggingface_hub tries for 20 s or more"


def test_the_cache_is_used_at_once(home: Path) -> None:
    torch.manual_seed(0)
    model = timm.create_model(TAG, **ARGS)
    fill(home, TAG, model)
    found = attngraft.create_model(TAG, pretrained=True, **ARGS)
    assert torch.equal(found.head.weight, model.head.weight)


def test_the_clients_own_mode_is_put_back(home: Path) -> None:
    from huggingface_hub import constants

    with hub_or_cache(TAG) as error:
        assert error is not None and constants.HF_HUB_OFFLINE
    assert not constants.HF_HUB_OFFLINE
