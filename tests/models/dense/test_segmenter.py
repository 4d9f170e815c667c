"""Segmentation models: every family of hosts with every head, the papers' sizes, and graft files."""

from __future__ import annotations

import re
from importlib.util import find_spec
from pathlib import Path
from typing import Any, cast

import pytest
import timm
import torch
from torch import Tensor, nn

import attngraft
from attngraft.errors import HostError
from attngraft.models.dense import Segmenter, padded_size, segmenter
from attngraft.models.dense.levels import Level, Levels
from attngraft.models.host_input import host_input
from attngraft.tensors import meta_device

SIZE = (64, 96)
SMALL: dict[str, Any] = {"embed_dim": 32, "depth": 3, "num_heads": 2}
SWIN: dict[str, Any] = {"embed_dim": 16, "depths": (1, 1, 1, 1), "num_heads": (1, 2, 2, 2)}
#: host, arguments that make it small
FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "vit": ("vit_tiny_patch16_224", SMALL),
    "distilled": ("deit_tiny_distilled_patch16_224", SMALL),
    "swin": ("swin_tiny_patch4_window7_224", SWIN),
    "swinv2": ("swinv2_tiny_window8_256", SWIN),
    "pit": ("pit_ti_224", {}),
    "levit": ("levit_128s", {}),
    "mixer": ("mixer_s32_224", {}),
    "volo": ("volo_d1_224", {}),
    "cait": ("cait_xxs24_224", {"depth": 4, "embed_dim": 32, "num_heads": 2}),
    "pvt_v2": ("pvt_v2_b0", {}),
    "xcit": ("xcit_nano_12_p16_224", {"depth": 4}),
    "bixt": ("bixt_ti_l64_p16", {"depth": 5, "embed_dim": 48}),
    "bixt, stride 8": ("bixt_ti_l64_p16s8", {"depth": 5, "embed_dim": 48}),
    "resnet": ("resnet10t", {}),
    "elsa_swin": ("elsa_swin_tiny", {"depths": (1, 1, 1, 1)}),
    "elsa_volo": ("elsa_volo_d1", {}),
}
HF: dict[str, Any] = {"hidden_size": 32, "num_hidden_layers": 4, "num_attention_heads": 2, "intermediate_size": 64}
TRANSFORMERS = {
    "hf_vit": ("transformers_classifier", {"model_type": "vit", **HF}),
    "hf_dinov2": (
        "transformers_classifier",
        {
            **{name: value for name, value in HF.items() if name != "intermediate_size"},
            "model_type": "dinov2",
            "mlp_ratio": 2,
        },
    ),
    "hf_swin": (
        "transformers_classifier",
        {
            "model_type": "swin",
            "embed_dim": 16,
            "depths": [1, 1, 1, 1],
            "num_heads": [1, 2, 2, 2],
            "window_size": 4,
        },
    ),
}
FAMILIES |= TRANSFORMERS if find_spec("transformers") else {}
SLOW = {"volo", "elsa_volo", "mixer", "elsa_swin"}  # large hosts


def host(family: str) -> nn.Module:
    """A small host for any size if it has one, otherwise for `SIZE`."""
    name, arguments = FAMILIES[family]
    free = host_input(name, arguments).get("any_size")
    torch.manual_seed(0)
    return timm.create_model(name, num_classes=0, **arguments, **({"img_size": SIZE} if free is None else free))


@pytest.mark.parametrize("head", ["upernet", "semantic_fpn", "linear"])
@pytest.mark.parametrize(
    "family", [pytest.param(name, marks=pytest.mark.slow if name in SLOW else ()) for name in FAMILIES]
)
def test_every_host_has_every_head(family: str, head: Any) -> None:
    """Every trained parameter has a gradient, so that processes can wait for all of them; also with one image."""
    model = segmenter(host(family), classes=5, head=head, width=16, norm="group").train()
    outputs = model(torch.randn(1, 3, *SIZE))
    outputs = outputs if isinstance(outputs, tuple) else (outputs,)
    assert len(outputs) == (1 if head == "linear" else 2)
    sum(each.square().sum() for each in outputs).backward()  # type: ignore[union-attr]
    assert [name for name, each in model.named_parameters() if each.requires_grad and each.grad is None] == []
    logits = model.eval()(torch.randn(2, 3, *SIZE))
    assert logits.shape[:2] == (2, 5)
    if head != "linear":
        assert logits.shape[2:] == (SIZE[0] // 4, SIZE[1] // 4)


@pytest.mark.parametrize("family", ["vit", "swin", "pvt_v2", "xcit", "bixt", "resnet"])
def test_images_of_any_size(family: str) -> None:
    model = segmenter(host(family), classes=3, head="semantic_fpn", width=16).eval()
    for size in ((32, 32), (33, 97)):
        height, width = padded_size(size)
        assert model(torch.randn(1, 3, *size)).shape[2:] == (height // 4, width // 4)


@pytest.mark.parametrize(
    ("name", "head", "auxiliary", "count"),
    [
        ("swin_tiny_patch4_window7_224", "upernet", True, 59_941_862),
        ("swin_tiny_patch4_window7_224", "upernet", False, 59_018_064),
        ("swin_small_patch4_window7_224", "upernet", True, 81_259_766),
        ("swin_base_patch4_window7_224", "upernet", True, 121_279_716),
        ("elsa_swin_tiny", "upernet", True, 60_794_486),
        ("elsa_swin_small", "upernet", True, 84_528_134),
        ("vit_tiny_patch16_224", "upernet", True, 34_063_148),
        ("vit_small_patch16_224", "upernet", True, 53_547_308),
        ("vit_base_patch16_224", "upernet", True, 127_020_332),
        ("bixt_ti_l64_d13_p16", "linear", False, 15_327_126),
        ("bixt_ti_l64_d13_p16", "semantic_fpn", False, 19_942_614),
    ],
)
def test_the_papers_sizes(name: str, head: Any, auxiliary: bool, count: int) -> None:
    """150 classes; Swin-T without the auxiliary head is segmentation_models_pytorch's UPerNet of width 512."""
    with meta_device():
        model = segmenter(timm.create_model(name, num_classes=0), classes=150, head=head, auxiliary=auxiliary)
    assert sum(parameter.numel() for parameter in model.parameters()) == count


def test_upernet_is_that_of_segmentation_models_pytorch() -> None:
    """With its weights, and its epsilon of the levels' norms, the logits are equal."""
    smp = pytest.importorskip("segmentation_models_pytorch")
    name, arguments = FAMILIES["swin"]
    arguments = {**arguments, "strict_img_size": False, "always_partition": True}
    theirs = smp.UPerNet(f"tu-{name}", encoder_weights=None, decoder_channels=16, classes=5, **arguments).eval()
    torch.manual_seed(0)
    with torch.no_grad():
        for each in theirs.state_dict().values():  # norms and their statistics too
            if each.is_floating_point():
                each.add_(0.1 * torch.rand_like(each))
    ours = segmenter(host("swin"), classes=5, head="upernet", width=16, auxiliary=False).eval()
    for norm in cast(Levels, ours.levels).norms:
        cast(nn.LayerNorm, norm).eps = 1e-6
    ours.load_state_dict({_smp_name(key): each for key, each in theirs.state_dict().items()})
    images = torch.randn(2, 3, *SIZE)
    expected = theirs.segmentation_head[0](theirs.decoder(theirs.encoder(images)))
    torch.testing.assert_close(ours(images), expected, atol=1e-5, rtol=1e-5)


def _smp_name(key: str) -> str:
    """Return our name of a parameter of segmentation_models_pytorch, whose pyramid is stored from coarse to fine."""
    for pattern, name in (
        (r"^encoder\.model\.layers_", "host.layers."),
        (r"^encoder\.model\.", "host."),
        (r"^decoder\.feature_norms", "levels.norms"),
        (r"psp\.blocks\.(\d)\.1", r"pooled.\1"),
        (r"psp\.out_conv", "bottleneck"),
        (r"fpn_lateral_blocks\.(\d)\.conv_norm_relu", lambda found: f"laterals.{2 - int(found[1])}"),
        (r"fpn_conv_blocks\.(\d)", lambda found: f"smooth.{2 - int(found[1])}"),
        ("fusion_block", "fuse"),
        (r"^segmentation_head\.0", "classifier.1"),
    ):
        key = re.sub(pattern, name, key)
    return key


def test_maps_of_pit_have_the_images_position() -> None:
    """Its patches of 16 pixels with stride 8 are centered at 8, 16, ..., but the cells of a level at 4, 12, ..."""

    class Pixels(nn.Module):  # the center of each patch as its value
        def forward_intermediates(self, images: Tensor, **_: Any) -> list[Tensor]:
            return [images[:, :1, 8:-7:8, 8:-7:8]]

    rows = torch.arange(64.0)[:, None].expand(1, 1, 64, 64)
    levels = Levels([Level(0, 1, 8)] * 4)
    levels.resample = nn.ModuleList(nn.Identity() for _ in range(4))
    found = levels(Pixels(), rows)[1]
    assert found[0, 0, :, 3].tolist() == [8.0, 12.0, 20.0, 28.0, 36.0, 44.0, 52.0, 56.0]


def test_grafts_move_between_classifier_and_dense_model(tmp_path: Path) -> None:
    name, arguments = FAMILIES["swin"]
    classifier = timm.create_model(name, num_classes=4, img_size=56, **arguments)
    attngraft.graft(classifier, "bisa@layers.0 + cb_s")
    grafted = host("swin")
    attngraft.graft(grafted, "bisa@layers.0 + cb_s")
    dense = segmenter(grafted, classes=3, head="semantic_fpn", width=16)
    with torch.no_grad():
        for parameter in classifier.parameters():
            parameter.add_(0.1)
    attngraft.save_grafts(classifier, tmp_path / "grafts.safetensors")
    fresh = segmenter(host("swin"), classes=3, head="semantic_fpn", width=16)
    attngraft.load_grafts(fresh, tmp_path / "grafts.safetensors")
    values = dict(classifier.named_parameters())
    added = {name: each for name, each in fresh.named_parameters() if ".grafts." in name}
    assert added.keys() == {name for name, _ in dense.named_parameters() if ".grafts." in name}
    for path, each in added.items():
        assert torch.equal(each, values[path.removeprefix("host.")])
    attngraft.save_grafts(fresh, tmp_path / "dense.safetensors")
    again = timm.create_model(name, num_classes=4, img_size=56, **arguments)
    attngraft.load_grafts(again, tmp_path / "dense.safetensors")


def test_frozen_norms_keep_their_statistics() -> None:
    model = segmenter(host("levit"), classes=3, head="linear")
    model.freeze_norms()
    before = {name: each.clone() for name, each in model.host.named_buffers()}
    model.train()(torch.randn(2, 3, *SIZE))
    for name, each in model.host.named_buffers():
        assert torch.equal(each, before[name]), name
    assert all(not module.training for module in model.host.modules() if isinstance(module, nn.BatchNorm2d))
    assert model.classifier.training


def test_a_host_without_maps_is_refused() -> None:
    class Other(nn.Module):
        def forward(self, images: Tensor) -> Tensor:
            return images

    with pytest.raises(HostError, match="Other: has no forward_intermediates"):
        segmenter(Other(), classes=3, head="upernet")


def test_it_exports() -> None:
    """Only the logits in evaluation; the program takes images of the size that it was exported with."""
    model: Segmenter = segmenter(host("vit"), classes=3, head="upernet", width=16, norm="group").eval()
    images = torch.randn(2, 3, *SIZE)
    program = torch.export.export(model, (images,)).module()
    torch.testing.assert_close(program(images), model(images), atol=1e-5, rtol=1e-5)
