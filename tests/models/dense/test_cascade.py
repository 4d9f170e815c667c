"""The cascade: stages feed each other, gradients stay in a stage, and predictions are averaged."""

from __future__ import annotations

from typing import Any, cast

import pytest
import torch
from torch import Tensor
from torchvision.ops import clip_boxes_to_image

from attngraft.models.dense import Detector
from attngraft.models.dense.cascade import CascadeRoIHeads
from attngraft.models.dense.roi_heads import HeadOptions, Stage
from tests.models.dense.test_detector import SIZES, TARGETS, images, objects, small

PROPOSALS = [torch.tensor([[4.0, 4, 44, 52], [28, 16, 84, 60], [0, 0, 20, 20]]), torch.tensor([[1.0, 1, 9, 9]])]


def heads(*, stages: int, **options: Any) -> CascadeRoIHeads:
    torch.manual_seed(0)
    given: dict[str, Any] = {
        "classes": 3,
        "papers": True,
        "masks": True,
        "width": 16,
        "box_width": 32,
        "mask_layers": 1,
    }
    shared = HeadOptions(**given | {"detections": 5, "samples": 512, "min_score": 0.0, "nms": 0.5} | options)
    return CascadeRoIHeads(shared, stages=stages)


def maps() -> dict[str, Tensor]:
    drawn = torch.Generator().manual_seed(3)
    return {
        str(level): torch.randn(2, 16, 64 // stride, 96 // stride, generator=drawn)
        for level, stride in enumerate((4, 8, 16, 32))
    }


def test_one_stage_is_mask_r_cnn_with_the_same_head() -> None:
    """In training by the same loss, and in evaluation."""
    cascade = heads(stages=1)
    (stage,) = (cast(Stage, each) for each in cascade.stages)
    torch.manual_seed(1)
    losses = cascade.train()(maps(), PROPOSALS, SIZES, TARGETS)[1]
    torch.manual_seed(1)
    alone = stage(maps(), PROPOSALS, SIZES, TARGETS)[1]
    torch.testing.assert_close(losses, {f"{name}_0": each for name, each in alone.items()}, atol=1e-6, rtol=1e-5)
    cascade.eval()
    found, expected = (each(maps(), PROPOSALS, SIZES)[0] for each in (cascade, stage))
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)


def test_gradients_of_a_stage_do_not_reach_the_ones_before() -> None:
    cascade = heads(stages=3).train()
    losses = cascade(maps(), PROPOSALS, SIZES, TARGETS)[1]
    sum((each for name, each in losses.items() if name.endswith("_1")), torch.zeros(())).backward()
    reached = [any(each.grad is not None for each in stage.parameters()) for stage in cascade.stages]
    assert reached == [False, True, False]


def test_losses_are_weighted_by_stage() -> None:
    cascade = heads(stages=3).train()
    found: list[dict[str, Tensor]] = []
    for stage in (cast(Stage, each) for each in cascade.stages):

        def learn(*given: Any, of: Any = stage.learn) -> Any:
            losses, boxes = of(*given)
            found.append(losses)
            return losses, boxes

        stage.learn = learn  # type: ignore[method-assign]
    losses = cascade(maps(), PROPOSALS, SIZES, TARGETS)[1]
    for index, weight in enumerate((1, 0.5, 0.25)):
        for name, each in found[index].items():
            assert float(losses[f"{name}_{index}"].detach()) == pytest.approx(weight * float(each.detach()))


def test_thresholds_and_deltas_of_the_stages() -> None:
    stages = [cast(Stage, each) for each in heads(stages=3).stages]
    assert [stage.proposal_matcher.high_threshold for stage in stages] == [0.5, 0.6, 0.7]
    assert [stage.box_coder.weights for stage in stages] == [(10, 10, 5, 5), (20, 20, 10, 10), (30, 30, 15, 15)]


def test_a_stage_gets_the_moved_boxes_without_the_objects_own() -> None:
    """Each sampled box, moved by the deltas of its object's class or of the likeliest class."""
    (stage,) = (cast(Stage, each) for each in heads(stages=1).train().stages)
    target = objects((64, 96), [[5, 5, 40, 50]])
    logits = torch.tensor([[5.0, 1, 0, 3]]).repeat(3, 1)
    deltas = torch.zeros(3, 4, 4)
    deltas[:, 1, 0], deltas[:, 3, 0] = (
        1.0,
        -1.0,
    )  # a tenth of the width to the right for class 1, to the left for class 3
    stage.predict = lambda *_: (logits, deltas.flatten(1))  # type: ignore[method-assign]
    proposals = [torch.tensor([[10.0, 5, 40, 50], [50, 20, 70, 40]])]
    single = {name: each[:1] for name, each in maps().items()}
    _, (moved,) = stage.learn(single, proposals, [(64, 96)], [target])
    torch.testing.assert_close(moved, torch.tensor([[13.0, 5, 43, 50], [48, 20, 68, 40]]))


def test_detections_have_mean_scores_and_masks_and_the_last_boxes() -> None:
    cascade = heads(stages=3).eval()
    stages = [cast(Stage, each) for each in cascade.stages]
    single = {name: each[:1] for name, each in maps().items()}
    seen: dict[str, list[Any]] = {"boxes": [], "outputs": [], "masks": []}
    for stage in stages:
        stage.box_roi_pool.register_forward_hook(lambda _, given, __: seen["boxes"].append(given[1]))
        stage.box_predictor.register_forward_hook(lambda _, __, output: seen["outputs"].append(output))
        stage.mask_predictor.register_forward_hook(lambda _, __, output: seen["masks"].append(output.sigmoid()))
    size = (60, 90)
    with torch.no_grad():
        ((found,), _) = cascade(single, PROPOSALS[:1], [size])
    scores = torch.stack([logits.softmax(dim=-1) for logits, _ in seen["outputs"]]).mean(dim=0)
    decoded = stages[2].box_coder.decode(seen["outputs"][2][1], seen["boxes"][2])
    masks = torch.stack(seen["masks"]).mean(dim=0)
    assert len(found["boxes"]) == 5
    for index, (box, label, score) in enumerate(zip(found["boxes"], found["labels"], found["scores"], strict=True)):
        row = int((scores[:, label] - score).abs().argmin())
        torch.testing.assert_close(scores[row, label], score)
        torch.testing.assert_close(clip_boxes_to_image(decoded[row, label], size), box)
        torch.testing.assert_close(masks[index, label], found["masks"][index, 0])
    for before, after, stage, (logits, deltas) in zip(
        seen["boxes"], seen["boxes"][1:], stages, seen["outputs"], strict=False
    ):
        likeliest = logits[:, 1:].argmax(dim=1) + 1
        moved = stage.box_coder.decode(deltas, before)[torch.arange(3), likeliest]
        torch.testing.assert_close(after[0], clip_boxes_to_image(moved, size))


def test_training_lowers_the_losses() -> None:
    model: Detector = small("cascade_mask_rcnn").train()
    for stage in cast(Any, model.roi_heads).stages:
        stage.fg_bg_sampler.batch_size_per_image = 64
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
    batch, seen = images(SIZES[0]), []
    for step in range(8):
        torch.manual_seed(step)
        total = sum(cast(dict[str, Tensor], model(batch, TARGETS[:1])).values(), torch.zeros(()))
        optimizer.zero_grad()
        total.backward()
        optimizer.step()
        seen.append(float(total.detach()))
    assert seen[-1] < 0.7 * seen[0]
