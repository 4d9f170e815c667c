"""Evaluation of a model under the conditions of one suite."""

from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

from accelerate import Accelerator
from torch import Tensor, nn

from attngraft.evaluation.suites.context import ChangedSplit, EvaluationContext
from attngraft.evaluation.suites.progress import SuiteProgress
from attngraft.tasks.suites import BatchTarget, Condition
from attngraft.tasks.task import Batch, Evaluation
from attngraft.training.evaluate import SplitEvaluator
from attngraft.training.inputs import in_format
from attngraft.training.stopping import StopSignal
from attngraft.training.target import Target


class TargetModel:
    """The model of a target, created on first use."""

    def __init__(self, target: Target, accelerator: Accelerator) -> None:
        self.target, self.accelerator = target, accelerator

    @cached_property
    def core(self) -> nn.Module:
        """The model without accelerate's preparation; runs in full precision unless called under autocast."""
        return self.target.build().requires_grad_(False).eval()

    @cached_property
    def prepared(self) -> nn.Module:
        """The model prepared by accelerate; runs in the recipe's precision."""
        prepared: nn.Module = self.accelerator.prepare_model(_Wrapper(self.core), evaluation_mode=True)
        return prepared


class _Wrapper(nn.Module):
    """Wrapper whose `forward` accelerate can replace, so that the model itself is not modified."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.model(*args, **kwargs)


class ConditionEvaluator:
    """Evaluate a model under the conditions of one suite, reusing the data loading processes."""

    def __init__(
        self,
        model: TargetModel,
        context: EvaluationContext,
        conditions: Sequence[Condition],
        *,
        progress: SuiteProgress,
    ) -> None:
        self._model, self._context, self._conditions, self._progress = model, context, list(conditions), progress
        self._evaluators: dict[bool, SplitEvaluator] = {}
        self.remarks: dict[str, None] = {}  #: remarks on how the examples were changed under the most recent condition

    def __call__(self, condition: Condition, stop: StopSignal) -> Evaluation | None:
        """Evaluate under one condition; return None if `stop` was set before the end.

        Raises:
            UnsupportedCondition: the condition cannot be applied to the model.
        """
        self.remarks.clear()
        model, exact = self._restricted(self._model.prepared), self._restricted(self._model.core)

        def change(batch: Batch, indices: Tensor) -> Batch:
            changed = self._changed(batch, indices, condition, model, exact)
            self._progress.on_examples(len(indices))
            return changed

        evaluate = self._evaluator(gradients=condition.batch is not None and condition.batch.gradients)
        evaluation = evaluate(model, stop=stop, change=change, epoch=self._conditions.index(condition))
        score = self._context.score
        return evaluation if evaluation is None or score is None else score(evaluation)

    def close(self) -> None:
        """Stop the data loading processes."""
        for evaluator in self._evaluators.values():
            evaluator.stop_workers()

    def _restricted(self, model: nn.Module) -> nn.Module:
        restrict = self._context.restrict
        return model if restrict is None else restrict(model).to(self._model.accelerator.device)

    def _evaluator(self, *, gradients: bool) -> SplitEvaluator:
        if gradients not in self._evaluators:
            context, recipe = self._context, self._model.target.recipe
            if gradients:
                # a batch whose backward pass fits in memory; full precision allows half the mixed-precision size
                train = recipe.train
                micro = max(1, train.batch_size // train.accumulate // (1 if train.amp == "no" else 2))
                size = min(train.eval_batch_size or micro, micro)
                recipe = replace(recipe, train=replace(train, eval_batch_size=size))
            examples = ChangedSplit(context.split, context.indices, self._conditions, context.support.access)
            self._evaluators[gradients] = SplitEvaluator(
                context.task,
                context.split,
                recipe,
                self._model.accelerator,
                facts=context.facts,
                examples=examples,
            )
        return self._evaluators[gradients]

    def _changed(
        self, batch: Batch, indices: Tensor, condition: Condition, model: nn.Module, exact: nn.Module
    ) -> Batch:
        """Return the batch changed by the condition; attacks use gradients of `exact` (full precision)."""
        if condition.batch is None:
            return batch
        context, layout = self._context, self._model.target.recipe.train.channels_last

        def call(called: nn.Module, changed: Batch) -> Any:
            args, kwargs = in_format(context.task.to_model(changed), channels_last=layout)
            return called(*args, **kwargs)

        def outputs(changed: Batch) -> Any:
            with self._model.accelerator.autocast():
                return call(model, changed)

        target = BatchTarget(
            model=self._model.core,
            outputs=outputs,
            losses=lambda changed: context.support.losses(call(exact, changed), batch),
            indices=[int(context.indices[index]) for index in indices.tolist()],
            report=lambda text: self.remarks.update({text: None}),
        )
        return context.support.access.change_batch(batch, condition.batch, target, noise_seed=condition.noise_seed or 0)
