"""Evaluation of a model on a split by any number of processes, and evaluation of a trained run."""

from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Literal

import torch
from accelerate import Accelerator
from accelerate.utils import gather, send_to_device
from torch import Tensor, nn

from attngraft.attention import sites_with_detached
from attngraft.errors import DataError, TrainingError
from attngraft.hosts import forget
from attngraft.models.trust import trusting
from attngraft.tasks.task import Batch, Evaluation, Split, Task
from attngraft.training.build import build_model, build_task, model_data_config
from attngraft.training.checkpoint import load_detached, load_weights, read_checkpoint
from attngraft.training.inputs import Arguments, model_inputs
from attngraft.training.loading import EvalOrder, eval_batches, indices_of
from attngraft.training.recipe import Recipe
from attngraft.training.run_folder import RunFolder, RunRecord, read_run
from attngraft.training.setup import create_accelerator
from attngraft.training.stopping import StoppedWaiting, StopSignal

Weights = Literal["last", "best", "ema", "best-ema"]


class SplitEvaluator:
    """Evaluator of models on one split; keeps its loading processes between calls."""

    def __init__(
        self, task: Task, split: Split, recipe: Recipe, accelerator: Accelerator, *, examples: Split | None = None
    ) -> None:
        """`examples` replace the split's own, one for one."""
        config = recipe.train
        self._task, self._split, self._accelerator = task, split, accelerator
        self._order = EvalOrder(
            length=len(split),
            batch_size=config.eval_batch_size or config.batch_size // config.accumulate,
            rank=accelerator.process_index,
            world=accelerator.num_processes,
        )
        pin = accelerator.device.type == "cuda"
        self._loader = eval_batches(
            split if examples is None else examples, self._order, workers=config.workers, pin=pin
        )
        self._channels_last = config.channels_last

    def __call__(
        self,
        model: nn.Module,
        *,
        stop: StopSignal | None = None,
        inputs: Callable[[Batch], Arguments] | None = None,
        change: Callable[[Batch, Tensor], Batch] | None = None,
        epoch: int = 0,
    ) -> Evaluation | None:
        """Return metrics and predictions of `model`, the same in every process; None if `stop` ended the evaluation.

        Args:
            model: as prepared by accelerate.
            stop: the run's signal handler; None: not interruptible.
            inputs: maps a batch to the arguments of the model; None: those of the task.
            change: maps a batch on the device, and the indices of its examples, to the batch to evaluate.
            epoch: part of the keys of the examples.
        """
        self._order.epoch = epoch
        evaluator = self._task.evaluator(self._split)
        batches = self._loader if stop is None else stop.while_waiting(self._loader)
        try:
            for outputs, indices in self._outputs(model, batches, inputs or self._inputs, change):
                evaluator.update(outputs, indices)
                if stop is not None and stop.agreed():
                    return None
        except StoppedWaiting:
            return None
        return evaluator.result()

    def stop_workers(self) -> None:
        """End the loading processes now."""
        self._loader.stop_workers()

    def _inputs(self, batch: Batch) -> Arguments:
        return model_inputs(self._task, batch, channels_last=self._channels_last)

    @torch.no_grad()
    def _outputs(
        self,
        model: nn.Module,
        batches: Iterable[Batch],
        inputs: Callable[[Batch], Arguments],
        change: Callable[[Batch, Tensor], Batch] | None,
    ) -> Iterable[tuple[dict[str, Tensor], Tensor]]:
        """Yield each batch's predictions and example indices, gathered from all processes, on the CPU."""
        model.eval()
        forget(model)
        device = self._accelerator.device
        for keys, batch in zip(self._order, batches, strict=True):
            batch = send_to_device(batch, device, non_blocking=True)
            if change is not None:
                batch = change(batch, indices_of(keys))
            args, kwargs = inputs(batch)
            with self._accelerator.autocast():
                outputs = self._task.predict(model(*args, **kwargs), batch)
            gathered = gather((outputs, indices_of(keys).to(device)))
            yield {name: _on_cpu(tensor) for name, tensor in gathered[0].items()}, gathered[1].cpu()


def evaluate_run(
    folder: Path | str,
    *,
    data: str | None = None,
    split: str | None = None,
    weights: Weights = "last",
    trust_code: bool = False,
) -> Evaluation:
    """Evaluate a trained run.

    Args:
        folder: the run's folder.
        data: other data of the same kind (`task.data.source`); None: the run's own.
        split: another part of the data (`task.data.val_split`); None: the run's own validation part.
        weights: which weights to use: last checkpoint, best epoch, or their moving averages.
        trust_code: import a `module:` host that the folder names, which runs its code.

    Raises:
        TrainingError: the folder is not a run, or the run has no such weights.
        DataError: the data have other classes (or other properties that the model depends on) than the run's.
    """
    record = read_run(folder)
    with trusting(every=trust_code):
        recipe, task, examples = open_split(record, data=data, split=split)
        accelerator = create_accelerator(recipe)
        model = trained_model(record, weights)
    model = accelerator.prepare_model(model, evaluation_mode=True)
    evaluation = SplitEvaluator(task, examples, recipe, accelerator)(model)
    if evaluation is None:
        raise TrainingError(f"{record.folder}: the evaluation was stopped")
    return evaluation


def open_split(record: RunRecord, *, data: str | None, split: str | None) -> tuple[Recipe, Task, Split]:
    """Open the split to evaluate a run on, its own validation split or that of other data, with recipe and task.

    Raises:
        DataError: see `evaluate_run`.
    """
    recipe = _with_data(record.recipe, data, split)
    task = build_task(recipe)
    task.use_fitted_transform(record.facts)
    if data is None and split is None:
        task.load_split(RunFolder(record.folder).split)
    found = task.load(model_data_config=model_data_config(recipe))
    if dict(found.model_args) != record.model_args:
        raise DataError(
            f"{record.folder}: this run's model was built for {record.model_args}, "
            f"but the data require {dict(found.model_args)}; evaluate the run on data of the same kind"
        )
    _check_classes(record, found.facts.get("classes"), where=data or "the data")
    return recipe, task, found.val


def _check_classes(record: RunRecord, theirs: object, *, where: str) -> None:
    """Check that the labels mean the same classes.

    Data without class names have numbers as names, which are not checked.

    Raises:
        DataError: the data have other classes, or the same in another order.
    """
    ours = record.facts.get("classes")
    if not isinstance(ours, list) or not isinstance(theirs, list) or ours == theirs:
        return
    if [str(number) for number in range(len(ours))] in (ours, theirs):
        return
    both = f"{where}: its classes are {_few(theirs)}, and those of {record.folder} are {_few(ours)}"
    unknown = next((name for name in theirs if name not in ours), None)
    if unknown is not None:
        raise DataError(f"{both}: {unknown!r} is not one of them; evaluate the run on data of its own classes")
    raise DataError(f"{both}: the same classes in another order, which would mix up the labels; use the same order")


def _few(names: list[object]) -> str:
    shown = ", ".join(str(name) for name in names[:4])
    return f"{shown}, ... ({len(names)})" if len(names) > 4 else shown


def weights_file(folder: Path, weights: Weights) -> Path:
    """Return the file of a run that holds these weights."""
    run = RunFolder(folder)
    if weights in ("best", "best-ema"):
        return run.best(weights.partition("-")[2])
    return run.last if run.last.exists() else run.previous


def trained_model(record: RunRecord, weights: Weights) -> nn.Module:
    """Return the grafted host with the weights of a run, on the CPU.

    Raises:
        TrainingError: the run has no such weights.
    """
    model = build_model(record.recipe, record.model_args, weights=False)
    _fill(model, RunFolder(record.folder), weights)
    return model


def _with_data(recipe: Recipe, data: str | None, split: str | None) -> Recipe:
    section = dict(recipe.task.get("data", {}))
    if data is not None or split is not None:
        section.pop("split_file", None)  # a split file names images of the run's own data
    if data is not None:
        section["source"] = data
    if split is not None:
        section |= {"val_split": split, "val_fraction": None}
    return replace(recipe, task={**recipe.task, "data": section}) if section else recipe


def _fill(model: nn.Module, run: RunFolder, weights: Weights) -> None:
    if weights in ("best", "best-ema"):
        load_weights(run.best(weights.partition("-")[2]), model)
        if any(sites_with_detached(model)):
            load_detached(model, read_checkpoint(run) or {})
        return
    state = read_checkpoint(run)
    if state is None:
        raise TrainingError(f"{run.path}: this run has no checkpoint yet")
    if state["ema" if weights == "ema" else "model"] is None:
        raise TrainingError(f"{run.path}: this run keeps no moving average (train.ema is null)")
    model.load_state_dict(state["ema" if weights == "ema" else "model"])
    load_detached(model, state)


def _on_cpu(tensor: Tensor) -> Tensor:
    return (tensor.float() if tensor.dtype in (torch.bfloat16, torch.float16) else tensor).cpu()
