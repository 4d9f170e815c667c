"""Graft files: matching files load, others are refused with a message and change nothing."""

from __future__ import annotations

import contextlib
import json
import math
import threading
import zlib
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from packaging.version import Version
from safetensors.torch import load_file, safe_open, save_file
from torch import nn

import attngraft
from attngraft.grafting.io import FORMAT, read_graft_file
from tests.contract.tester import assert_same_host, snapshot
from tests.grafting.test_apply import tiny_swin, tiny_vit

SPEC = "cb_s(init=0.5)@blocks.1-2 + horizontal@blocks.0 + vertical(reduction=2)@last:1"
SCALE = "blocks.1.mlp.grafts.cb_s.scale"
DATA = Path(__file__).parent / "data"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    model = tiny_vit()
    attngraft.graft(model, SPEC)
    return attngraft.save_grafts(model, tmp_path / "grafts.safetensors")


def rewrite(file: Path, change_manifest=None, change_tensors=None) -> None:
    with safe_open(file, framework="pt") as opened:
        manifest = json.loads(opened.metadata()["attngraft"])
    tensors = load_file(file)
    if change_manifest:
        manifest = change_manifest(manifest) or manifest
    if change_tensors:
        change_tensors(tensors)
    save_file(tensors, file, metadata={"attngraft": json.dumps(manifest)})


def assert_refused(file: Path, message: str, model=None) -> None:
    model = model or tiny_vit()
    before = snapshot(model)
    with pytest.raises(attngraft.GraftFileError, match=message) as caught:
        attngraft.load_grafts(model, file)
    assert str(file) in str(caught.value)
    assert_same_host(model, before)


def test_the_manifest_lists_the_contents(file: Path) -> None:
    manifest, tensors = read_graft_file(file)
    assert manifest.format == FORMAT
    assert manifest.version == attngraft.__version__
    assert manifest.host.adapter == "timm.vit"
    assert attngraft.plan(tiny_vit(), manifest.spec).parameters == sum(t.numel() for t in tensors.values())
    assert "blocks.1.mlp.grafts.cb_s.scale" in tensors
    assert not any("qkv" in name for name in tensors)


def hashed(name: str, shape: tuple[int, ...]) -> torch.Tensor:
    """Numbers between -1 and 1 from integers alone: the same in every release of torch."""
    found = torch.arange(math.prod(shape)) + zlib.crc32(name.encode())
    for factor in (2654435761, 2246822519, 3266489917):
        found = (found * factor) & 0xFFFFFFFF
        found = found ^ (found >> 15)
    return (found.double() / 2**31 - 1).reshape(shape)


def filled(model: torch.nn.Module) -> torch.nn.Module:
    """Values by the names of the parameters: matrices that keep a variance, the rest around 1."""
    for name, parameter in model.named_parameters():
        value = hashed(name, tuple(parameter.shape))
        value = value * (3 / parameter[0].numel()) ** 0.5 if parameter.dim() > 1 else 1 + 0.5 * value
        parameter.data = value.to(parameter.dtype)
    return model


@pytest.mark.parametrize(
    ("name", "make", "spec"),
    [
        (
            "grafts_format1",
            tiny_vit,
            "horizontal@blocks.0.attn + cb_s(init=0.5)@blocks.1.mlp,blocks.2.mlp + vertical(reduction=2)@blocks.2.attn",
        ),
        (
            "grafts_format1_bisa",
            lambda: tiny_swin(num_classes=5),
            "bisa(learned=true, norm=true)@layers.0.blocks.0.attn + misa@layers.0.blocks.1.attn + "
            "bisa(weight=0.3, separate=true)@layers.1.blocks.0.attn + se(reduction=2)@layers.0.blocks.1.mlp",
        ),
    ],
)
def test_a_file_of_this_release_loads_forever(name: str, make: Any, spec: str) -> None:
    """And means the same: what the model puts out, on a host whose values are a formula's.

    The second stands on windows that are shifted and filled up, and brings the head and the norms along.
    """
    model = filled(make())
    assert sorted(attngraft.load_grafts(model, DATA / f"{name}.safetensors").spec.split(" + ")) == sorted(
        spec.split(" + ")
    )
    side = 16 if make is tiny_vit else 28
    images = hashed("images", (2, 3, side, side)).float()
    with torch.no_grad():
        outputs = model(images)
    if make is not tiny_vit and Version(timm.__version__) <= Version("1.0.26"):
        pytest.skip(
            "the file loads; timm 1.0.26 masks maps that windows do not fill in another way, without grafts too"
        )
    expected = torch.tensor(json.loads((DATA / "outputs.json").read_text())[name])
    torch.testing.assert_close(outputs, expected, atol=1e-4, rtol=1e-4)
    assert expected.abs().max() > 0.1
    assert (expected[0] - expected[1]).abs().max() > 0.02


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda file: file.write_bytes(file.read_bytes()[:200]), "damaged or not a safetensors file"),
        (lambda file: file.write_bytes(b"not a file of tensors"), "damaged or not a safetensors file"),
        (lambda file: file.write_bytes(b""), "damaged or not a safetensors file"),
        (lambda file: file.unlink(), "no such file"),
        (lambda file: save_file({"x": torch.zeros(1)}, file), "without grafts"),
        (lambda file: save_file({"x": torch.zeros(1)}, file, metadata={"attngraft": "{"}), "manifest cannot be read"),
        (
            lambda file: rewrite(file, lambda m: m.update(format=FORMAT + 1, version="9.0")),
            "format 2, written by attngraft 9.0",
        ),
        (lambda file: rewrite(file, lambda m: m.pop("entries") and None), "manifest.entries: missing"),
        (lambda file: rewrite(file, None, lambda t: t.pop("blocks.1.mlp.grafts.cb_s.scale")), "lacks blocks.1.mlp"),
        (lambda file: rewrite(file, None, lambda t: t.update(extra=torch.zeros(1))), "has extra, which no graft uses"),
        (
            lambda file: rewrite(file, None, lambda t: t.update({"blocks.1.mlp.grafts.cb_s.scale": torch.zeros(7)})),
            r"of shape \(7,\) where \(24,\) fits",
        ),
        (
            lambda file: rewrite(file, lambda m: m["entries"][0].update(graft="bisa9")),
            "'bisa9', which is not registered",
        ),
        (lambda file: rewrite(file, lambda m: m["entries"][0].update(site="blocks.9.attn")), "no site 'blocks.9.attn'"),
        (lambda file: rewrite(file, lambda m: m["entries"][0].update(options={"x": 1})), "invalid manifest entry"),
        (lambda file: rewrite(file, None, lambda t: t.update({"host.neck": torch.zeros(1)})), "includes neck"),
        (
            lambda file: rewrite(file, None, lambda t: t.update({"host.head.weight": torch.full((5, 24), 1e9)})),
            "includes head.weight, which is not one of the host's parts that its manifest includes",
        ),
        (
            lambda file: rewrite(file, lambda m: m.update(include=["head"])),
            "lacks head.weight, a part that its manifest includes",
        ),
        (
            lambda file: rewrite(file, lambda m: m.update(include=["neck"])),
            "includes 'neck', but the parts of a host are",
        ),
        (
            lambda file: rewrite(file, None, lambda t: t.update({SCALE: torch.full((24,), math.nan)})),
            f"{SCALE} has values that are not finite",
        ),
        (
            lambda file: rewrite(file, None, lambda t: t.update({SCALE: torch.ones(24, dtype=torch.int64)})),
            f"{SCALE} is of type int, but the model's of type float",
        ),
        (
            lambda file: rewrite(file, None, lambda t: t.update({SCALE: torch.ones(24, dtype=torch.complex64)})),
            f"{SCALE} is of type complex, but the model's of type float",
        ),
    ],
)
def test_damaged_files_are_refused(file: Path, damage, message: str) -> None:
    damage(file)
    assert_refused(file, message)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda m: m["entries"].append(dict(m["entries"][0])),
            "contains the graft 'horizontal' at blocks.0.attn twice",
        ),
        (
            lambda m: m["entries"].extend({**m["entries"][0], "instance": f"x{number}"} for number in range(100)),
            "blocks.0.attn has more than 100 grafts",
        ),
        (
            lambda m: m["entries"][0].update(stage="tokens"),
            "horizontal .* at blocks.0.attn does not use the hook point 'tokens'",
        ),
        (lambda m: m["entries"][0].update(stage="mlp"), "no site 'blocks.0.attn' with hook point 'mlp'"),
        (
            lambda m: m["entries"][1]["options"].update(init=1e300),
            r"'cb_s' at 'blocks.1.mlp': init: 1e\+300 exceeds the largest float32",
        ),
        (lambda m: m.update(spec="cb"), "its spec cb does not have the grafts of its entries; save the grafts again"),
        (lambda m: m.update(spec="cb@"), "invalid spec: .*save the grafts again"),
    ],
)
def test_manifests_that_no_model_has_are_refused(file: Path, change, message: str) -> None:
    rewrite(file, change)
    assert_refused(file, message)


def test_two_grafts_of_a_file_do_not_get_in_each_others_way(tmp_path: Path) -> None:
    model = tiny_vit()
    attngraft.graft(model, "bisa@blocks.1")
    path = attngraft.save_grafts(model, tmp_path / "g.safetensors")
    rewrite(
        path, lambda m: m["entries"].append({**m["entries"][0], "graft": "misa", "instance": "misa", "options": {}})
    )
    assert_refused(path, "blocks.1.attn already has a graft at hook point mix")


def test_another_host_is_refused(file: Path) -> None:
    assert_refused(file, "is for a timm.vit host", tiny_swin())
    assert_refused(file, "3 sites|6 sites", _vit(depth=2))
    assert_refused(file, "host of another size", _vit(embed_dim=48))


def _vit(**changes: object) -> torch.nn.Module:
    sizes = {"img_size": 16, "patch_size": 8, "embed_dim": 24, "depth": 3, "num_heads": 3, "num_classes": 5}
    return attngraft.create_model("vit_tiny_patch16_224", **{**sizes, **changes})


def test_loading_twice_is_refused(file: Path) -> None:
    model = tiny_vit()
    attngraft.load_grafts(model, file)
    with pytest.raises(
        attngraft.GraftFileError, match="already has a graft .*; remove it first with attngraft.ungraft"
    ):
        attngraft.load_grafts(model, file)


def test_a_fingerprint_restricts_the_file_to_weights(tmp_path: Path) -> None:
    model = tiny_vit()
    attngraft.graft(model, "cb_s")
    path = attngraft.save_grafts(model, tmp_path / "g.safetensors", fingerprint=True)
    attngraft.load_grafts(tiny_vit(), path)
    other = tiny_vit()
    other.blocks[0].attn.qkv.weight.data[0, 0] += 1
    assert_refused(path, "a host with other weights", other)
    assert attngraft.load_grafts(other, path, check_fingerprint=False).parameters == 72


def test_a_file_without_a_checksum_loads(file: Path, caplog: pytest.LogCaptureFixture) -> None:
    rewrite(file)
    caplog.set_level("DEBUG", logger="attngraft.grafting.io")
    assert attngraft.load_grafts(tiny_vit(), file).entries
    assert [(record.levelname, "has no checksum" in record.message) for record in caplog.records] == [("DEBUG", True)]


def test_precisions_may_differ(file: Path) -> None:
    rewrite(file, None, lambda t: t.update({SCALE: torch.full((24,), 0.5, dtype=torch.bfloat16)}))
    model = tiny_vit()
    attngraft.load_grafts(model, file)
    assert torch.equal(model.blocks[1].mlp.grafts.cb_s.scale, torch.full((24,), 0.5))


def test_the_values_of_included_parts_come_back_after_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny_vit()
    attngraft.graft(model, "cb_s")
    path = attngraft.save_grafts(model, tmp_path / "g.safetensors", include=["head", "norms"])
    other = tiny_vit()
    torch.nn.init.normal_(other.head.weight)
    before, copied = snapshot(other), torch.Tensor.copy_
    written: list[int] = []

    def copy(tensor: torch.Tensor, value: torch.Tensor, *rest: Any) -> torch.Tensor:
        written.append(tensor.data_ptr())
        if written.count(other.norm.bias.data_ptr()) == 1 and tensor.data_ptr() == other.norm.bias.data_ptr():
            raise RuntimeError("stop")
        return copied(tensor, value, *rest)

    monkeypatch.setattr(torch.Tensor, "copy_", copy)
    with pytest.raises(RuntimeError, match="stop"):
        attngraft.load_grafts(other, path)
    monkeypatch.undo()
    assert other.head.weight.data_ptr() in written
    assert_same_host(other, before)


def test_head_and_norms_travel_along(tmp_path: Path) -> None:
    model = tiny_vit()
    attngraft.graft(model, "cb")
    torch.nn.init.normal_(model.head.weight)
    torch.nn.init.normal_(model.norm.bias)
    path = attngraft.save_grafts(model, tmp_path / "g.safetensors", include=["head", "norms"])
    other = tiny_vit()
    attngraft.load_grafts(other, path)
    assert torch.equal(other.head.weight, model.head.weight)
    assert torch.equal(other.norm.bias, model.norm.bias)
    assert_refused(path, r"includes head\.(weight|bias) of shape \(5.*, but this model's is \(7", _vit(num_classes=7))


def test_saving_names_what_is_missing(tmp_path: Path) -> None:
    model = tiny_vit()
    with torch.device("meta"):
        attngraft.graft(empty := tiny_vit(), "cb_s")
    with pytest.raises(attngraft.GraftSpecError, match="is on the meta device, without values"):
        attngraft.save_grafts(empty, tmp_path / "empty.safetensors")
    with pytest.raises(attngraft.GraftSpecError, match="has no grafts"):
        attngraft.save_grafts(model, tmp_path / "g.safetensors")
    attngraft.graft(model, "cb")
    with pytest.raises(attngraft.GraftSpecError, match="unknown part 'neck'; parts: head, norms"):
        attngraft.save_grafts(model, tmp_path / "g.safetensors", include=["neck"])
    assert list(tmp_path.iterdir()) == []


class Wrapper(nn.Module):
    """A graft as PEFT's `modules_to_save` wraps it."""

    def __init__(self, graft: Any) -> None:
        super().__init__()
        self.modules_to_save = nn.ModuleDict({"default": graft})
        self.hook_point, self.kind, self.options, self.folded = graft.hook_point, graft.kind, graft.options, ""


def test_a_wrapped_graft_is_not_saved(tmp_path: Path) -> None:
    model = tiny_vit()
    attngraft.graft(model, "cb_s@blocks.0")
    grafts = model.blocks[0].mlp.grafts
    grafts["cb_s"] = Wrapper(grafts["cb_s"])
    with pytest.raises(attngraft.GraftSpecError, match=r"grafts\.cb_s is wrapped in Wrapper .*modules_to_save"):
        attngraft.save_grafts(model, tmp_path / "x.safetensors")
    assert not list(tmp_path.iterdir())


def test_negative_variances_are_refused(tmp_path: Path) -> None:
    sizes = {"embed_dim": (16, 24, 32), "key_dim": 8, "num_heads": (2, 2, 2), "depth": (1, 1, 1), "img_size": 64}
    host = timm.create_model("levit_128s", num_classes=3, **sizes)
    attngraft.graft(host, "bisa@stages.0")
    file = attngraft.save_grafts(host, tmp_path / "x.safetensors")
    name = next(name for name in load_file(file) if name.endswith("running_var"))
    rewrite(file, None, lambda tensors: tensors[name].neg_())
    with pytest.raises(attngraft.GraftFileError, match=f"{name} has negative variances; use an earlier file"):
        attngraft.load_grafts(timm.create_model("levit_128s", num_classes=3, **sizes), file)


def test_grafts_are_not_saved_while_others_are_added(tmp_path: Path) -> None:
    model, stop, errors = tiny_vit(), threading.Event(), list[BaseException]()

    def change() -> None:
        while not stop.is_set():
            attngraft.graft(model, "cb_s")
            attngraft.ungraft(model)

    def save() -> None:
        try:
            for _ in range(60):
                with contextlib.suppress(attngraft.GraftSpecError):  # there are none
                    attngraft.save_grafts(model, tmp_path / "x.safetensors")
                    attngraft.load_grafts(tiny_vit(), tmp_path / "x.safetensors")
                    assert len(read_graft_file(tmp_path / "x.safetensors")[0].entries) == len(model.blocks)
        except BaseException as error:
            errors.append(error)
        finally:
            stop.set()

    threads = [threading.Thread(target=each) for each in (change, save)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not errors


def test_values_beyond_the_hosts_precision_are_refused(file: Path) -> None:
    rewrite(file, None, lambda t: t.update({SCALE: torch.full((24,), 1e6)}))
    with pytest.raises(attngraft.GraftFileError, match=rf"{SCALE} has values that are not finite in torch.float16"):
        attngraft.load_grafts(tiny_vit().half(), file, check_fingerprint=False)


def test_precision_is_that_of_the_grafted_module(file: Path) -> None:
    rewrite(file, None, lambda t: t.update({SCALE: torch.full((24,), 1e6)}))
    model = tiny_vit()
    model.blocks.half()
    with pytest.raises(attngraft.GraftFileError, match=rf"{SCALE} has values that are not finite in torch.float16"):
        attngraft.load_grafts(model, file, check_fingerprint=False)
