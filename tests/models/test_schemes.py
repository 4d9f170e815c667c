"""Names of hosts: their schemes, near misses, and what the command line does with wrong ones."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

import attngraft
from attngraft.cli import main
from attngraft.errors import HostError, UsageError
from attngraft.hosts.hf.family import pair
from attngraft.models.create import create_host, resolve_host
from attngraft.models.host_input import host_input
from attngraft.models.schemes import split_scheme
from attngraft.training.recipe import HostConfig


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("vit_tiny_patch16_224", ("timm", "vit_tiny_patch16_224")),
        ("timm:vit_tiny_patch16_224", ("timm", "vit_tiny_patch16_224")),
        ("hf-hub:timm/vit", ("timm", "hf-hub:timm/vit")),
        ("local-dir:./here", ("timm", "local-dir:./here")),
        ("attngraft:t2t_vit_14", ("attngraft", "t2t_vit_14")),
        ("hf:/some/folder", ("hf", "/some/folder")),
        ("hf:google/vit", ("hf", "google/vit")),
        ("module:a.b:make", ("module", "a.b:make")),
        (r"C:\models\vit", ("timm", r"C:\models\vit")),
    ],
)
def test_schemes(name: str, expected: tuple[str, str]) -> None:
    assert split_scheme(name) == expected


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("vit_b_16", "type torchvision:vit_b_16"),
        ("torchvision:vit_b16", "did you mean vit_b_16"),
        ("torchvison:vit_b_16", "did you mean torchvision:vit_b_16?"),
        ("transformers:google/vit", "did you mean hf:google/vit?"),
        ("google/vit-base", "type hf:google/vit-base"),
        ("./nowhere/at/all", "no such folder"),
        ("my.nets:make", "type module:my.nets:make"),
        ("module:my.nets.make", "did you mean module:my.nets:make?"),
        ("s3://bucket", "known schemes: timm:, attngraft:, torchvision:, hf:, module:"),
        ("attngraft:resnet18", "timm has it: type resnet18"),
        ("attngraft:bixt_ti_l64", "did you mean bixt_ti_l64_p16"),
        ("vit_tiny_patch16_225", "did you mean vit_tiny_patch16_224"),
    ],
)
def test_a_near_miss_names_the_form(name: str, hint: str) -> None:
    with pytest.raises(UsageError) as error:
        create_host(name)
    assert hint in str(error.value)


def test_folders_that_are_no_hosts(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"no config\.json"):
        create_host(str(tmp_path))
    (tmp_path / "config.json").write_text(json.dumps({"architecture": "vit_tiny_patch16_224"}))
    with pytest.raises(UsageError, match="type local-dir:"):
        create_host(str(tmp_path))
    (tmp_path / "recipe.yaml").write_text("")
    with pytest.raises(UsageError, match="not a host; give the name of its host"):
        create_host(str(tmp_path))


def test_timm_is_the_default_scheme() -> None:
    tiny = {"img_size": 32, "depth": 1, "embed_dim": 12, "num_heads": 2}
    assert resolve_host("timm:vit_tiny_patch16_224", tiny) == ("vit_tiny_patch16_224", tiny)
    assert HostConfig(name="timm:vit_tiny_patch16_224") == HostConfig(name="vit_tiny_patch16_224")
    torch.manual_seed(0)
    first = attngraft.create_model("vit_tiny_patch16_224", **tiny)
    torch.manual_seed(0)
    second = attngraft.create_model("timm:vit_tiny_patch16_224", **tiny)
    assert torch.equal(first.head.weight, second.head.weight)
    assert host_input("timm:vit_tiny_patch16_224", tiny) == host_input("vit_tiny_patch16_224", tiny)
    assert host_input("vit_tiny_patch16_224", {**tiny, "in_chans": None}) == host_input("vit_tiny_patch16_224", tiny)
    assert type(create_host("attngraft:t2t_vit_14", depth=1)).__name__ == "T2TViT"


def test_a_wrong_host_ends_with_one_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "study"
    compare = ["compare", "--graft", "cb", "--data", "digits", "--out", str(out), "--host", "tovision:vit_b_16"]
    for arguments in (compare, ["plan", "tovision:vit_b_16", "cb"]):
        with pytest.raises(SystemExit) as stop:
            main(arguments)
        assert stop.value.code == 2
        error = capsys.readouterr().err.strip().splitlines()[-1]
        assert error.endswith("unknown scheme 'tovision'; did you mean torchvision:vit_b_16?")
    assert not out.exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["doctor", "--host", 9000 * "x"], "there is no model 'xxx"),
        (["doctor", "--host", ""], "the name of the host is empty"),
        (["plan", "vit_tiny_patch16_224", "cb", "--host-arg", "num_heads=0"], "cannot create vit_tiny_patch16_224"),
        (["plan", "vit_tiny_patch16_224", "cb", "--host-arg", "pretrained=true"], "use --pretrained instead"),
        (
            ["plan", "vit_tiny_patch16_224", "cb", "--measure", "--host-arg", "depth=1", "--host-arg", "img_size=15"],
            "the model fails without any graft on inputs of shape (2, 3, 15, 15)",
        ),
    ],
)
def test_odd_hosts_and_arguments_are_named(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stop:
        main(arguments)
    assert stop.value.code == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("size", [[8, 8, 8], [7.5, 8], [0, 8], "8", [float("nan"), 8], {"height": 8}])
def test_sizes_are_one_whole_number_or_two(size: Any) -> None:
    assert pair(8) == pair([8, 8.0]) == (8, 8)
    with pytest.raises(HostError, match="sizes of images and patches must be one number or two, not"):
        pair(size)
