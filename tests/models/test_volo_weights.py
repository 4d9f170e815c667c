"""Weights of VOLO in a model for another image size."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from timm.models.volo import VOLO
from torch import nn

from attngraft.errors import HostError
from attngraft.models.elsa.volo import ElsaVolo
from attngraft.models.weights import load_official

SMALL = {"stem_hidden_dim": 8, "embed_dims": [32, 32, 32, 32], "num_heads": [2, 2, 2, 2], "num_classes": 5}


@pytest.mark.parametrize("kind", [VOLO, ElsaVolo])
def test_positions_are_made_to_fit(kind: Callable[..., nn.Module], tmp_path: Path) -> None:
    small, large = (kind([1, 1, 1, 1], img_size=size, **SMALL) for size in (32, 64))
    with torch.no_grad():
        small.pos_embed.copy_(torch.arange(4.0).view(1, 2, 2, 1).expand_as(small.pos_embed))
    torch.save({"state_dict": small.state_dict()}, tmp_path / "volo.pth")
    fitted = load_official(large, tmp_path / "volo.pth")
    assert fitted.resized == ("pos_embed",)
    assert large.pos_embed.shape == (1, 4, 4, 32)
    rising = large.pos_embed[0, :, :, 0]
    assert (rising.diff(dim=0) > 0).all()
    assert (rising.diff(dim=1) > 0).all()
    assert all(torch.equal(p, small.state_dict()[n]) for n, p in large.state_dict().items() if n != "pos_embed")
    again = kind([1, 1, 1, 1], img_size=32, **SMALL)
    load_official(again, tmp_path / "volo.pth")
    assert torch.equal(again.pos_embed, small.pos_embed)


def test_other_widths_are_refused(tmp_path: Path) -> None:
    torch.save(VOLO([1, 1, 1, 1], img_size=32, **SMALL).state_dict(), tmp_path / "volo.pth")
    other = VOLO([1, 1, 1, 1], img_size=64, **{**SMALL, "embed_dims": [32, 64, 64, 64]})
    with pytest.raises(HostError, match="pos_embed"):
        load_official(other, tmp_path / "volo.pth")
