"""Evaluation of a model on a split in one or more processes, and evaluation of runs and other targets."""

import hashlib
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import partial
from pathlib import Path
from tempfile import mkdtemp
from typing import Any, Literal, get_type_hints

import numpy as np
import torch
from accelerate import Accelerator
from accelerate.utils import broadcast_object_list, send_to_device
from torch import Tensor, nn

from attngraft.attention import sites_with_detached
from attngraft.counting import counted
from attngraft.errors import ConfigError, DataError, FolderError, TrainingError, UsageError, naming, started
from attngraft.hosts import forget
from attngraft.models.schemes import sized_for
from attngraft.models.trust import from_folder
from attngraft.opening import open_regular
from attngraft.results.measured import MeanScore
from attngraft.results.records import RecordCollector, Records, RecordTable
from attngraft.suggest import cut, shortened
from attngraft.tasks.evaluator import Evaluator
from attngraft.tasks.task import SPLIT_FILE, Batch, Evaluation, Predictions, Split, Task
from attngraft.tensors import not_finite
from attngraft.training.build import build_model, build_task
from attngraft.training.checkpoint import load_detached, load_weights, other_model, read_checkpoint, row_of
from attngraft.training.inputs import in_memory_format
from attngraft.training.loading import EvalOrder, eval_batches, indices_of
from attngraft.training.recipe import Recipe, sections
from attngraft.training.run_folder import Metrics, RunFolder, RunRecord, read_run
from attngraft.training.setup import create_accelerator
from attngraft.training.stopping import StoppedWaiting, StopSignal
from attngraft.training.target import Target

log = logging.getLogger(__name__)

Weights = Literal["last", "best", "ema", "best-ema"]

EVALUATIONS = "evaluation"  #: folder of the results of suites in a run


class SplitEvaluator:
    """Evaluator of models on one split, whose loading processes persist between calls."""

    def __init__(
        self,
        task: Task,
        split: Split,
        recipe: Recipe,
        accelerator: Accelerator,
        *,
        facts: Mapping[str, Any],
        examples: Split | None = None,
        folder: Path | None = None,
    ) -> None:
        """
        Args:
            task: the task.
            split: the split to evaluate; provides names and targets.
            recipe: batch sizes and loading processes.
            accelerator: device, precision and processes.
            facts: the facts that `Task.load` returned.
            examples: split to load inputs from, example by example parallel to `split`; None: `split`.
            folder: folder for the records that processes exchange; None: a temporary folder.
        """
        config = recipe.train
        self._task, self._split, self._accelerator, self._facts = task, split, accelerator, facts
        self._folder = folder
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
        self._channels_last, self._keep_outputs = config.channels_last, config.outputs

    def __call__(
        self,
        model: nn.Module,
        *,
        stop: StopSignal | None = None,
        infer: Callable[[nn.Module, Batch], Records] | None = None,
        change: Callable[[Batch, Tensor], Batch] | None = None,
        epoch: int = 0,
        full: bool = True,
    ) -> Evaluation | None:
        """Return metrics and predictions of `model`, equal in all processes; None if stopped by `stop`.

        Args:
            model: as prepared by accelerate.
            stop: the run's signal handler; None: not interruptible.
            infer: used instead of `Task.infer`.
            change: function of a batch on the device and its example indices; returns the batch to evaluate.
            epoch: epoch in the examples' keys (epoch, index).
            full: full inference; False: the light inference used during training (see `Task.infer`).
        """
        self._order.epoch = epoch
        names = [self._split.name(index) for index in range(len(self._split))]
        collector = RecordCollector(names)
        batches = self._loader if stop is None else stop.interruptible(self._loader)
        run = infer or partial(self._task.infer, full=full)
        try:
            for records, indices in counted(
                self._records(model, batches, run, change), "batches evaluated", total=len(self._order)
            ):
                collector.add(indices, records)
                if stop is not None and stop.agreed():
                    return None
        except StoppedWaiting:
            return None
        if self._accelerator.num_processes > 1:
            collector = self._merged(collector, RecordCollector(names))
        return evaluate_records(self._task, self._split, collector.table(), self._facts)

    def _merged(self, own: RecordCollector, merged: RecordCollector) -> RecordCollector:
        """Add the records of all processes to `merged` and return it.

        Outputs, which may be large, are added in the main process only. Each process writes its records to a file,
        which the others read.
        """
        accelerator, folder = self._accelerator, self._folder
        if folder is None:
            folder = Path(broadcast_object_list([mkdtemp() if accelerator.is_main_process else ""])[0])
        # named like temporary files, which are removed when a killed run is resumed
        parts = [folder / f".records.{rank}-{0:08x}.tmp" for rank in range(accelerator.num_processes)]
        own.write_part(parts[accelerator.process_index])
        accelerator.wait_for_everyone()
        for part in parts:
            merged.add_part(part, outputs=accelerator.is_main_process)
        accelerator.wait_for_everyone()
        # its own only: others may already write the parts of the next evaluation
        parts[accelerator.process_index].unlink()
        if self._folder is None:
            accelerator.wait_for_everyone()
            if accelerator.is_main_process:
                folder.rmdir()
        return merged

    def stop_workers(self) -> None:
        """End the loading processes now."""
        self._loader.stop_workers()

    @torch.no_grad()
    def _records(
        self,
        model: nn.Module,
        batches: Iterable[Batch],
        infer: Callable[[nn.Module, Batch], Records],
        change: Callable[[Batch, Tensor], Batch] | None,
    ) -> Iterable[tuple[Records, np.ndarray]]:
        """Yield the records and example indices of this process's batches."""
        model.eval()
        forget(model)
        device, called = self._accelerator.device, in_memory_format(model, channels_last=self._channels_last)
        for keys, batch in zip(self._order, batches, strict=True):
            batch = send_to_device(batch, device, non_blocking=True)
            indices = indices_of(keys)
            if change is not None:
                batch = change(batch, indices)
            with self._accelerator.autocast():
                records = infer(called, batch)
            yield records if self._keep_outputs else replace(records, outputs={}), indices.numpy()


def evaluate_records(task: Task, split: Split, table: RecordTable, facts: Mapping[str, Any]) -> Evaluation:
    """Return the evaluation computed from the records of all examples; the primary metric is first."""
    evaluator: Callable[[Split], Evaluator] | None = getattr(task, "evaluator", None)
    if evaluator is not None:  # for tasks of other packages without `Task.measure`
        old = evaluator(split)
        columns = {name: torch.from_numpy(table.array(name)) for name in table}
        old.update(columns, torch.arange(len(split)))
        return old.result()
    measured = task.measure(table, facts)
    loss = measured.statistics.get("loss")
    if isinstance(loss, MeanScore) and np.isnan(loss.score).any():
        lost = table.names[np.isnan(loss.score)]
        raise TrainingError(
            f"the loss of {len(lost)} of {len(table.names)} examples is not a number ({shortened(lost, 3)}); check these "
            "examples, or train with a lower optimizer.lr, train.clip_grad=1 or train.amp=no"
        )
    primary = measured.statistics.get(task.primary)
    scores = primary if isinstance(primary, MeanScore) else None
    return Evaluation(
        metrics={task.primary: measured.values[task.primary], **measured.values},  # first, for logs of one metric
        predictions=Predictions(
            names=table.names.tolist(),
            score=None if scores is None else scores.score.astype(np.float64),
            binary=scores is not None and scores.binary,
            arrays=table.columns,
            outputs=table.outputs,
        ),
    )


def evaluate_run(
    folder: Path | str,
    *,
    data: str | None = None,
    split: str | None = None,
    weights: Weights = "last",
    trust_code: bool = False,
    allow_download: bool = False,
) -> Evaluation:
    """Evaluate a trained run.

    Args:
        folder: the run's folder.
        data: other data of the same kind (`task.data.source`); None: the run's own.
        split: another split of the data (`task.data.val_split`), or `val` or `test` for those of the run; None: the split
            that the run is evaluated on or, for other data, the test split if there is one, else the validation split.
        weights: which weights to use: last checkpoint, best epoch, or their moving averages.
        trust_code: import a `module:` host named in the folder; this runs its code.
        allow_download: download what the folder names (a host of the Hub, a data set) and is not in the caches.

    Raises:
        FolderError: the folder is not a run, or the run has no such weights.
        DataError: the data have other classes (or other properties that the model depends on) than the run's.
    """
    target = run_target(read_run(folder), weights)
    return evaluate_target(target, data=data, split=split, trust_code=trust_code, allow_download=allow_download)


def evaluate_target(
    target: Target,
    *,
    data: str | None = None,
    split: str | None = None,
    trust_code: bool = False,
    allow_download: bool = False,
) -> Evaluation:
    """Evaluate a model of any kind; the other arguments: see `evaluate_run`.

    Raises:
        TrainingError, DataError: see `evaluate_run`.
        UsageError: the data do not fit a model that is not a run.
    """
    with from_folder(target.name, data, trust_code=trust_code, allow_download=allow_download):
        opened = open_split(target, data=data, split=split)
        accelerator = create_accelerator(target.recipe)
        model = target.build()
    refuse_not_finite(model, where=target.name)
    model = accelerator.prepare_model(model, evaluation_mode=True)
    evaluate = SplitEvaluator(opened.task, opened.split, target.recipe, accelerator, facts=opened.facts)
    with started():
        evaluation = evaluate(model)
    if evaluation is None:
        raise TrainingError(f"{target.name}: the evaluation was stopped; rerun the command")
    return replace(evaluation, split=split or opened.part)


def run_target(record: RunRecord, weights: Weights) -> Target:
    """Return the target of a run; its weights are read only when the model is built."""
    run = RunFolder(record.folder)
    return Target(
        name=str(record.folder),
        kind="run",
        weights=weights,
        recipe=record.recipe,
        build=lambda: trained_model(record, weights),
        digest=lambda: checkpoint_digest(record, weights),
        results=record.folder / EVALUATIONS,
        subfolder=weights,
        facts=record.facts,
        model_args=record.model_args,
        split=run.split,
        fitted=run.fitted,
        judged_split=record.judged_split,
    )


@dataclass(frozen=True, kw_only=True)
class OpenedSplit:
    """The examples that a model is evaluated on."""

    task: Task
    split: Split
    part: str  #: "val", "test" or "all"
    facts: Mapping[str, Any]  #: facts about the data; the model's facts take precedence


def open_split(target: Target, *, data: str | None, split: str | None) -> OpenedSplit:
    """Open the split to evaluate a model on; `data` and `split` as in `evaluate_run`.

    Raises:
        DataError, UsageError: see `evaluate_target`.
    """
    if data is None and "data" not in target.recipe.task and not target.is_run:
        raise UsageError(f"{target.name}: give the data to evaluate this {target.kind} on, with --data SOURCE")
    own = None  # a split of the run itself, which may be random or have another name in the data
    if data is None and split in (None, "val", target.judged_split):
        own = split or target.judged_split
    named = None if own else split
    if named is not None and not _names_splits(target.recipe.task["name"]):
        raise UsageError(
            f"--split {cut(named)}: data of the task {target.recipe.task['name']} have no other splits; use val or test, "
            "of the run's own data"
        )
    recipe = with_data(target.recipe, data, named)
    task = build_task(recipe)
    if target.facts or target.is_run:
        task.use_fitted_transform(target.facts)
    if target.fitted is not None:
        task.load_files(target.fitted)
    if own and target.split is not None:
        task.load_split(target.split)
    with naming_split(named):
        found = task.load(model_data_config=target.host_input())
    _check_model_args(target, found.model_args)
    _check_facts(task, target, found.facts, where=data or "the data")
    digest = {"val": "split_digest", "test": "test_digest"}.get(own or "", "")
    if digest in target.facts and target.facts[digest] != found.facts.get(digest):
        log.warning(
            "%s: its %s split no longer has the examples on which the run was evaluated; the data or %s were changed",
            *(target.name, own, SPLIT_FILE),
        )
    if data is not None and split is None and found.whole is not None:
        return OpenedSplit(task=task, split=found.whole(), part="all", facts={**found.facts, **target.facts})
    part = own or ("val" if split is not None or found.test is None else "test")
    examples = found.val if part == "val" else found.test
    if examples is None:
        raise target.data_error(
            f"{target.name}: the run is judged on the test split, but the data no longer have one; restore it, or name "
            "another split with --split"
        )
    return OpenedSplit(task=task, split=examples, part=part, facts={**found.facts, **target.facts})


@contextmanager
def naming_split(split: str | None) -> Iterator[None]:
    """Prepend `--split` to errors of the data, which otherwise name fields that the user did not give; None: do not."""
    try:
        yield
    except (ConfigError, DataError) as error:
        if split is None:
            raise
        raise type(error)(f"--split {cut(split)}: {error}") from None


def _names_splits(task: str) -> bool:
    """Return whether the task's data have splits with names, `task.data.val_split`."""
    section = sections(task).get("task")
    data = None if section is None else get_type_hints(section).get("data")
    return data is None or not is_dataclass(data) or "val_split" in {field.name for field in fields(data)}


def _check_model_args(target: Target, required: Mapping[str, Any]) -> None:
    """Check that the model arguments required by the data are those that the model was built with.

    Raises:
        DataError, UsageError: the data require other arguments.
    """
    if target.is_run:
        if dict(required) != target.model_args:
            raise DataError(
                f"{target.name}: this run's model was built for {target.model_args}, "
                f"but the data require {dict(required)}; evaluate the run on data of the same kind"
            )
        return
    for name, value in required.items():
        own = target.model_args.get(name, value)
        if own != value and name == "num_classes":
            raise UsageError(
                f"{target.name}: its head has {own} outputs, but the data have {value} classes; evaluate it on data of its "
                "own classes, or use weights that were trained on these (compare --epochs E trains a new head)"
            )
        if own != value:
            raise UsageError(
                f"{target.name}: was built for {name}={own!r}, but the data require {value!r}; use data of the same kind"
            )


def _check_facts(task: Task, target: Target, theirs: Mapping[str, Any], *, where: str) -> None:
    """Check that the model can be used on data with these facts (`Task.compatible`).

    Raises:
        DataError, UsageError: the data have other classes, another order of classes, or another vocabulary or input.
    """
    facts, classes = target.facts, theirs.get("classes")
    if not facts and isinstance(classes, list) and sorted(target.labels) == sorted(classes):
        facts = {"classes": list(target.labels)}
    if not facts or task.compatible(facts, theirs):
        return
    ours = facts.get("classes")
    if not isinstance(ours, list) or not isinstance(classes, list) or ours == classes:
        raise target.data_error(
            f"{where}: the vocabulary or input differs from that of {target.name}; evaluate the {target.kind} on data of "
            "the same kind"
        )
    both = f"{where}: its classes are {shortened(classes, 4)}, and those of {target.name} are {shortened(ours, 4)}"
    unknown = next((name for name in classes if name not in ours), None)
    if unknown is not None:
        raise target.data_error(
            f"{both}: the model lacks {unknown!r}; evaluate the {target.kind} on data of its own classes"
        )
    raise target.data_error(f"{both}: the same classes in another order would mix up the labels; use the model's order")


def weights_file(folder: Path, weights: Weights) -> Path:
    """Return the path of the run's file that contains these weights."""
    run = RunFolder(folder)
    if weights in ("best", "best-ema"):
        return run.best(weights.partition("-")[2])
    return next((path for path in run.newest if path.exists()), run.last)


def checkpoint_digest(record: RunRecord, weights: Weights) -> str:
    """Return the SHA-256 of the run's file that contains these weights.

    Raises:
        FolderError: the run does not have these weights.
    """
    path = weights_file(record.folder, weights)
    if not path.is_file():
        raise FolderError(
            f"{path}: missing; the run has not saved these weights (yet); finish it, or use other --weights"
        )
    with open_regular(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def trained_model(record: RunRecord, weights: Weights) -> nn.Module:
    """Return the grafted host with the weights of a run, on the CPU; raises as `trained_model_and_row`."""
    return trained_model_and_row(record, weights)[0]


def trained_model_and_row(record: RunRecord, weights: Weights) -> tuple[nn.Module, Metrics]:
    """Return the grafted host with the weights of a run, on the CPU, and the metrics of exactly these weights.

    The row of metrics has only the epoch if the weights were not evaluated, and is empty if that is unknown, too.

    Raises:
        FolderError: the run has no such weights.
        TrainingError: they are damaged, or not finite.
    """
    file = weights_file(record.folder, weights)
    with naming(record.folder), sized_for(file):
        model = build_model(record.recipe, record.model_args, load_weights=False, facts=record.facts)
    record.check(file)
    row = _fill(model, record, weights)
    refuse_not_finite(model, where=f"{file}")
    return model, row


def refuse_not_finite(model: nn.Module, *, where: str) -> None:
    """Check the weights of a model.

    Raises:
        TrainingError: weights are infinite or not numbers; the message contains `where`.
    """
    if bad := not_finite(model.state_dict()):
        raise TrainingError(
            f"{where}: weights are not finite ({shortened(bad, 5)}); restore a good copy, or train the model again"
        )


def with_data(recipe: Recipe, data: str | None, split: str | None) -> Recipe:
    """Return the recipe with another source of data or another validation split, where not None."""
    section = dict(recipe.task.get("data", {}))
    if data is not None or split is not None:
        for name in ("split_file", "folds", "fold", "group_column"):  # they divide the run's own data
            section.pop(name, None)
    if data is not None:
        section["source"] = data
    if split is not None:
        section |= {"val_split": split, "val_fraction": None}
        section.pop("test_split", None)
    return replace(recipe, task={**recipe.task, "data": section}) if section else recipe


def _fill(model: nn.Module, record: RunRecord, weights: Weights) -> Metrics:
    run = RunFolder(record.folder)
    if weights in ("best", "best-ema"):
        saved = load_weights(run.best(weights.partition("-")[2]), model)
        if any(sites_with_detached(model)):
            if run.last.exists():
                record.check(run.last)
            load_detached(model, read_checkpoint(run) or {})
        if type(saved.get("epoch")) is not int:
            return {}
        at: dict[str, Any] = {name: saved[name] for name in ("epoch", "step") if name in saved}
        expected = at if "value" not in saved else {**at, str(saved.get("metric")): saved["value"]}
        return next((row for row in record.epochs if expected.items() <= row.items()), at)
    state = read_checkpoint(run)
    if state is None:
        remedy = f"restore {run.last}" if record.finished else "rerun its command to train it"
        raise FolderError(f"{run.path}: this run has no checkpoint; {remedy}")
    if state["ema" if weights == "ema" else "model"] is None:
        raise FolderError(f"{run.path}: this run has no moving average (train.ema is null); use last or best")
    try:
        model.load_state_dict(state["ema" if weights == "ema" else "model"])
    except RuntimeError as error:
        raise other_model(run.last, error) from None
    load_detached(model, state)
    return row_of(state)
