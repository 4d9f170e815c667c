"""A run's model on its device, evaluated on changed examples."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

from accelerate import Accelerator
from torch import Tensor, nn

from attngraft.evaluation.suites.changes import Victim
from attngraft.evaluation.suites.condition import Condition
from attngraft.evaluation.suites.ground import ChangedSplit, Ground
from attngraft.evaluation.suites.judging import Answering, judged
from attngraft.evaluation.suites.progress import SuiteProgress
from attngraft.tasks.task import Batch, Evaluation
from attngraft.training.evaluate import SplitEvaluator, Weights, trained_model
from attngraft.training.inputs import model_inputs
from attngraft.training.recipe import Recipe
from attngraft.training.run_folder import RunRecord
from attngraft.training.stopping import StopSignal


class Bench:
    """The model, made when it is first asked for: where everything is done already, it never is."""

    def __init__(self, record: RunRecord, weights: Weights, accelerator: Accelerator) -> None:
        self.record, self.weights, self.accelerator = record, weights, accelerator

    @cached_property
    def core(self) -> nn.Module:
        """Without what accelerate puts around it: in full precision, unless it is called within an autocast."""
        return trained_model(self.record, self.weights).requires_grad_(False).eval()

    @cached_property
    def model(self) -> nn.Module:
        """In the run's precision."""
        prepared: nn.Module = self.accelerator.prepare_model(_Shell(self.core), evaluation_mode=True)
        return prepared


class _Shell(nn.Module):
    """What accelerate may give another `forward`, so that the model keeps its own."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.model(*args, **kwargs)


class Conditions:
    """Evaluates a bench's model under the conditions of one suite; loading processes stay from one to the next."""

    def __init__(
        self, bench: Bench, ground: Ground, conditions: Sequence[Condition], *, progress: SuiteProgress
    ) -> None:
        self._bench, self._ground, self._conditions, self._progress = bench, ground, list(conditions), progress
        self._evaluators: dict[bool, SplitEvaluator] = {}
        self.said: dict[str, None] = {}  #: how the last condition's changes were made

    def __call__(self, condition: Condition, stop: StopSignal) -> Evaluation | None:
        """Metrics and predictions; None if `stop` said so before the end.

        Raises:
            NotPossible: the model cannot be put under this condition.
        """
        ground, place = self._ground, self._conditions.index(condition)
        self.said.clear()
        model, exact = self._answering(self._bench.model), self._answering(self._bench.core)

        def change(batch: Batch, indices: Tensor) -> Batch:
            changed = self._changed(batch, indices, condition, model, exact)
            self._progress.on_examples(len(indices))
            return changed

        evaluate = self._evaluator(gradients=condition.batch is not None and condition.batch.gradients)
        found = evaluate(model, stop=stop, change=change, epoch=place)
        return judged(found, ground.accepted) if found is not None and ground.accepted else found

    def end(self) -> None:
        """Send the loading processes away."""
        for evaluator in self._evaluators.values():
            evaluator.stop_workers()

    def _answering(self, model: nn.Module) -> nn.Module:
        """The model, answering with the classes that may be answered."""
        if self._ground.answers is None:
            return model
        answering = Answering(model, self._ground.answers, classes=len(self._bench.record.facts["classes"]))
        return answering.to(self._bench.accelerator.device)

    def _evaluator(self, *, gradients: bool) -> SplitEvaluator:
        if gradients not in self._evaluators:
            ground, recipe = self._ground, self._bench.record.recipe
            examples = ChangedSplit(ground.split, ground.numbers, self._conditions, ground.support.pixels)
            self._evaluators[gradients] = SplitEvaluator(
                ground.task,
                ground.split,
                _of_training_size(recipe) if gradients else recipe,
                self._bench.accelerator,
                examples=examples,
            )
        return self._evaluators[gradients]

    def _changed(
        self, batch: Batch, indices: Tensor, condition: Condition, model: nn.Module, exact: nn.Module
    ) -> Batch:
        """The batch under the condition; `exact` is the model in full precision, of which attacks take gradients."""
        if condition.batch is None:
            return batch
        ground, accelerator, pixels = self._ground, self._bench.accelerator, self._ground.support.pixels
        layout = self._bench.record.recipe.train.channels_last

        def called(one: nn.Module, changed: Tensor) -> Any:
            args, kwargs = model_inputs(ground.task, pixels.to_batch(batch, changed), channels_last=layout)
            return one(*args, **kwargs)

        def outputs(changed: Tensor) -> Any:
            with accelerator.autocast():
                return called(model, changed)

        victim = Victim(
            model=self._bench.core,
            outputs=outputs,
            losses=lambda changed: ground.support.losses(called(exact, changed), batch),
            numbers=[int(ground.numbers[index]) for index in indices.tolist()],
            color=pixels.color,
            say=lambda text: self.said.update({text: None}),
        )
        changed = condition.batch(pixels.from_batch(batch), victim, noise_seed=condition.noise_seed or 0)
        return pixels.to_batch(batch, changed)


def _of_training_size(recipe: Recipe) -> Recipe:
    """With evaluation batches no larger than those that a backward pass is known to fit with: in full precision half of
    what fits in half precision."""
    train = recipe.train
    micro = max(1, train.batch_size // train.accumulate // (1 if train.amp == "no" else 2))
    return replace(recipe, train=replace(train, eval_batch_size=min(train.eval_batch_size or micro, micro)))
