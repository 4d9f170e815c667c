"""ELSA and its counterparts as grafts on Swin and VOLO."""

from __future__ import annotations

from typing import Any

import pytest
import timm
import torch
from timm.models.volo import VOLO
from torch import Tensor, nn

import attngraft
import attngraft.models
from attngraft.attention import AttentionGeometry
from attngraft.errors import GraftSpecError, HostError
from attngraft.mechanisms.registry import graft_types
from tests.seeding import seed

SWIN: dict[str, Any] = {"img_size": 64, "embed_dim": 16, "depths": (2, 1, 1, 2), "num_heads": (2, 2, 4, 4)}


def swin_as_elsa(state: dict[str, Tensor], blocks: int) -> dict[str, Tensor]:
    """Return the weights of a grafted Swin under ELSA-Swin's names, without the attention of the last stage."""
    found = {}
    for name, value in state.items():
        name = name.replace("head.fc.", "head.").replace(".grafts.elsa.", ".attn.")
        found[name] = value
    stages = {name.split(".")[1] for name in found if name.startswith("layers.") and ".downsample." in name}
    for name in [name for name in found if ".downsample." in name]:  # in timm, a stage begins with it
        first, stage, *rest = name.split(".")
        found[".".join((first, str(int(stage) - 1), *rest))] = found.pop(name)
    assert len(stages) == blocks - 1
    return found


def test_on_swin_it_is_elsa_swin() -> None:
    """A Swin with grafts in its first three stages is the published network, layer by layer."""
    seed(0)
    host = timm.create_model("swin_tiny_patch4_window7_224", **SWIN, num_classes=5, window_size=2).eval()
    attngraft.graft(host, "elsa(group_width=4)@layers.0-2")
    elsa = timm.create_model("elsa_swin_tiny", **SWIN, num_classes=5, window_size=2).eval()
    weights = swin_as_elsa(host.state_dict(), 4)
    last = {name: value for name, value in weights.items() if name.startswith("layers.3.")}
    found = elsa.load_state_dict({name: value for name, value in weights.items() if name not in last}, strict=False)
    assert all(name.startswith("layers.3.") for name in found.missing_keys)
    assert not found.unexpected_keys
    images = torch.randn(2, 3, 64, 64, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        theirs = host.patch_embed(images)
        ours = elsa.patch_embed(images)
        for stage in range(3):
            theirs, ours = host.layers[stage](theirs), elsa.layers[stage].attended(ours)
            torch.testing.assert_close(ours, theirs)
            ours = elsa.layers[stage].merged(ours)
    assert sum(p.numel() for p in host.parameters()) == sum(p.numel() for p in elsa.parameters())


@pytest.mark.parametrize(
    ("spec", "parameters", "macs"),
    [
        ("elsa(group_width=4)@layers.0-2", 29_140_978, 4.8),
        ("elsa(group_width=4, add=0)@layers.0-2", 28_999_858, 4.7),
        ("dwconv", 24.2e6, 3.7),
        ("dynamic_dwconv", 51e6, 3.8),
        ("ddf", 46e6, 3.9),
    ],
)
def test_sizes_are_the_papers(spec: str, parameters: float, macs: float) -> None:
    """`plan` computes the sizes of Tables 4 and 5."""
    with torch.device("meta"):
        host = timm.create_model("swin_tiny_patch4_window7_224")
    plain = 4.4903e9  # Swin-T; Table 4 prints 4.5
    report = attngraft.plan(host, spec)
    detached = sum(sum(entry.detached.values()) for entry in report.entries)
    total = report.host_parameters + report.parameters - detached
    assert total == parameters or abs(total - parameters) < 0.5e6
    assert report.macs is not None
    assert f"{(plain + report.macs) / 1e9:.1f}" == str(macs)


def volo(layers: tuple[int, ...]) -> nn.Module:
    seed(0)
    widths = {"embed_dims": (16, 24, 24, 24), "num_heads": (2, 3, 3, 3), "stem_hidden_dim": 8}
    return VOLO(layers=layers, img_size=48, num_classes=5, **widths).eval()


def test_outlooks_on_volo_give_way() -> None:
    host = volo((2, 1, 1, 1))
    images = torch.randn(2, 3, 48, 48, generator=torch.Generator().manual_seed(1))
    expected = host(images)
    report = attngraft.graft(host, "elsa(kernel=3)@network.0")
    assert [entry.site for entry in report.entries] == ["network.0.0.attn", "network.0.1.attn"]
    assert {name.partition(".")[0] for entry in report.entries for name in entry.detached} == {"v", "attn", "proj"}
    assert not torch.equal(host(images), expected)
    attngraft.ungraft(host)
    assert torch.equal(host(images), expected)


def test_an_outlooker_grafted_is_the_hosts_own() -> None:
    host = volo((1, 1, 0, 0))
    images = torch.randn(2, 3, 48, 48)
    expected, own = host(images), host.network[0][0].attn.state_dict()
    attngraft.graft(host, "outlooker@network.0")
    host.network[0][0].attn.grafts.outlooker.load_state_dict(own)
    torch.testing.assert_close(host(images), expected)


@pytest.mark.parametrize("spec", ["lsa(size=4)@layers.0.blocks.0", "lsa(size=4, shift=host)@layers.0"])
def test_windows_are_the_hosts_own(spec: str) -> None:
    seed(0)
    host = timm.create_model("swin_tiny_patch4_window7_224", **SWIN, num_classes=5, window_size=4).eval()
    images = torch.randn(2, 3, 64, 64)
    expected, originals = host(images), [block.attn for block in host.layers[0].blocks]
    report = attngraft.graft(host, spec)
    for block, own, _ in zip(host.layers[0].blocks, originals, report.entries, strict=False):
        made = block.grafts.lsa
        with torch.no_grad():
            made.proj_in.load_state_dict(own.qkv.state_dict())
            made.proj_out.load_state_dict(own.proj.state_dict())
            made.rb.copy_(own.relative_position_bias_table.flip(0).t())  # query minus key there, key minus query here
    torch.testing.assert_close(host(images), expected)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (
            "size=4",
            "blocks.1.attn .space.: the host shifts its windows by 2 here; set shift=host to keep this, or shift=0",
        ),
        ("size=2, shift=host", "host's shift, 2, must be less than the size of a window, 2"),
    ],
)
def test_the_hosts_shift_is_not_dropped_silently(options: str, reason: str) -> None:
    host = timm.create_model("swin_tiny_patch4_window7_224", **SWIN, num_classes=5, window_size=4)
    with pytest.raises(HostError, match=reason):
        attngraft.graft(host, f"lsa({options})@layers.0.blocks.1")
    attngraft.graft(host, "lsa(size=4, shift=0)@layers.0 + lsa(area=neighborhood)@layers.3")


def test_a_shift_that_differs_by_axis_is_refused() -> None:
    kind, sizes = graft_types()["lsa"], {"dim": 8, "heads": 2, "key_width": 4, "value_width": 4}
    geometry = AttentionGeometry(**sizes, tokens=49, grid=(7, 14), window=(7, 7), shift=(0, 3))
    assert "by 0 rows and 3 columns" in str(kind.refusal(geometry, "space", kind.Options()))
    assert "only by one number for both" in str(kind.refusal(geometry, "space", kind.Options(shift="host")))
    assert kind.refusal(geometry, "space", kind.Options(shift=3)) is None


@pytest.mark.parametrize(
    ("spec", "reason"),
    [
        ("elsa(kernel=4)", "kernel must be odd, not 4"),
        ("elsa(kernel=999999999)", "kernel must be at most 255"),
        ("elsa(group_width=1000000000)", "group_width must be 1 to 1024"),
        ("lsa(size=1000000000)", "size must be at most 255"),
        ("elsa(mul=-1)", "mul 0 or more"),
        ("elsa(heads=0)", "heads must be 1 or more, not 0"),
        ("lsa(area=neighborhood, size=4)", "size of a neighborhood must be odd"),
        ("lsa(area=neighborhood, shift=1)", "shift is for windows only"),
        ("lsa(area=neighborhood, shift=host)", "shift is for windows only"),
        ("lsa(shift=7)", "shift must be less than size"),
        ("lsa(shift=half)", "shift: "),
        ("lsa(network=net8)", "network: 'net8' is not a choice.*allowed: swin, net1"),
        ("involution(kernel=2)", "kernel must be odd"),
        ("dwconv(heads=-1)", "heads must be 1 or more"),
        ("dynamic_dwconv(reduction=0)", "reduction must be 1 or more"),
        ("ddf(squeeze=0)", "squeeze must be in"),
        ("outlooker(stride=4)", "stride must be between 1 and kernel"),
    ],
)
def test_options_that_make_no_sense_are_refused(spec: str, reason: str) -> None:
    with pytest.raises(GraftSpecError, match=reason):
        attngraft.graft(nn.Identity(), spec)


@pytest.mark.parametrize("name", ["elsa", "lsa", "involution", "dwconv", "outlooker"])
def test_heads_divide_the_channels(name: str) -> None:
    kind = graft_types()[name]
    geometry = AttentionGeometry(dim=10, tokens=16, grid=(4, 4), heads=2, key_width=5, value_width=5)
    assert kind.refusal(geometry, "space", kind.Options()) is None
    assert "its 10 channels are not divisible by 3 heads" in str(kind.refusal(geometry, "space", kind.Options(heads=3)))


def test_hosts_without_maps_say_so() -> None:
    host = timm.create_model("vit_tiny_patch16_224", img_size=16, patch_size=8, embed_dim=12, depth=1, num_heads=2)
    with pytest.raises(
        HostError, match=r"elsa needs the hook point space, which timm.vit does not have: its blocks keep no map"
    ):
        attngraft.graft(host, "elsa")


@pytest.mark.parametrize(
    ("spec", "offered"),
    [
        ("elsa(kernel=3, group_width=4)", {"local_filters": (2, 2, 9, 16, 16), "ghost_add": (16, 3, 3)}),
        ("lsa(network=net6, area=neighborhood, size=3)", {"local_filters": (2, 2, 9, 16, 16)}),
        ("lsa(network=swin, area=window, size=4)", {"weights": (2, 16, 2, 16, 16)}),
        ("involution(kernel=3)", {"local_filters": (2, 2, 9, 16, 16)}),
        ("dwconv(kernel=3)", {"local_filters": (16, 9)}),
        ("dynamic_dwconv(kernel=3)", {"local_filters": (2, 16, 9)}),
        ("ddf(kernel=3)", {"local_filters": (2, 1, 9, 16, 16), "channel_filters": (2, 16, 9)}),
        ("outlooker", {"weights": (2, 2, 64, 9, 9)}),
    ],
)
def test_what_each_of_them_weighs_by_is_recorded(spec: str, offered: dict[str, tuple[int, ...]]) -> None:
    host = timm.create_model("swin_tiny_patch4_window7_224", **SWIN, num_classes=5, window_size=2).eval()
    attngraft.graft(host, f"{spec}@layers.0.blocks.0")
    images, name = torch.randn(2, 3, 64, 64), spec.partition("(")[0]
    with torch.no_grad():
        expected = host(images)
        with attngraft.record(host) as recording:
            assert torch.equal(host(images), expected)
    found = recording["layers.0.blocks.0.attn"]
    assert {key: tuple(found[f"{name}.{key}"].shape) for key in offered} == offered
    if "weights" in offered or spec.startswith(("elsa", "lsa")):  # a softmax
        weights = found[f"{name}.weights"] if "weights" in offered else found[f"{name}.local_filters"].movedim(2, -1)
        torch.testing.assert_close(weights.sum(-1), torch.ones(weights.shape[:-1]))
