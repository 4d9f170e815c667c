"""Detectors: torchvision's weights and losses, the papers' sizes, sizes of images, and hand-computed losses."""

from __future__ import annotations

from typing import Any, cast

import pytest
import timm
import torch
import torchvision
from torch import Tensor, nn
from torchvision.models.detection import MaskRCNN
from torchvision.models.detection._utils import Matcher
from torchvision.models.detection.backbone_utils import BackboneWithFPN
from torchvision.models.detection.faster_rcnn import FastRCNNPredictor, TwoMLPHead
from torchvision.models.detection.image_list import ImageList
from torchvision.models.detection.mask_rcnn import MaskRCNNHeads, MaskRCNNPredictor
from torchvision.models.detection.roi_heads import RoIHeads, paste_masks_in_image
from torchvision.ops import FrozenBatchNorm2d, MultiScaleRoIAlign, box_iou

import attngraft
from attngraft.errors import HostError
from attngraft.models.dense import Detector, FixedWork, detector
from attngraft.models.dense.roi_heads import BestOfObjects, RoIAlign, Stage
from attngraft.tensors import meta_device
from attngraft.timing.macs import count_macs
from tests.models.dense.test_segmenter import host

SMALL: dict[str, Any] = {"width": 16, "box_width": 32, "mask_layers": 1, "anchors": (8, 16, 32, 64, 128)}
HEADS = ("faster_rcnn", "mask_rcnn", "cascade_mask_rcnn")
LOSSES = {
    "faster_rcnn": {"loss_objectness", "loss_rpn_box", "loss_classifier", "loss_box"},
    "mask_rcnn": {"loss_objectness", "loss_rpn_box", "loss_classifier", "loss_box", "loss_mask"},
    "cascade_mask_rcnn": {"loss_objectness", "loss_rpn_box"}
    | {f"loss_{name}_{stage}" for name in ("classifier", "box", "mask") for stage in range(3)},
}


def small(head: Any = "mask_rcnn", family: str = "swin", **options: Any) -> Detector:
    torch.manual_seed(0)
    return detector(host(family), classes=3, head=head, **{**SMALL, **options})


def images(*sizes: tuple[int, int]) -> list[Tensor]:
    drawn = torch.Generator().manual_seed(1)
    return [torch.randn(3, *size, generator=drawn) for size in sizes]


def objects(size: tuple[int, int], boxes: list[list[float]]) -> dict[str, Tensor]:
    masks = torch.zeros(len(boxes), *size, dtype=torch.uint8)
    for mask, (x1, y1, x2, y2) in zip(masks, boxes, strict=True):
        mask[int(y1) : int(y2), int(x1) : int(x2)] = 1
    found = torch.tensor(boxes, dtype=torch.float32).reshape(-1, 4)
    return {"boxes": found, "labels": torch.arange(len(boxes)) % 3 + 1, "masks": masks}


SIZES = ((60, 90), (64, 70))
TARGETS = [objects(SIZES[0], [[5, 5, 40, 50], [30, 20, 80, 55]]), objects(SIZES[1], [])]


@pytest.mark.parametrize("options", ["papers", "torchvision"])
@pytest.mark.parametrize("head", HEADS)
def test_it_trains_and_detects(head: str, options: str) -> None:
    """With and without objects; every trained parameter has a gradient, so that processes can wait for all of them."""
    model = small(head, options=options, min_score=0.0, detections=7).train()
    losses = cast(dict[str, Tensor], model(images(*SIZES), TARGETS))
    assert set(losses) == LOSSES[head]
    total = sum(losses.values(), torch.zeros(()))
    assert total.isfinite()
    total.backward()
    assert [name for name, each in model.named_parameters() if each.requires_grad and each.grad is None] == []
    for found, (height, width) in zip(model.eval()(images(*SIZES)), SIZES, strict=True):
        assert isinstance(found, dict)
        assert found["boxes"].shape == (7, 4)
        assert (found["boxes"] >= 0).all() and (found["boxes"] <= torch.tensor([width, height] * 2)).all()
        assert set(found["labels"].tolist()) <= {1, 2, 3}
        assert found["scores"].shape == (7,)
        assert ("masks" in found) == (head != "faster_rcnn")
        if "masks" in found:
            assert found["masks"].shape == (7, 1, 28, 28)


@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize("target", [0, 1], ids=["objects", "no objects"])
def test_one_image(head: str, target: int) -> None:
    losses = cast(dict[str, Tensor], small(head).train()(images(SIZES[target]), [TARGETS[target]]))
    total = sum(losses.values(), torch.zeros(()))
    assert total.isfinite()
    total.backward()


@pytest.mark.parametrize("family", ["vit", "pvt_v2", "resnet", "bixt"])
def test_hosts_of_other_families(family: str) -> None:
    losses = cast(dict[str, Tensor], small(family=family).train()(images(*SIZES), TARGETS))
    assert all(each.isfinite() for each in losses.values())


@pytest.mark.parametrize("family", ["swin", "resnet"])
def test_detections_do_not_depend_on_other_images(family: str) -> None:
    """As long as the padded size is the same; a batch is the same as a list."""
    model = small(family=family, min_score=0.0).eval()
    batch = images(*SIZES)
    together = cast(list[dict[str, Tensor]], model(batch))
    alone = [cast(list[dict[str, Tensor]], model(each[None]))[0] for each in batch]
    for mine, theirs in zip(together, alone, strict=True):
        for name in mine:
            torch.testing.assert_close(mine[name], theirs[name], atol=1e-4, rtol=1e-5)


# -- torchvision ---------------------------------------------------------------------------------------------------------


def torchvisions() -> tuple[MaskRCNN, Detector]:
    """torchvision's Mask R-CNN on ResNet-18, and ours with its weights."""
    torch.manual_seed(0)
    body = torchvision.models.resnet18(norm_layer=FrozenBatchNorm2d)
    layers = {f"layer{level + 1}": str(level) for level in range(4)}
    backbone = BackboneWithFPN(body, layers, [64, 128, 256, 512], 16)
    theirs = MaskRCNN(
        backbone,
        box_head=TwoMLPHead(16 * 7 * 7, 32),
        box_predictor=FastRCNNPredictor(32, 4),
        mask_head=MaskRCNNHeads(16, (16,), 1),
        mask_predictor=MaskRCNNPredictor(16, 16, 4),
        box_score_thresh=0.0,
        box_detections_per_img=9,
        image_mean=[0.0] * 3,
        image_std=[1.0] * 3,
        min_size=64,  # of the images below, which are not resized
        max_size=128,
        _skip_resize=True,
    )
    sizes = {name: SMALL[name] for name in ("width", "box_width", "mask_layers")}
    limits = {"min_score": 0.0, "detections": 9}
    plain = timm.create_model("resnet18", num_classes=0)
    ours = detector(plain, classes=3, head="mask_rcnn", options="torchvision", **sizes, **limits)
    renamed = {
        name.replace("backbone.body.", "host.").replace("backbone.fpn.", "fpn."): each
        for name, each in theirs.state_dict().items()
    }
    missing, unexpected = ours.load_state_dict(renamed, strict=False)
    assert unexpected == []
    assert all(name.endswith("num_batches_tracked") for name in missing)
    ours.freeze_norms()
    return theirs, ours


@pytest.fixture(scope="module")
def both() -> tuple[MaskRCNN, Detector]:
    return torchvisions()


def test_torchvisions_weights_give_its_detections(both: tuple[MaskRCNN, Detector]) -> None:
    """Only images that the fifth level's map divides: torchvision sets its anchors apart by rounded quotients."""
    theirs, ours = (each.eval() for each in both)
    batch = images((64, 128), (64, 100))
    with torch.no_grad():
        for expected, found, image in zip(theirs(batch), ours(batch), batch, strict=True):
            for name in ("boxes", "labels", "scores"):
                torch.testing.assert_close(found[name], expected[name], atol=1e-3, rtol=1e-4)
            size = (image.shape[1], image.shape[2])
            pasted = paste_masks_in_image(found["masks"], found["boxes"], size)
            torch.testing.assert_close(pasted, expected["masks"], atol=1e-4, rtol=1e-4)


def test_torchvisions_weights_give_its_losses(both: tuple[MaskRCNN, Detector]) -> None:
    theirs, ours = (each.train() for each in both)
    batch, targets = images(*SIZES), TARGETS
    torch.manual_seed(2)  # of the sampler
    expected = {name.replace("_box_reg", "_box"): each for name, each in theirs(batch, targets).items()}
    torch.manual_seed(2)
    found = cast(dict[str, Tensor], ours(batch, targets))
    assert found.keys() == expected.keys()
    for name in found:
        torch.testing.assert_close(found[name], expected[name], atol=1e-5, rtol=1e-4)


def test_roi_align_without_alignment_is_torchvisions() -> None:
    """On images whose sizes are multiples of 32; torchvision infers the strides from the sizes of the first images."""
    torch.manual_seed(0)
    maps = {str(level): torch.randn(2, 3, 128 // stride, 128 // stride) for level, stride in enumerate((4, 8, 16, 32))}
    corners = torch.rand(6, 2) * 60
    boxes = torch.cat([corners, corners + torch.tensor([0.5, 20, 30, 40, 60, 64])[:, None]], dim=1)
    theirs = MultiScaleRoIAlign(list(maps), 7, 2)(maps, [boxes[:4], boxes[4:]], [(128, 128)] * 2)
    found = RoIAlign(7, aligned=False)(maps, [boxes[:4], boxes[4:]], [(128, 128)] * 2)
    torch.testing.assert_close(found, theirs)


def test_aligned_pooling_reads_the_pixels_of_the_box() -> None:
    """The means of each pixel's row of 4 x 4 images of a level are its cells, and the strides do not depend on sizes."""
    rows = torch.arange(64.0)[:, None].expand(1, 1, 64, 64)
    maps = {str(level): rows / (1 << level) for level in range(4)}
    pooled = RoIAlign(7, aligned=True)(maps, [torch.tensor([[28.0, 28, 84, 84]])], [(1, 1)])
    torch.testing.assert_close(pooled[0, 0, :, 0], torch.arange(7.0) * 2 + 7 + 0.5)


# -- the papers' options -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "head", "count"),
    [
        ("swin_tiny_patch4_window7_224", "mask_rcnn", 47_794_602),
        ("swin_small_patch4_window7_224", "mask_rcnn", 69_112_506),
        ("elsa_swin_tiny", "mask_rcnn", 48_647_226),
        ("elsa_swin_small", "mask_rcnn", 72_380_874),
        ("swin_tiny_patch4_window7_224", "cascade_mask_rcnn", 85_629_804),
        ("swin_small_patch4_window7_224", "cascade_mask_rcnn", 106_947_708),
        ("swin_base_patch4_window7_224", "cascade_mask_rcnn", 144_977_002),
        ("elsa_swin_tiny", "cascade_mask_rcnn", 86_482_428),
        ("elsa_swin_small", "cascade_mask_rcnn", 110_216_076),
    ],
)
def test_the_papers_sizes(name: str, head: Any, count: int) -> None:
    with meta_device():
        model = detector(timm.create_model(name, num_classes=0), classes=80, head=head)
    assert sum(parameter.numel() for parameter in model.parameters()) == count


def test_the_papers_multiply_adds() -> None:
    """Those of masks and of the cascade's boxes; the tables of the papers test all of them."""
    counts = {}
    with meta_device():
        for head in HEADS:
            model = FixedWork(detector(host("swin"), classes=80, head=cast(Any, head))).eval()
            counts[head] = count_macs(model, torch.empty(1, 3, 64, 64)) / 1e9
    assert counts["mask_rcnn"] - counts["faster_rcnn"] == pytest.approx(53.0, rel=1e-3)
    assert counts["cascade_mask_rcnn"] - counts["mask_rcnn"] == pytest.approx(3 * 128.9 - 14.3 + 2 * 53.0, rel=1e-3)


def test_best_proposals_of_objects_against_a_plain_loop() -> None:
    for seed in range(20):
        torch.manual_seed(seed)
        corners = torch.randint(0, 6, (40, 2)) * 4.0
        boxes = torch.cat([corners, corners + torch.randint(1, 6, (40, 2)) * 4.0], dim=1)
        quality = box_iou(boxes[:6], boxes[6:])
        wanted = []
        for column in quality.T:
            value, index = column.max(dim=0)
            wanted.append(int(index) if value >= 0.5 else -1)
        for index, row in enumerate(quality):
            for proposal in range(len(row)):
                if row[proposal] == row.max() >= 0.5:
                    wanted[proposal] = index
        assert BestOfObjects(0.5)(quality).tolist() == wanted


def test_losses_by_hand() -> None:
    """L1 of the deltas, whose standard deviations are 0.1 and 0.2; 10 (1 - GIoU) of the boxes."""
    proposal, wanted = torch.tensor([[0.0, 0, 10, 10]]), torch.tensor([[2.0, 0, 12, 10]])
    stage = cast(Stage, small().roi_heads)
    encoded = stage.box_coder.encode_single(wanted, proposal)
    given = torch.zeros(1, 4)
    assert float(stage._box_loss(given, encoded, proposal)) == pytest.approx(2 / 10 / 0.1)
    cascade = cast(Stage, cast(Any, small("cascade_mask_rcnn").roi_heads).stages[0])
    giou = 80 / 120 - 0  # the enclosing box is the union
    assert float(cascade._box_loss(given, encoded, proposal)) == pytest.approx(10 * (1 - giou), rel=1e-5)


def test_the_rpns_loss_is_l1_in_the_papers() -> None:
    """The deltas of positive anchors, divided by the number of sampled anchors."""
    given, wanted = torch.tensor([[0.3, 0, 0, 0], [5.0, 5, 5, 5]]), torch.tensor([[0.0, 0, 0.05, 0], [0.0, 0, 0, 0]])
    labels = [torch.tensor([1.0, 0.0])]
    for options, expected in (("papers", 0.35), ("torchvision", (0.3 - 1 / 18) + 0.05**2 / 2 * 9)):
        rpn = small(options=options).rpn
        assert float(rpn.compute_loss(torch.zeros(2, 1), given, labels, [wanted])[1]) == pytest.approx(expected / 2)


def test_mask_targets_are_the_pixels_of_the_box() -> None:
    """The mask of an object that fills the box's left half is the left half of the target."""
    stage = cast(Stage, small().roi_heads)
    target = objects((64, 64), [[8, 8, 22, 36]])
    seen: list[Tensor] = []
    stage.proposal_matcher = Matcher(0.0, 0.0)
    stage.mask_predictor.register_forward_hook(lambda *given: torch.zeros_like(given[2]).requires_grad_())
    stage.mask_predictor.register_forward_hook(lambda *given: seen.append(given[2]))
    maps = small().eval().pyramid(images((64, 64))[0][None])
    losses, _ = stage.train().learn(maps, [torch.tensor([[8.0, 8, 36, 36]])], [(64, 64)], [target])
    (gradient,) = torch.autograd.grad(losses["loss_mask"], seen[0])
    inside = (gradient[0, 1] < 0).float()  # sigmoid(0) - target
    assert torch.equal(inside, torch.cat([torch.ones(28, 14), torch.zeros(28, 14)], dim=1))


def test_anchors_are_a_stride_apart() -> None:
    """Also those of a fifth level of 2 cells above 3 of the fourth, where torchvision has 48 pixels."""
    for options, stride in (("papers", 64), ("torchvision", 48)):
        model = small(options=options)
        maps = list(model.pyramid(torch.zeros(1, 3, 96, 96)).values())
        anchors = model.rpn.anchor_generator(ImageList(torch.zeros(1, 3, 96, 96), [(96, 96)]), maps)[0]
        assert maps[-1].shape[2:] == (2, 2)
        assert float(anchors[-1, 0] - anchors[-4, 0]) == stride
        assert float(anchors[3, 0] - anchors[0, 0]) == 4


def test_without_predictions_for_the_background_zeros_stand_for_it() -> None:
    stage = cast(Stage, small().roi_heads)
    logits, deltas = stage.box_predictor(torch.randn(2, 32))
    assert logits.shape == (2, 4) and deltas.shape == (2, 16)
    assert not deltas[:, :4].any() and deltas[:, 4:].all()
    masks = stage.mask_predictor(torch.randn(2, 16, 14, 14))
    assert masks.shape == (2, 4, 28, 28)
    assert not masks[:, 0].any() and masks[:, 1:].any()


# -- training ------------------------------------------------------------------------------------------------------------


def test_frozen_norms_keep_their_statistics() -> None:
    model = small(family="resnet")
    model.freeze_norms()
    before = {name: each.clone() for name, each in model.host.named_buffers()}
    model.train()(images(*SIZES), TARGETS)
    for name, each in model.host.named_buffers():
        assert torch.equal(each, before[name]), name
    norms = [module for module in model.host.modules() if isinstance(module, nn.BatchNorm2d)]
    assert norms
    assert all(not module.training and not module.weight.requires_grad for module in norms)
    assert model.rpn.training


@pytest.mark.parametrize("head", HEADS)
def test_in_autocast_losses_and_detections_are_float32(head: str) -> None:
    model = small(head, min_score=0.0)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        losses = cast(dict[str, Tensor], model.train()(images(*SIZES), TARGETS))
        found = cast(list[dict[str, Tensor]], model.eval()(images(*SIZES)))
    assert {each.dtype for each in losses.values()} == {torch.float32}
    assert all(each.isfinite() for each in losses.values())
    assert {each.dtype for name, each in found[0].items() if name != "labels"} == {torch.float32}
    sum(losses.values(), torch.zeros(())).backward()


def test_gradients_reach_grafts() -> None:
    grafted = host("swin")
    attngraft.graft(grafted, "bisa@layers.0 + cb_s")
    model = detector(grafted, classes=3, head="mask_rcnn", **SMALL).train()
    losses = cast(dict[str, Tensor], model(images(*SIZES), TARGETS))
    sum(losses.values(), torch.zeros(())).backward()
    added = {name: each for name, each in model.named_parameters() if ".grafts." in name}
    assert added
    assert all(each.grad is not None and each.grad.any() for each in added.values())


def test_a_host_without_maps_is_refused() -> None:
    with pytest.raises(HostError, match="Linear: has no forward_intermediates"):
        detector(nn.Linear(2, 2), classes=3, head="mask_rcnn")


def test_torchvisions_own_forward_gives_the_same_losses() -> None:
    """`RoIHeads.forward` on the modules of a stage with torchvision's options."""
    model = small(options="torchvision").train()
    stage = cast(Stage, model.roi_heads)
    maps = model.pyramid(torch.zeros(2, 3, 64, 96))
    proposals = [torch.tensor([[4.0, 4, 44, 52], [28, 16, 84, 60], [0, 0, 20, 20]]), torch.tensor([[1.0, 1, 9, 9]])]
    found = stage(maps, proposals, SIZES, TARGETS)[1]
    theirs = RoIHeads.forward(stage, maps, proposals, SIZES, TARGETS)[1]
    torch.testing.assert_close(found, {name.replace("box_reg", "box"): each for name, each in theirs.items()})
