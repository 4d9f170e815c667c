"""The ghost head on attention maps, pair by pair, and on hosts."""

from __future__ import annotations

from typing import Any

import pytest
import timm
import torch
from torch import Tensor, nn

import attngraft
from attngraft.errors import GraftSpecError, HostError, UsageError
from attngraft.mechanisms.local.ghost import GhostHead
from attngraft.tensors import meta_device
from tests.seeding import seed

TINY: dict[str, Any] = {
    "img_size": 24,
    "patch_size": 8,
    "embed_dim": 24,
    "depth": 2,
    "num_heads": 3,
    "num_classes": 5,
}


def pair_by_pair(head: GhostHead, weights: Tensor, visible: Tensor | None) -> Tensor:
    """Compute Eq. 8 for every ghost head, query and key."""
    batch, heads, tokens, _ = weights.shape
    rows, columns = head.grid
    found = torch.empty(batch, heads * head.parts, tokens, tokens, dtype=weights.dtype)
    for c in range(heads * head.parts):
        for i in range(tokens):
            for j in range(tokens):
                value = weights[:, c // head.parts, i, j]
                if min(i, j) >= head.prefix:
                    (yi, xi), (yj, xj) = divmod(i - head.prefix, columns), divmod(j - head.prefix, columns)
                    place = (yj - yi + rows - 1) * (2 * columns - 1) + xj - xi + columns - 1
                    if head.mul is not None:
                        value = value * head.mul[c, place] ** head.lam
                    if head.add is not None and (visible is None or visible[i, j]):
                        value = value + head.gamma * head.add[c, place]
                found[:, c, i, j] = value
    return found


@pytest.mark.parametrize(("lam", "gamma"), [(1, 1.0), (2, 0.5), (0, 1.0), (1, 0.0)])
@pytest.mark.parametrize("prefix", [0, 2])
def test_it_is_the_equation(lam: int, gamma: float, prefix: int) -> None:
    seed(0)
    head = GhostHead(2, (2, 3), prefix=prefix, parts=2, lam=lam, gamma=gamma).double()
    tokens = prefix + 6
    weights = torch.rand(2, 2, tokens, tokens, dtype=torch.float64)
    visible = torch.rand(tokens, tokens) > 0.3
    torch.testing.assert_close(head(weights), pair_by_pair(head, weights, None))
    hidden = weights * visible
    torch.testing.assert_close(head(hidden, visible), pair_by_pair(head, hidden, visible))


def test_its_identity_gives_every_map_again() -> None:
    weights = torch.rand(2, 3, 6, 6)
    assert torch.equal(GhostHead(3, (2, 3), identity=True)(weights), weights.repeat_interleave(2, 1))


def test_maps_of_another_size_are_refused() -> None:
    with pytest.raises(UsageError, match=r"for 7 tokens \(2 x 3 on the grid\), but these maps are 6 x 6"):
        GhostHead(3, (2, 3), prefix=1)(torch.rand(1, 3, 6, 6))


def vit(**changes: Any) -> nn.Module:
    seed(0)
    return timm.create_model("vit_tiny_patch16_224", **(TINY | changes)).eval()


def test_on_a_host_every_ghost_head_has_its_share_of_the_values() -> None:
    host = vit()
    attngraft.graft(host, "ghost@blocks.0")
    attn, x = host.blocks[0].attn, torch.randn(2, 10, 24)
    q, k, v = attn.qkv(x).view(2, 10, 3, 3, 8).permute(2, 0, 3, 1, 4)
    maps = attn.grafts.ghost((q @ k.transpose(-2, -1) * attn.scale).softmax(-1))
    ghosts = v.reshape(2, 3, 10, 2, 4).permute(0, 1, 3, 2, 4).reshape(2, 6, 10, 4)
    expected = attn.proj((maps @ ghosts).transpose(1, 2).reshape(2, 10, 24))
    torch.testing.assert_close(attn(x), expected)


def test_its_identity_leaves_a_host_as_it_was_to_rounding() -> None:
    host, images = vit(class_token=False, global_pool="avg"), torch.randn(2, 3, 24, 24)
    expected = host(images)
    report = attngraft.graft(host, "ghost(identity=true)")
    assert all(entry.identity and not entry.exact for entry in report.entries)
    torch.testing.assert_close(host(images), expected, rtol=0, atol=1e-5)
    host(images).square().sum().backward()
    for name, parameter in host.named_parameters():
        assert ".grafts." not in name or parameter.grad.abs().max() > 0, name


def test_later_grafts_see_the_hosts_heads() -> None:
    host, images = vit(), torch.randn(2, 3, 24, 24)
    attngraft.graft(host, "ghost + horizontal")
    assert torch.isfinite(host(images)).all()
    with attngraft.record(host) as recording:
        host(images)
    assert recording["blocks.0.attn"]["weights"].shape == (2, 6, 10, 10)
    assert recording["blocks.0.attn"]["heads"].shape == (2, 3, 10, 8)
    assert recording["blocks.0.attn"]["ghost.ghost_mul"].shape == (6, 9, 9)


def test_what_windows_hide_stays_hidden() -> None:
    """In shifted windows, the addend is not added to pairs of pixels that only the shift brings together."""
    seed(0)
    size = {"img_size": 32, "window_size": 4, "depths": (2,), "embed_dim": 8, "num_heads": (2,), "num_classes": 2}
    host = timm.create_model("swin_tiny_patch4_window7_224", **size).eval()
    attngraft.graft(host, "ghost@layers.0.blocks.1")
    with attngraft.record(host) as recording:
        host(torch.randn(1, 3, 32, 32))
    maps = recording["layers.0.blocks.1.attn"]["weights"]
    hidden = (host.layers[0].blocks[1].attn_mask != 0).unsqueeze(1).expand_as(maps)
    assert hidden.any()
    assert maps[hidden].abs().max() < 1e-30  # Swin masks with -100, which leaves e^-100


@pytest.mark.parametrize(
    ("spec", "reason"),
    [("ghost(parts=0)", "parts must be 1 or more"), ("ghost(mul=0, add=0)", "disables the ghost head")],
)
def test_options_that_make_no_sense_are_refused(spec: str, reason: str) -> None:
    with pytest.raises(GraftSpecError, match=reason):
        attngraft.graft(vit(), spec)


def test_sites_that_cannot_take_it_say_why() -> None:
    with pytest.raises(HostError, match="the 8 channels of a head are not divisible by parts=3"):
        attngraft.graft(vit(), "ghost(parts=3)")
    size = {"img_size": 24, "patch_size": 8, "embed_dim": 24, "depth": 1, "num_heads": 3}
    with pytest.raises(HostError, match="its heads are mixed after the softmax"):
        attngraft.graft(timm.create_model("cait_xxs24_224", **size), "ghost@blocks")


def test_table_11_is_a_vit_with_average_pooling() -> None:
    with meta_device():
        host = timm.create_model("deit_tiny_patch16_224", class_token=False, global_pool="avg")
    report = attngraft.plan(host, "ghost")
    assert report.parameters == 12 * 2 * 6 * 27**2
    assert f"{(report.parameters + report.host_parameters) / 1e6:.0f}" == "6"
