"""In which precision a run's model is attacked, and in which it answers."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from attngraft.evaluation.suites import parse_suites
from attngraft.evaluation.suites.conditions import ConditionEvaluator, TargetModel
from attngraft.evaluation.suites.context import open_context
from attngraft.evaluation.suites.progress import SuiteProgress
from attngraft.tasks.classification.suites import RestrictedClassifier
from attngraft.tasks.images.suites.attacks import fgsm
from attngraft.tasks.images.suites.changes import AttackTarget, OneStep
from attngraft.training.evaluate import run_target, trained_model
from attngraft.training.run_folder import read_run
from attngraft.training.setup import create_accelerator
from attngraft.training.stopping import StopSignal
from tests.evaluation.suites.making import run_with_images


@dataclass
class Watched:
    """An attack whose images are kept, with what the model says to them."""

    change: OneStep
    seen: list[tuple[Tensor, Tensor, Tensor]] = field(default_factory=list)
    gradients: ClassVar[bool] = True

    def __call__(self, pixels: Tensor, target: AttackTarget, *, noise_seed: int) -> Tensor:
        attacked = self.change(pixels, target, noise_seed=noise_seed)
        with torch.no_grad():
            self.seen.append((pixels, attacked, target.outputs(attacked)))
        return attacked


@pytest.mark.parametrize("answers", [None, np.array([0, 2])])
def test_attacks_are_in_full_precision_and_answers_in_the_runs(tmp_path: Path, answers: np.ndarray | None) -> None:
    record = read_run(run_with_images(tmp_path / "run", train={"batch_size": 4, "threads": 1, "amp": "bf16"}))
    (choice,) = parse_suites(["fgsm"])
    restrict = None if answers is None else partial(RestrictedClassifier, allowed=answers, classes=3)
    context = replace(open_context(run_target(record, "last"), choice), restrict=restrict)
    watched = Watched(OneStep(8 / 255))
    condition = replace(choice.suite.conditions[0], batch=watched)
    run = TargetModel(run_target(record, "last"), create_accelerator(record.recipe))
    found = ConditionEvaluator(run, context, [condition], progress=SuiteProgress())(
        condition, StopSignal(run.accelerator)
    )
    assert found is not None
    model, labels = trained_model(record, "last").eval(), torch.from_numpy(found.predictions.arrays["target"])

    def plain(x: Tensor) -> Tensor:
        logits: Tensor = model((x - 0.5) / 0.5)
        return logits if answers is None else logits.index_fill(1, torch.tensor([1]), -1e30)

    def loss(x: Tensor, of: Tensor) -> Tensor:
        return F.cross_entropy(plain(x), of, reduction="sum")

    # half of the batch that training fits in half precision
    for (pixels, attacked, _), of in zip(watched.seen, labels.split(2), strict=True):
        assert torch.equal(attacked, fgsm(partial(loss, of=of), pixels, epsilon=8 / 255))
    _, attacked, outputs = (torch.cat(each) for each in zip(*watched.seen, strict=True))
    with torch.no_grad():
        exact = plain(attacked)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            rounded = plain(attacked)
    kept = outputs[:, [0, 2]]
    torch.testing.assert_close(kept, rounded[:, [0, 2]].float())
    assert not torch.equal(kept, exact[:, [0, 2]])
