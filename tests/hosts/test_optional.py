"""Adapters for packages that one can do without: imported late, named where they cannot be had."""

from __future__ import annotations

import subprocess
import sys

import pytest
from torch import nn

import attngraft
from attngraft.hosts import optional

TIMM = """
import sys
if {blocked}:
    sys.modules["transformers"] = None  # as if it were not installed
import timm, attngraft
model = timm.create_model("vit_tiny_patch16_224", img_size=16, patch_size=8, embed_dim=24, depth=1, num_heads=3)
attngraft.graft(model, "horizontal")
attngraft.ungraft(model)
"""


def run(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_model_of_timm_does_not_import_transformers() -> None:
    run(TIMM.format(blocked=False) + "assert not [name for name in sys.modules if name.startswith('transformers')]")


def test_without_transformers_all_else_works_and_its_hosts_are_named() -> None:
    listed = """
for host in attngraft.list_hosts():
    print(host.name, host.summary)
try:
    attngraft.from_pretrained("folder")
except attngraft.AttngraftError as error:
    print(error)
"""
    found = run(TIMM.format(blocked=True) + listed)
    for name in optional.OPTIONAL["transformers"].names:
        assert f"{name} needs transformers: pip install 'attngraft[hf]'" in found
    assert "timm.vit" in found
    assert "folder: this needs transformers: pip install 'attngraft[hf]'" in found


def test_adapters_are_listed_under_the_names_by_which_they_are_missed() -> None:
    pytest.importorskip("transformers", reason="needs transformers: pip install 'attngraft[hf]'")
    listed = [host.name for host in attngraft.list_hosts()]
    assert [name for name in listed if name.startswith("hf.")] == list(optional.OPTIONAL["transformers"].names)
    assert not any("needs transformers" in host.summary for host in attngraft.list_hosts())


def test_an_adapter_that_does_not_fit_the_release_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(optional, "OPTIONAL", {"timm": optional.Extra("old", ("timm.no_such_family",))})
    optional.load.cache_clear()
    try:
        from timm.layers import Mlp

        with pytest.raises(
            attngraft.HostError, match=r"timm\.no_such_family cannot read the models of timm [\d.]+ \(No "
        ):
            attngraft.graft(nn.Sequential(Mlp(2)), "cb")
    finally:
        optional.load.cache_clear()
