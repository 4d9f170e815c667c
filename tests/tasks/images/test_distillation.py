"""Inputs of a teacher and loss against its outputs: by hand, and against timm's own tasks."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from timm.task import DistillationTeacher, LogitDistillationTask, TokenDistillationTask
from torch import Tensor, nn

from attngraft.errors import ConfigError
from attngraft.tasks.classification.losses import teacher_loss
from attngraft.tasks.multilabel.losses import teacher_loss as multilabel_loss
from attngraft.tasks.task import load_task
from tests.tasks.images.datasets import host_config, make_task, normalized


def logits_of(*probabilities: float) -> Tensor:
    return torch.tensor([probabilities]).log()


def test_the_divergence_is_from_the_teacher_to_the_student() -> None:
    student, teacher = logits_of(0.5, 0.5), logits_of(0.9, 0.1)
    forward = 0.9 * math.log(0.9 / 0.5) + 0.1 * math.log(0.1 / 0.5)
    backward = 0.5 * math.log(0.5 / 0.9) + 0.5 * math.log(0.5 / 0.1)
    assert teacher_loss(student, teacher, temperature=1, hard=False).item() == pytest.approx(forward, rel=1e-5)
    assert forward != pytest.approx(backward, rel=0.1)


def test_temperature_softens_both_and_hard_follows_the_best_class() -> None:
    student, teacher = torch.tensor([[0.0, 2.0], [1.0, 0.0]]), torch.tensor([[4.0, 0.0], [0.0, 0.0]])
    by_hand = []
    for s, t in zip((student / 2).softmax(-1).tolist(), (teacher / 2).softmax(-1).tolist(), strict=True):
        by_hand.append(sum(p * math.log(p / q) for p, q in zip(t, s, strict=True)))
    found = teacher_loss(student, teacher, temperature=2, hard=False)
    assert found.item() == pytest.approx(4 * sum(by_hand) / 2, rel=1e-5)
    hard = teacher_loss(student, teacher, temperature=1, hard=True)
    assert hard.item() == pytest.approx(F.cross_entropy(student, torch.tensor([0, 0])).item())


def test_several_labels_follow_the_teachers_probabilities() -> None:
    student, teacher = torch.tensor([[0.0, 1.0]]), torch.tensor([[2.0, -1.0]])
    own, wanted = student.sigmoid()[0].tolist(), teacher.sigmoid()[0].tolist()
    by_hand = -sum(t * math.log(s) + (1 - t) * math.log(1 - s) for s, t in zip(own, wanted, strict=True)) / 2
    assert multilabel_loss(student, teacher, temperature=1, hard=False).item() == pytest.approx(by_hand, rel=1e-5)
    hard = multilabel_loss(student, teacher, temperature=1, hard=True)
    assert hard.item() == pytest.approx(-(math.log(own[0]) + math.log(1 - own[1])) / 2, rel=1e-5)


class Answers(nn.Module):
    """Gives the same answer to everything; timm asks it for a few attributes."""

    def __init__(self, answer: Any, config: dict[str, Any]) -> None:
        super().__init__()
        self.answer, self.pretrained_cfg, self.num_classes, self.in_chans = answer, config, 10, 3

    def forward(self, images: Tensor) -> Any:
        return self.answer

    def set_distilled_training(self, enable: bool) -> None:
        assert enable


@pytest.mark.parametrize("temperature", [1.0, 3.0])
def test_the_sum_of_both_parts_is_timms(temperature: float) -> None:
    task = make_task("digits", loss={"smoothing": 0.0})
    data = task.load(model_data_config=host_config(8))
    batch = data.train.collate([data.train[(0, i)] for i in range(6)])
    config = host_config(8)
    distillation = task.distillation(model_data_config=config)
    own, token, taught = torch.randn(3, 6, 10, generator=torch.Generator().manual_seed(1)).unbind()
    images = torch.zeros(6, 3, 8, 8)
    theirs = LogitDistillationTask(
        Answers(own, config),
        DistillationTeacher(Answers(taught, config)),
        nn.CrossEntropyLoss(),
        distill_loss_weight=5.0,
        temperature=temperature,
        verbose=False,
    )(images, batch["target"])
    part = distillation.loss(own, taught, temperature=temperature, hard=False)
    assert torch.allclose(task.loss(own, batch)["loss"] + 5 * part, theirs["loss"])
    for kind, hard in (("soft", False), ("hard", True)):
        theirs = TokenDistillationTask(
            Answers((own, token), config),
            DistillationTeacher(Answers(taught, config)),
            nn.CrossEntropyLoss(),
            distill_type=kind,
            temperature=temperature,
            verbose=False,
        )(images, batch["target"])
        part = distillation.loss(token, taught, temperature=temperature, hard=hard)
        assert torch.allclose(task.loss(own, batch)["loss"] + part, theirs["loss"])


def test_two_heads_are_averaged_before_they_are_compared() -> None:
    task = make_task("digits")
    task.load(model_data_config=host_config(8))
    distillation = task.distillation(model_data_config=host_config(8))
    one, two, taught = torch.randn(3, 4, 10).unbind()
    both = distillation.loss((one, two), taught, temperature=1, hard=False)
    assert torch.equal(both, distillation.loss((one + two) / 2, taught, temperature=1, hard=False))


def digits(**teacher: Any) -> tuple[Any, Any, dict[str, Tensor]]:
    """A task with mixup, its way to a teacher, and a mixed batch."""
    task = make_task("digits", augment={"mixup": 0.8, "mix_prob": 1.0})
    data = task.load(model_data_config=host_config(8))
    batch = data.train.collate([data.train[(0, i)] for i in range(6)])
    config = {**host_config(8), **teacher}
    return task, task.distillation(model_data_config=config), task.prepare(batch, epoch=0, step=0)


def test_mixed_images_reach_the_teacher_normalized_anew_and_resized() -> None:
    mean, std = (0.1, 0.2, 0.3), (0.4, 0.5, 0.6)
    _, distillation, mixed = digits(mean=mean, std=std, input_size=(3, 12, 12))
    assert mixed["target"].ndim == 2, "nothing was mixed"
    (shown,), _ = distillation.to_teacher(mixed)
    pixels = mixed["image"] * 0.25 + 0.5
    assert pixels.min() > -1e-5
    assert pixels.max() < 1 + 1e-5
    larger = F.interpolate(pixels, (12, 12), mode="bicubic", antialias=True)
    expected = (larger - torch.tensor(mean).view(3, 1, 1)) / torch.tensor(std).view(3, 1, 1)
    torch.testing.assert_close(shown, expected, rtol=0, atol=1e-5)


def test_a_teacher_that_wants_the_same_is_shown_the_same() -> None:
    _, distillation, mixed = digits()
    (shown,), _ = distillation.to_teacher(mixed)
    assert shown is mixed["image"]


def test_bytes_of_evaluation_are_normalized_for_the_teacher() -> None:
    task = make_task("digits")
    data = task.load(model_data_config=host_config(8))
    batch = data.val.collate([data.val[(0, i)] for i in range(3)])
    other = host_config(8) | {"mean": (0.0,) * 3, "std": (1.0,) * 3}
    (shown,), _ = task.distillation(model_data_config=other).to_teacher(batch)
    torch.testing.assert_close(shown, normalized(batch["image"], other), rtol=0, atol=1e-6)


def test_gray_images_are_shown_to_a_teacher_of_color_and_not_the_other_way() -> None:
    task = make_task("digits")
    data = task.load(model_data_config=host_config(8, channels=1))
    batch = task.prepare(data.train.collate([data.train[(0, i)] for i in range(3)]), epoch=0, step=0)
    color = host_config(8) | {"mean": (0.1, 0.2, 0.3)}
    (shown,), _ = task.distillation(model_data_config=color).to_teacher(batch)
    expected = normalized(((batch["image"] * 0.25 + 0.5) * 255).round().byte().expand(-1, 3, -1, -1), color)
    torch.testing.assert_close(shown, expected, rtol=0, atol=1e-5)
    colored = make_task("digits")
    colored.load(model_data_config=host_config(8))
    with pytest.raises(ConfigError, match="a grayscale teacher cannot be used with color images"):
        colored.distillation(model_data_config=host_config(8, channels=1))


def test_a_task_that_does_not_say_how_refuses() -> None:
    import tests.training.toys  # noqa: F401

    toy = load_task("toy").from_config({}, seed=0)
    with pytest.raises(ConfigError, match=r"task toy: does not support training with a teacher"):
        toy.distillation(model_data_config={})
