"""The contract of every task, in one class. A new task's test is a subclass."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from torch import nn

import attngraft
from attngraft.errors import AttngraftError
from attngraft.export.predict import WRITERS, open_model
from attngraft.export.run import export_run
from attngraft.grafting.apply import ungraft
from attngraft.results.records import Column, RecordCollector, Records, RecordTable
from attngraft.targets.judged import open_target
from attngraft.tasks.codec import Serving
from attngraft.tasks.heads import mean_logits
from attngraft.tasks.task import Loss, Split, StepContext, Task, TaskData
from attngraft.training.build import build_model, build_task, model_data_config
from attngraft.training.evaluate import evaluate_run, evaluate_target
from attngraft.training.loop import train
from attngraft.training.progress import Silent
from attngraft.training.recipe import Recipe, recipe_from_dict, recipe_to_dict
from attngraft.training.run_folder import read_run
from tests.contract.stirring import stir
from tests.training.processes import finish, start, start_together
from tests.training.toys import assert_same_outcome, final_state, metric_rows


def tiny_vit(size: int = 8, *, patch: int = 4) -> dict[str, Any]:
    """A ViT on gray images."""
    sizes = {"img_size": size, "patch_size": patch, "in_chans": 1, "embed_dim": 24, "depth": 2, "num_heads": 2}
    return {"name": "vit_tiny_patch16_224", "args": sizes}


HANDFUL = 8  #: examples to overfit
EXAMPLES = 41  #: validation examples for the statistics, at most


class Broken(Silent):
    """Ends the process's training with an error in the third update."""

    def on_step(self, *, step: int, epoch: int, loss: float, lr: float) -> None:
        if step == 3:
            raise RuntimeError("pulled the plug")


class TaskContract:
    """Subclass with `section`; everything below then holds for that task.

    The data should be small, with an odd number of validation examples.
    """

    host: ClassVar[Mapping[str, Any]] = tiny_vit()
    graft: ClassVar[str] = "cb_s"
    #: learning rate and steps after which the loss of a handful of examples is below `overfit` times the first
    lr: ClassVar[float] = 5e-3
    steps: ClassVar[int] = 60
    overfit: ClassVar[float] = 0.1
    #: whether its models can be exported and used for prediction
    serves: ClassVar[bool] = True
    #: a function at the top of a module, for tasks whose `step` draws random numbers by process: makes them constant
    fix_draws: ClassVar[Callable[[], None] | None] = None
    #: the recipe's section `train` where two processes equal one: frozen batch norms, for hosts that have them
    together: ClassVar[Mapping[str, Any]] = {}
    together_lr: ClassVar[float] = 0.05  #: learning rate for which rounding stays small
    #: metrics of which a resample holds something fixed, such as the weights of classes
    held_fixed: ClassVar[frozenset[str]] = frozenset()

    def section(self, folder: Path) -> dict[str, Any]:
        """The recipe's section `task`, with its data written to `folder` if they are files."""
        raise NotImplementedError

    def broken(self, folder: Path) -> Mapping[str, dict[str, Any]]:
        """Changes of the section to data that are empty or wrong, by a part of the reason that must be given."""
        raise NotImplementedError

    def recipe(self, folder: Path, **sections: Any) -> Recipe:
        """Two epochs."""
        folder.mkdir(parents=True, exist_ok=True)
        base: dict[str, Any] = {
            "host": self.host,
            "task": self.section(folder),
            "optimizer": {"lr": 3e-3},
            "schedule": {"epochs": 2, "warmup_epochs": 0},
            "train": {"batch_size": 8, "eval_batch_size": 40, "threads": 1, "outputs": True},
        }
        return recipe_from_dict({**base, **{name: {**base.get(name, {}), **each} for name, each in sections.items()}})

    @pytest.fixture
    def loaded(self, tmp_path: Path) -> Loaded:
        return Loaded(self.recipe(tmp_path / "data"))

    # -- training ------------------------------------------------------------------------------------------------------

    def test_overfits_a_handful(self, loaded: Loaded) -> None:
        model, task = loaded.model.train(), loaded.task
        train = loaded.data.train
        batch = train.collate([train[0, index] for index in range(HANDFUL)])
        optimizer = torch.optim.AdamW(model.parameters(), lr=self.lr, weight_decay=0)
        losses = []
        for step in range(self.steps):
            at = StepContext(seed=0, epoch=0, step=step, model=model)
            parts = task.step(model, task.prepare(batch, epoch=0, step=step), at)
            loss = total(parts)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        assert min(losses[-5:]) < self.overfit * losses[0]

    def test_resumes_bit_for_bit(self, tmp_path: Path) -> None:
        recipe = self.recipe(tmp_path / "data", train={"save_every": 2})
        record = train(recipe, tmp_path / "whole", progress=Silent())
        with pytest.raises(RuntimeError, match="pulled the plug"):
            train(recipe, tmp_path / "broken", progress=Broken())
        assert train(recipe, tmp_path / "broken", progress=Silent()).finished
        assert_same_outcome(tmp_path / "whole", tmp_path / "broken")
        assert json.loads(json.dumps(dict(record.facts))) == dict(record.facts)

    @pytest.mark.slow
    def test_two_processes_are_one(self, tmp_path: Path) -> None:
        # plain gradient descent, because Adam turns the smallest difference of a gradient near 0 into a step
        recipe = recipe_to_dict(
            self.recipe(
                tmp_path / "data",
                optimizer={"name": "sgd", "lr": self.together_lr},
                schedule={"epochs": 1},
                train=self.together,
            )
        )
        one, two, fix = tmp_path / "one", tmp_path / "two", type(self).fix_draws
        processes = [start(recipe, one, prepare=fix), *start_together(recipe, two, processes=2, prepare=fix)]
        assert [finish(process) for process in processes] == [0, 0, 0]
        for left, right in zip(metric_rows(one), metric_rows(two), strict=True):
            assert left == pytest.approx(right, rel=1e-4, abs=1e-5)
        weights, others = final_state(one)["model"], final_state(two)["model"]
        for name in weights:
            torch.testing.assert_close(weights[name], others[name], rtol=1e-3, atol=1e-5)
        with np.load(one / "predictions.npz") as a, np.load(two / "predictions.npz") as b:
            assert len(a["name"]) % 2 == 1, "give the task an odd number of validation examples"
            assert a["name"].tolist() == b["name"].tolist()
            assert a.files == b.files

    # -- inference and metrics -----------------------------------------------------------------------------------------

    def test_batches_change_no_record(self, loaded: Loaded) -> None:
        """An example's record is the same alone, among others, and in any order."""
        order = [4, 0, 3, 1, 2]
        together = loaded.infer(range(5))
        alone = [loaded.infer([index]) for index in range(5)]
        shuffled = loaded.infer(order)
        assert {**together.statistics, **together.outputs}
        for name, column in {**together.statistics, **together.outputs}.items():
            for index in range(5):
                for other, row in ((alone[index], 0), (shuffled, order.index(index))):
                    found = np.asarray({**other.statistics, **other.outputs}[name][row])
                    if found.dtype.kind == "U":
                        assert found == column[index], name
                        continue
                    np.testing.assert_allclose(found, column[index], rtol=1e-4, atol=1e-5, err_msg=name)

    def test_statistics_are_the_metrics_of_repeated_examples(self, loaded: Loaded) -> None:
        table, facts, task = loaded.table, loaded.data.facts, loaded.task
        measured = task.measure(table, facts)
        assert list(measured.values)
        assert task.primary in measured.values
        assert measured.statistics.keys() <= measured.values.keys()
        random, examples = np.random.default_rng(0), len(table.names)
        drawn = random.integers(examples, size=(6, examples))
        counts = np.stack([np.bincount(row, minlength=examples) for row in drawn]).astype(float)
        repeated = [task.measure(taken(table, row), facts) for row in drawn]
        for name, statistic in measured.statistics.items():
            assert statistic.point == pytest.approx(measured.values[name], rel=1e-5, nan_ok=True), name
            assert bool(statistic.held_fixed) == (name in self.held_fixed), name
            if statistic.held_fixed:
                continue
            expected = [each.values.get(name, np.nan) for each in repeated]
            assert statistic.value(counts) == pytest.approx(expected, rel=1e-5, abs=1e-9, nan_ok=True), name
            assert statistic.take(drawn[0]).point == pytest.approx(expected[0], rel=1e-5, abs=1e-9, nan_ok=True), name
            without = taken(table, np.arange(1, examples))
            assert statistic.leave_one_out()[0] == pytest.approx(
                task.measure(without, facts).values.get(name, np.nan), rel=1e-5, abs=1e-9, nan_ok=True
            ), name

    # -- what is taken away --------------------------------------------------------------------------------------------

    def test_export_and_predict_give_its_own_outputs(self, loaded: Loaded, tmp_path: Path) -> None:
        train(self.recipe(tmp_path / "data", schedule={"epochs": 1}), tmp_path / "run", progress=Silent())
        if not self.serves:
            with pytest.raises(
                AttngraftError, match=f"task {loaded.task.name}: does not support export and prediction"
            ):
                export_run(tmp_path / "run", tmp_path / "out")
            assert not (tmp_path / "out").exists()
            return
        export_run(tmp_path / "run", tmp_path / "out")
        model = open_model(tmp_path / "run", device="cpu")
        out = open_model(tmp_path / "out", device="cpu")
        raw = self.raw(loaded.data.val, tmp_path, count=3)
        network = attngraft.load(tmp_path / "out")
        codec = loaded.task.codec(loaded.data.facts, model_data_config=model_data_config(loaded.recipe))
        if isinstance(codec, Serving):
            with torch.no_grad():
                args, kwargs = loaded.task.to_model(loaded.batch(range(3)))
                expected = out.serving.activate(mean_logits(network(*args, **kwargs), classes=len(out.serving.classes)))
        for predictor in (model, out):
            predictions = list(predictor(raw))
            if isinstance(codec, Serving):
                outputs = [each.probabilities if each.numbers is None else each.numbers for each in predictions]
                np.testing.assert_allclose(np.stack(outputs), expected.numpy(), rtol=1e-4, atol=1e-5)  # type: ignore[arg-type]
            else:
                args, kwargs = codec.encode(raw)
                with torch.no_grad():
                    decoded = codec.decode(codec.run(network, args, kwargs))
                if codec.labels:
                    assert [each.probabilities.tolist() for each in predictions] == [
                        [*each.values()] for each in decoded
                    ]  # type: ignore[union-attr]
                else:
                    assert [each.value for each in predictions] == decoded
        if isinstance(codec, Serving):
            judged = open_target(str(tmp_path / "out"))
            task = {**judged.recipe.task, "data": read_run(tmp_path / "run").recipe.task["data"]}
            judged = replace(judged, recipe=replace(judged.recipe, task=task))
            found, wanted = (dict(each.metrics) for each in (evaluate_target(judged), evaluate_run(tmp_path / "run")))
            assert found == pytest.approx(wanted, rel=1e-5)
        for program in codec.programs(network, batch_size=2).values():
            decoded = codec.decode(program.module(*program.args, **program.kwargs))
            assert len(json.loads(json.dumps(decoded))) == 2
        for kind, writer in WRITERS.items():
            file = io.BytesIO()
            written = writer(file, out.serving)
            written.begin()
            for prediction in predictions:
                written.add(prediction)
            written.end()
            text = file.getvalue().decode()
            entries = json.loads(text) if kind == "json" else {"inputs": text.splitlines()[kind == "csv" :]}
            [rows] = [entries[name] for name in ("images", "texts", "inputs") if name in entries]
            assert len(rows) == 3

    def raw(self, split: Split, folder: Path, *, count: int) -> list[str]:
        """Raw inputs of a split's first examples, for `Predictor`: by default image files."""
        names = []
        for index in range(count):
            names.append(str(folder / f"raw{index}.png"))
            split.images.open(index).save(names[-1])  # type: ignore[attr-defined]
        return names

    def test_grafts_are_saved_and_undone(self, loaded: Loaded, tmp_path: Path) -> None:
        """On the built model, whatever stands around the host."""
        grafted = loaded.build(graft=self.graft)
        stir(grafted, lambda name, _: ".grafts." in name)
        plain = loaded.build()
        before, after = (loaded.infer(range(3), model=model) for model in (plain, grafted))
        assert not same(before, after)
        attngraft.save_grafts(grafted, tmp_path / "grafts.safetensors")
        attngraft.load_grafts(plain, tmp_path / "grafts.safetensors")
        assert same(loaded.infer(range(3), model=plain), after)
        for model in (plain, grafted):
            ungraft(model)
            assert same(loaded.infer(range(3), model=model), before)

    # -- wrong data ----------------------------------------------------------------------------------------------------

    def test_empty_and_broken_data(self, tmp_path: Path) -> None:
        changes = self.broken(tmp_path)
        assert changes
        section = self.section(tmp_path)
        for reason, change in changes.items():
            with pytest.raises(AttngraftError, match=reason):
                train(self.recipe(tmp_path, task={**section, **change}), tmp_path / "run", progress=Silent())
            assert not [path for path in (tmp_path / "run").rglob("*") if path.is_file() and path.name != ".lock"], (
                reason
            )


class Loaded:
    """A task with its data, and models for it."""

    def __init__(self, recipe: Recipe) -> None:
        self.recipe = recipe
        self.task: Task = build_task(recipe)
        self.data: TaskData = self.task.load(model_data_config=model_data_config(recipe))

    def build(self, **changes: Any) -> nn.Module:
        """A model in evaluation mode, without dropout, always with the same values."""
        recipe = recipe_from_dict({**recipe_to_dict(self.recipe), **changes})
        model = build_model(recipe, self.data.model_args, facts=self.data.facts).eval()
        return stir(model, lambda name, _: "grafts" not in name, by=0.1)

    @cached_property
    def model(self) -> nn.Module:
        return self.build()

    def batch(self, indices: Sequence[int]) -> Any:
        """A batch of validation examples."""
        val = self.data.val
        return val.collate([val[0, index] for index in indices])

    @torch.no_grad()
    def infer(self, indices: Sequence[int], *, model: nn.Module | None = None) -> Records:
        return self.task.infer(model or self.model, self.batch(indices))

    @cached_property
    def table(self) -> RecordTable:
        """The records of the first validation examples."""
        examples = range(min(EXAMPLES, len(self.data.val)))
        collector = RecordCollector([self.data.val.name(index) for index in examples])
        collector.add(np.array(examples), self.infer(examples))
        return collector.table()


def total(losses: Mapping[str, Loss]) -> torch.Tensor:
    """What the engine minimizes."""
    parts = [each.factor * each.mean for each in losses.values() if each.trained]
    return torch.stack(parts).sum()


def taken(table: RecordTable, order: np.ndarray) -> RecordTable:
    """The table of the examples at `order`."""
    columns: dict[str, Column] = {
        name: [column[index] for index in order] if isinstance(column, list) else column[order]
        for name, column in table.items()
    }
    return RecordTable(names=table.names[order], columns=columns, outputs=table.outputs)


def same(one: Records, other: Records) -> bool:
    return all(
        np.shape(a) == np.shape(b) and np.allclose(a, b, rtol=1e-5, atol=1e-6)
        for column, right in zip(one.statistics.values(), other.statistics.values(), strict=True)
        for a, b in zip(column, right, strict=True)
    )
