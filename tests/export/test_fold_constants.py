"""Constants of a graft, a factor and an addend of each channel as a ghost head has them, through `Graft.fold`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import pytest
import timm
import torch
from torch import Tensor, nn

import attngraft
from attngraft.attention import Geometry, Graft, GraftType, HookPoint
from attngraft.attention.graft import LinearLayer
from attngraft.export.fold import fold
from attngraft.export.run import export_run
from attngraft.mechanisms.registry import register_graft
from attngraft.training.evaluate import trained_model
from attngraft.training.run_folder import read_run
from tests.export.runs import LEVIT, LEVIT_CONV, SWIN, VIT, make_run, move_batch_norms


class Ghost(Graft):
    """factor * x + addend, of which neither depends on the image."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.factor = nn.Parameter(torch.ones(width))
        self.addend = nn.Parameter(torch.zeros(width))

    def forward(self, value: Tensor, x: Tensor | None = None) -> Tensor:
        return self.factor * value + self.addend

    @torch.no_grad()
    def fold(self, *, before: LinearLayer | None, after: LinearLayer | None) -> Graft | str | None:
        """f (W x + b) + a is (f W) x + (f b + a); and W (f x + a) + b is (W f) x + (b + W a)."""
        layer = before or after
        if layer is None or layer.bias is None:
            return "no linear layer with a bias stands next to it"
        weight = layer.weight.flatten(1)  # a view: of a convolution, too
        if before is not None:
            weight.mul_(self.factor[:, None])
            layer.bias.mul_(self.factor).add_(self.addend)
        else:
            layer.bias.add_(weight @ self.addend)
            weight.mul_(self.factor)
        return None


@dataclass(frozen=True)
class GhostOptions:
    stage: Literal["tokens", "attn.end", "mlp.front", "mlp.mid", "mlp.end"] = "mlp.end"


class ToyGhost(GraftType[GhostOptions]):
    name = "toy_ghost"
    summary = "a constant factor and a constant addend of each channel"
    source = "tests"
    Options = GhostOptions

    def hook_points(self, options: GhostOptions) -> tuple[HookPoint, ...]:
        return (options.stage,)

    def build(self, geometry: Geometry, hook_point: HookPoint, options: GhostOptions) -> Ghost:
        return Ghost(geometry.width(hook_point))

    def starts_as_identity(self, options: GhostOptions) -> bool:
        return True


register_graft(ToyGhost())

HOSTS = {"vit": VIT, "swin": SWIN, "levit": LEVIT, "levit-conv": LEVIT_CONV}


def grafted_model(spec: str, host: dict[str, Any], **arguments: Any) -> nn.Module:
    torch.manual_seed(3)
    model: nn.Module = timm.create_model(host["name"], num_classes=5, **host["args"], **arguments)
    attngraft.graft(model, spec)
    for name, parameter in model.named_parameters():
        if ".grafts." in name:
            nn.init.normal_(parameter, std=0.7)
    move_batch_norms(model)
    return model.eval()


@pytest.mark.parametrize("host", HOSTS)
@pytest.mark.parametrize("stage", ["tokens", "attn.end", "mlp.front", "mlp.mid", "mlp.end"])
@torch.no_grad()
def test_factor_and_addend_stand_in_the_layer_beside_them(host: str, stage: str) -> None:
    model = grafted_model(f"toy_ghost(stage='{stage}')", HOSTS[host])
    size = HOSTS[host]["args"]["img_size"]
    images = torch.randn(3, 3, size, size)
    expected = model(images)
    found = fold(model)
    torch.testing.assert_close(model(images), expected, rtol=1e-5, atol=1e-5)
    ghosts = [entry for entry in found.entries if entry.graft == "toy_ghost"]
    assert ghosts
    assert all(entry.removed for entry in ghosts)
    assert not [name for name, _ in model.named_parameters() if ".grafts." in name]


@pytest.mark.parametrize(
    "spec", ["cb_s + toy_ghost", "toy_ghost(stage='mlp.front') + cb_s(position=front)"], ids=["behind", "in front"]
)
@torch.no_grad()
def test_a_constant_with_another_graft_between_stays_and_says_so(spec: str) -> None:
    model = grafted_model(spec, VIT)
    images = torch.randn(3, 3, 16, 16)
    expected = model(images)
    found = fold(model)
    assert torch.equal(model(images), expected)
    said = "no linear layer with a bias stands next to it (another graft of the same hook point is between)"
    assert {entry.stayed for entry in found.entries if entry.graft == "toy_ghost"} == {said}


def test_an_exported_ghost_is_gone_and_plain_timm_loads_the_model(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", "toy_ghost + toy_ghost(stage='tokens')")
    made = export_run(run, tmp_path / "out", to=["hf"], fold=True)
    assert not made.manifest.grafted
    assert not (tmp_path / "out" / "grafts").exists()
    assert made.plain_difference == 0
    images = torch.randn(3, *made.manifest.input_size)
    with torch.no_grad():
        expected = trained_model(read_run(run), "last").eval()(images)
        plain = timm.create_model(f"local-dir:{tmp_path / 'out'}", pretrained=True).eval()(images)
    torch.testing.assert_close(plain, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("spec", "folds"),
    [
        ("ghost(mul=2, add=0.5)", True),
        ("ghost", False),
        ("elsa(kernel=3, mul=2, add=0.5)@layers.0", True),
        ("elsa(kernel=3)@layers.0", False),
    ],
)
def test_ghost_heads_compute_their_matrices_once(spec: str, folds: bool, tmp_path: Path) -> None:
    host = SWIN if "elsa" in spec else VIT
    run, size = make_run(tmp_path / "run", spec, host=host), host["args"]["img_size"]
    images = torch.randn(2, 3, size, size)
    export_run(run, tmp_path / "out", fold=True)
    folded, trained = attngraft.load(tmp_path / "out"), trained_model(read_run(run), "last").eval()
    with torch.no_grad():
        torch.testing.assert_close(folded(images), trained(images), rtol=1e-5, atol=1e-5)
    grafts = [made for made in folded.modules() if isinstance(made, Graft)]
    assert grafts
    assert all((made.lam, made.gamma) == ((1, 1.0) if folds or "ghost" in spec else (0, 1.0)) for made in grafts)
    assert all(bool(made.folded) == folds for made in grafts)
