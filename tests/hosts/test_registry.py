"""Adapters are imported when needed; those that cannot be imported are listed with the reason."""

from __future__ import annotations

import pickle
import re
import subprocess
import sys
from pathlib import Path

import pytest
import timm
from torch import nn

import attngraft
from attngraft.hosts import registry
from attngraft.hosts.find import describe_missing

TIMM = """
import sys
if {blocked}:
    sys.modules["transformers"] = None  # as if it were not installed
import timm, attngraft
model = timm.create_model("vit_tiny_patch16_224", img_size=16, patch_size=8, embed_dim=24, depth=1, num_heads=3)
attngraft.graft(model, "horizontal")
attngraft.ungraft(model)
"""


def run(code: str, *arguments: str) -> str:
    done = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.product
def test_a_model_of_timm_does_not_import_transformers() -> None:
    run(TIMM.format(blocked=False) + "assert not [name for name in sys.modules if name.startswith('transformers')]")


@pytest.mark.slow
def test_without_transformers_everything_else_works_and_its_hosts_are_named() -> None:
    listed = """
for host in attngraft.list_hosts():
    print(host.name, host.summary)
try:
    attngraft.from_pretrained("folder")
except attngraft.AttngraftError as error:
    print(error)
"""
    found = run(TIMM.format(blocked=True) + listed)
    for name in registry.PACKAGES["transformers"].adapters:
        assert f"{name} requires transformers; run pip install 'attngraft[hf]'" in found
    assert "timm.vit" in found
    assert "folder: this requires transformers; run pip install 'attngraft[hf]'" in found


def test_adapters_have_the_same_names_when_missing() -> None:
    pytest.importorskip("transformers", reason="needs transformers: pip install 'attngraft[hf]'")
    listed = [host.name for host in attngraft.list_hosts()]
    assert [name for name in listed if name.startswith("hf.")] == list(registry.PACKAGES["transformers"].adapters)
    assert not any("requires transformers" in host.summary for host in attngraft.list_hosts())


def test_an_adapter_that_does_not_fit_the_release_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    old = {"timm": registry.Package({"timm.old": "timm.no_such_family"})}
    monkeypatch.setattr(registry, "PACKAGES", {**registry.PACKAGES, **old})
    registry.load.cache_clear()
    try:
        from timm.layers import Mlp

        with pytest.raises(attngraft.HostError, match=r"timm\.old cannot read the models of timm [\d.]+ \(No "):
            attngraft.graft(nn.Sequential(Mlp(2)), "cb")
    finally:
        registry.load.cache_clear()


RENAMED = """
import sys, timm, torch, torchvision
sys.modules["transformers"] = None
import timm.models.xcit as xcit
kept = xcit.ClassAttentionBlock
del xcit.ClassAttentionBlock  # as if the release called it otherwise
sys.modules["timm.models.hiera"] = None  # or had no such file
del torchvision.models.swin_transformer.ShiftedWindowAttentionV2
import attngraft
for host in attngraft.list_hosts():
    print(host.name, host.summary)
vit = timm.create_model("vit_tiny_patch16_224", img_size=16, patch_size=8, embed_dim=24, depth=1, num_heads=3)
attngraft.graft(vit, "horizontal")
attngraft.graft(torch.nn.TransformerEncoderLayer(16, 2), "horizontal")
attngraft.graft(torchvision.models.VisionTransformer(16, 8, 1, 2, 16, 16), "horizontal")
xcit.ClassAttentionBlock = kept
model = timm.create_model("xcit_nano_12_p16_224", img_size=32, embed_dim=16, depth=1, num_heads=2, cls_attn_layers=1)
try:
    attngraft.graft(model, "horizontal")
except attngraft.HostError as error:
    print("refused:", error)
"""


@pytest.mark.slow
def test_a_class_that_a_release_renames_affects_only_its_adapter() -> None:
    found = run(RENAMED)
    listed, _, refused = found.partition("refused:")
    lost = r"{} cannot read the models of {} [\d.]+.* \(.*{}.*\): pip install -U attngraft {}"
    for name, what in (("timm.xcit", "ClassAttentionBlock"), ("timm.hiera", r"timm\.models\.hiera")):
        assert re.search(lost.format(re.escape(name), "timm", what, "timm"), listed)
    assert re.search(lost.format(r"torchvision\.swin", "torchvision", "WindowAttentionV2", "torchvision"), listed)
    already = {*registry.load("timm"), *registry.load("torchvision")}  # models missing from an old release
    assert set(re.findall(r"^(\S+) cannot read", listed, re.M)) == already | {
        "timm.xcit",
        "timm.hiera",
        "torchvision.swin",
    }
    assert "Xcit is not a supported host" in refused
    assert re.search(lost.format(r"timm\.xcit", "timm", "ClassAttentionBlock", "timm"), refused)
    assert "torchvision.swin" not in refused


def test_each_reason_is_named_once() -> None:
    text = describe_missing({"a.one": "needs a", "b.one": "needs b", "a.two": "needs a"})
    assert text == "a.one, a.two needs a. b.one needs b."


UNPICKLE = """
import pickle, sys, attngraft
with open(sys.argv[1], "rb") as file:
    models = pickle.load(file)
for model in models:
    print(sorted(type(module).__name__ for module in model.modules() if "grafts" in module._modules))
    attngraft.ungraft(model)
"""


@pytest.mark.slow
def test_patched_classes_of_a_table_are_unpickled_in_a_fresh_process(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers", reason="needs transformers: pip install 'attngraft[hf]'")
    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    tiny = {"img_size": 32, "embed_dim": 16, "depth": 1, "num_heads": 2, "cls_attn_layers": 1}
    models = [
        transformers.ViTModel(transformers.ViTConfig(**sizes, image_size=8, patch_size=4)),
        timm.create_model("xcit_nano_12_p16_224", **tiny),
    ]
    attngraft.graft(models[0], "horizontal + cb_s")
    attngraft.graft(models[1], "horizontal@cls_attn_blocks.*")
    (tmp_path / "models.pickle").write_bytes(pickle.dumps(models))
    found = run(UNPICKLE, str(tmp_path / "models.pickle")).splitlines()
    assert found == ["['GraftedViTAttention', 'GraftedViTLayer']", "['GraftedClassAttn']"]
