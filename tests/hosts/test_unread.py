"""Attention that no adapter reads says what it is."""

from __future__ import annotations

import importlib
from typing import Any

import pytest
import timm
import torch
from torch import nn

import attngraft
from attngraft.hosts.unread import UNREAD, why_unread


@pytest.mark.parametrize("name", UNREAD)
def test_every_class_is_one_of_timms(name: str) -> None:
    module, _, kind = name.rpartition(".")
    try:
        found: Any = importlib.import_module(module)
    except ModuleNotFoundError:
        pytest.skip(f"timm {timm.__version__} has no {module}")
    assert issubclass(getattr(found, kind), nn.Module)


def test_the_refusal_of_a_network_of_convolutions_says_what_attends_in_it() -> None:
    with torch.device("meta"):
        model = timm.create_model("lambda_resnet26t")
    with pytest.raises(
        attngraft.HostError, match=r"What attends in it is not read: LambdaLayer: it is linear.*Supported: "
    ):
        attngraft.graft(model, "horizontal")


def test_a_model_without_attention_has_no_such_reason() -> None:
    assert why_unread(nn.Sequential(nn.Linear(2, 2))) is None
    with pytest.raises(attngraft.HostError, match="holds none. Supported: "):
        attngraft.graft(nn.Sequential(nn.Linear(2, 2)), "cb")
