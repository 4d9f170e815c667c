"""Checkpoints of training scripts: every layout, their descriptions, and refused files."""

from __future__ import annotations

import argparse
import json
import os
import zipfile
from collections import OrderedDict
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy
import pytest
import safetensors.torch
import torch
from torch import Tensor

from attngraft.errors import AttngraftError, HostError, UsageError
from attngraft.models.checkpoint_file import CheckpointFile, read_checkpoint

STATE = {"latents": torch.arange(6.0).view(1, 2, 3), "head.weight": torch.ones(4, 3)}
OTHER = {name: -value for name, value in STATE.items()}
ARGS = argparse.Namespace(model="bixt_ti_l64_p16", lr=0.1, betas=[0.9, 0.999], inner=argparse.Namespace(deep=1))


def whole(**entries: Any) -> dict[str, Any]:
    """What timm's saver writes, with `entries` in place of the weights."""
    found = {"epoch": 799, "arch": "bixt_ti_l64_p16", "optimizer": {"state": {}}, "version": 2, "args": ARGS}
    return {**found, "amp_scaler": {"scale": 65536.0}, "metric": 80.1, **entries}


def saved(value: Any, path: Path, **options: Any) -> Path:
    torch.save(value, path, **options)
    return path


def zipped(
    file: Path, path: Path, *, name: str = "model_best.pth.tar", beside: Mapping[str, bytes] | None = None
) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.write(file, name)
        for other, content in (beside or {}).items():
            archive.writestr(other, content)
    return path


def prefixed(prefix: str) -> dict[str, Tensor]:
    return {f"{prefix}{name}": value for name, value in STATE.items()}


def assert_is(found: CheckpointFile, state: Mapping[str, Tensor] = STATE) -> None:
    assert found.tensors.keys() == state.keys()
    assert all(torch.equal(found.tensors[name], value) for name, value in state.items())


@pytest.mark.parametrize(
    ("value", "layout"),
    [
        (STATE, "the file itself"),
        (OrderedDict(STATE), "the file itself"),
        (whole(state_dict=STATE), "state_dict"),
        (whole(model=STATE), "model"),
        (whole(state_dict=OTHER, state_dict_ema=STATE), "state_dict_ema"),
        (whole(model=OTHER, model_ema=STATE), "model_ema"),
        (whole(state_dict=STATE, state_dict_ema=None), "state_dict"),
    ],
    ids=lambda value: value.replace(" ", "-") if isinstance(value, str) else "",
)
@pytest.mark.parametrize("old", [False, True], ids=["", "old-format"])
def test_every_layout(tmp_path: Path, value: Any, layout: str, old: bool) -> None:
    found = read_checkpoint(saved(value, tmp_path / "a.pth.tar", _use_new_zipfile_serialization=not old))
    assert_is(found)
    assert found.layout == layout
    assert found.stripped == ()
    if layout != "the file itself":
        assert (found.architecture, found.epoch) == ("bixt_ti_l64_p16", 799)
        assert {"optimizer", "args", "amp_scaler", "metric", "version"} <= set(found.left)
        assert layout not in found.left


@pytest.mark.parametrize("name", ["model_best.pth.tar", "bixt_ti_l64_p16/model_best.pth.tar", "weights.pth"])
def test_the_zip_around_a_checkpoint(tmp_path: Path, name: str) -> None:
    inner = saved(whole(state_dict=STATE), tmp_path / "inner.pth.tar")
    for outer in ("bixt_ti_l64_p16.zip", "bixt_ti_l64_p16.pth.tar"):  # as it is fetched, and under another name
        found = read_checkpoint(
            zipped(inner, tmp_path / outer, name=name, beside={"__MACOSX/._a.pth": b"", "log.txt": b"x"})
        )
        assert_is(found)
        assert found.layout == f"state_dict of {name} in the zip"
        assert found.architecture == "bixt_ti_l64_p16"


def test_the_best_of_several_files_in_a_zip_is_read(tmp_path: Path) -> None:
    inner = saved(whole(state_dict=STATE), tmp_path / "inner.pth.tar")
    assert_is(read_checkpoint(zipped(inner, tmp_path / "a.zip", beside={"last.pth.tar": b"other"})))
    with pytest.raises(
        UsageError, match=r"b\.zip: a zip must contain one weights file, this one has last\.pth, b/other\.pt; unpack"
    ):
        read_checkpoint(zipped(inner, tmp_path / "b.zip", name="last.pth", beside={"b/other.pt": b""}))
    with pytest.raises(UsageError, match=r"this one has none"):
        read_checkpoint(zipped(inner, tmp_path / "c.zip", name="readme.txt"))


@pytest.mark.parametrize(
    ("prefix", "stripped"),
    [
        ("module.", ("module.",)),
        ("_orig_mod.", ("_orig_mod.",)),
        ("module._orig_mod.", ("module.", "_orig_mod.")),
        ("_orig_mod.module.", ("_orig_mod.", "module.")),
        ("_orig_mod.module._orig_mod.module.module.", ("_orig_mod.", "module.")),
    ],
)
def test_wrappers_are_removed_in_any_order(tmp_path: Path, prefix: str, stripped: tuple[str, ...]) -> None:
    found = read_checkpoint(saved(whole(state_dict=prefixed(prefix)), tmp_path / "a.pth"))
    assert_is(found)
    assert found.stripped == stripped
    safetensors.torch.save_file(prefixed(prefix), tmp_path / "a.safetensors")
    assert_is(read_checkpoint(tmp_path / "a.safetensors"))


def test_only_prefixes_are_wrappers(tmp_path: Path) -> None:
    state = {"blocks.module.weight": torch.ones(1), "modules": torch.ones(1)}
    assert_is(read_checkpoint(saved(state, tmp_path / "a.pth")), state)
    twice = {"module.a": torch.ones(1), "a": torch.zeros(1)}
    with pytest.raises(HostError, match=r"a\.pth has two tensors for a, with and without the prefix module\."):
        read_checkpoint(saved(twice, tmp_path / "a.pth"))


def test_the_average_or_not(tmp_path: Path) -> None:
    path = saved(whole(state_dict=STATE, state_dict_ema=OTHER), tmp_path / "a.pth")
    assert_is(read_checkpoint(path, average=False), STATE)
    assert_is(read_checkpoint(path, average=True), OTHER)
    assert "state_dict" in read_checkpoint(path).left
    plain = saved(whole(state_dict=STATE), tmp_path / "b.pth")
    with pytest.raises(
        UsageError, match=r"b\.pth has no moving average \(state_dict_ema or model_ema\), only state_dict"
    ):
        read_checkpoint(plain, average=True)
    with pytest.raises(UsageError, match="has no moving average .* only a state dict"):
        read_checkpoint(saved(STATE, tmp_path / "c.pth"), average=True)
    with pytest.raises(UsageError, match="has no weights other than their moving average"):
        read_checkpoint(saved(whole(model_ema=STATE), tmp_path / "d.pth"), average=False)
    safetensors.torch.save_file(STATE, tmp_path / "e.safetensors")
    assert_is(read_checkpoint(tmp_path / "e.safetensors", average=False))
    with pytest.raises(UsageError, match="no average; remove --ema"):
        read_checkpoint(tmp_path / "e.safetensors", average=True)


def test_metadata_of_a_converted_file(tmp_path: Path) -> None:
    facts = {"architecture": "bixt_ti_l64_p16", "arguments": {"num_classes": 4}, "epoch": 799}
    safetensors.torch.save_file(STATE, tmp_path / "a.safetensors", metadata={"attngraft": json.dumps(facts)})
    found = read_checkpoint(tmp_path / "a.safetensors")
    assert (found.architecture, found.arguments, found.epoch) == tuple(facts.values())
    for metadata in ("no json", "[]", '{"architecture": 3, "arguments": 4, "epoch": "x"}'):
        safetensors.torch.save_file(STATE, tmp_path / "a.safetensors", metadata={"attngraft": metadata})
        found = read_checkpoint(tmp_path / "a.safetensors")
        assert (found.architecture, found.arguments, found.epoch) == (None, {}, None)


class Calls:
    """What, unpickled, calls a function."""

    def __init__(self, function: Callable[..., Any], *arguments: Any) -> None:
        self.function, self.arguments = function, arguments

    def __reduce__(self) -> tuple[Any, ...]:
        return self.function, self.arguments


class Filled:
    """What, unpickled, is an object of a class that the file names."""


MARK = "ran"
TRAPS: dict[str, tuple[Callable[[Path], Any], str]] = {
    "os.system": (lambda folder: Calls(os.system, f"touch {folder / MARK}"), r"\((posix|nt)\.system\)"),
    "eval": (lambda folder: Calls(eval, f"open({str(folder / MARK)!r}, 'w')"), r"\(eval\)"),
    "numpy": (lambda folder: numpy.float64(80.1), r"\(numpy\.[\w.]*multiarray\.scalar\)"),
    "a path": (lambda folder: folder, r"\(pathlib\.[\w.]*Path\)"),
    "a class": (lambda folder: Filled(), r"\(tests\.models\.test_checkpoint_file\.Filled\)"),
    "a module": (lambda folder: torch.nn.Linear(2, 2), r"\(torch\.nn\.modules\.linear\.Linear\)"),
    "inside of Namespace": (
        lambda folder: argparse.Namespace(deep=[Calls(os.system, f"touch {folder / MARK}")]),
        r"\((posix|nt)\.system\)",
    ),
}


@pytest.mark.parametrize("trap", TRAPS)
@pytest.mark.parametrize("how", ["new", "old-format", "zip"])
def test_a_pickle_that_names_anything_else_is_refused_and_nothing_runs(tmp_path: Path, trap: str, how: str) -> None:
    make, named = TRAPS[trap]
    value = whole(state_dict=STATE, extra=make(tmp_path))
    path = saved(value, tmp_path / "a.pth.tar", _use_new_zipfile_serialization=how != "old-format")
    if how == "zip":
        path = zipped(path, tmp_path / "a.zip")
    with pytest.raises(
        HostError, match=rf"{path.name} contains Python objects besides tensors {named}.*it is refused.*If you trust"
    ):
        read_checkpoint(path)
    assert not (tmp_path / MARK).exists()


def test_namespaces_are_allowed_for_one_file_only(tmp_path: Path) -> None:
    before = set(torch.serialization.get_safe_globals())
    read_checkpoint(saved(whole(state_dict=STATE), tmp_path / "a.pth"))
    assert set(torch.serialization.get_safe_globals()) == before


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.zip", b"PK\x05\x06" + bytes(18), "this one has none"),
        ("a.zip", b"no zip", r"a\.zip is damaged, or not a torch file|besides tensors"),
        ("a.tar", b"", r"a\.tar is damaged"),
        (
            "a.npz",
            b"",
            r"cannot read weights from \.npz files, only from \.safetensors, \.pth, \.pt, \.bin, \.tar, \.zip",
        ),
        ("a.pth", None, r"no such file; pass a weights file \(\.safetensors"),
    ],
)
def test_files_that_are_not_checkpoints(tmp_path: Path, name: str, content: bytes | None, message: str) -> None:
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(AttngraftError, match=message):
        read_checkpoint(tmp_path / name)


def test_only_plain_tensors_under_names_are_weights(tmp_path: Path) -> None:
    state = {**STATE, 7: torch.ones(1), "_extra_state": {"a": 1}}
    found = read_checkpoint(saved(whole(state_dict=state), tmp_path / "a.pth"))
    assert_is(found)
    assert "7" in found.left
    for wrong in (torch.eye(3).to_sparse(), torch.eye(3, device="meta")):
        with pytest.raises(HostError, match=r"b\.pth: mask is sparse, quantized or without.*save it as a dense tensor"):
            read_checkpoint(saved(whole(state_dict={**STATE, "mask": wrong}), tmp_path / "b.pth"))
    with pytest.raises(HostError, match=r"b\.pth: the name '.ud800' of a tensor has invalid characters"):
        read_checkpoint(saved(whole(state_dict={**STATE, "\ud800": torch.ones(1)}), tmp_path / "b.pth"))


@pytest.mark.parametrize("cut", [10, 200, -30])
def test_a_truncated_file(tmp_path: Path, cut: int) -> None:
    path = zipped(saved(whole(state_dict=STATE), tmp_path / "a.pth"), tmp_path / "a.zip")
    for whole_file in (path, tmp_path / "a.pth"):
        whole_file.write_bytes(whole_file.read_bytes()[:cut])
        with pytest.raises(HostError, match=r"damaged|besides tensors"):
            read_checkpoint(whole_file)


@pytest.mark.parametrize("kind", ["zip", "torch", "old format", "safetensors"])
def test_changed_bytes(tmp_path: Path, kind: str) -> None:
    """Whatever a byte does to a file, either its tensors are read or an error names it."""
    path = tmp_path / ("a.safetensors" if kind == "safetensors" else "a.pth")
    if kind == "safetensors":
        safetensors.torch.save_file(STATE, path)
    else:
        saved(whole(state_dict=STATE), path, _use_new_zipfile_serialization=kind != "old format")
    path = zipped(path, tmp_path / "a.zip") if kind == "zip" else path
    content = path.read_bytes()
    refused = 0
    for place in range(0, len(content), max(1, len(content) // 80)):
        path.write_bytes(content[:place] + bytes([content[place] ^ 0xFF]) + content[place + 1 :])
        try:
            read_checkpoint(path)
        except (HostError, UsageError) as error:
            refused += 1
            assert path.name in str(error)
    assert refused


@pytest.mark.parametrize(("dtype", "shape", "size"), [("F4", [2], 1), ("F32", [1] * 70, 4)])
def test_tensors_that_torch_cannot_use_are_damage(tmp_path: Path, dtype: str, shape: list[int], size: int) -> None:
    header = json.dumps({"x": {"dtype": dtype, "shape": shape, "data_offsets": [0, size]}}).encode()
    (tmp_path / "x.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + bytes(size))
    with pytest.raises(HostError, match=r"x\.safetensors is damaged"):
        read_checkpoint(tmp_path / "x.safetensors")
