"""The translation task: loss, inference, metrics and messages."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from attngraft.errors import AttngraftError
from attngraft.export.predict import open_model
from attngraft.results.records import RecordCollector, RecordTable
from attngraft.tasks.task import StepContext
from attngraft.tasks.text.lengths import takes_padding
from attngraft.training.evaluate import evaluate_run
from attngraft.training.loop import train
from attngraft.training.progress import Silent
from attngraft.training.recipe import Recipe, recipe_from_dict
from tests.contract.task_contract import Loaded
from tests.tasks.translation.pairs import HOST, section, sentences, write_pairs

pytest.importorskip("sacrebleu", reason="needs the extra text")


def recipe(folder: Path, *, graft: str | None = None, train: dict[str, Any] | None = None, **fields: Any) -> Recipe:
    return recipe_from_dict(
        {
            "host": {**HOST, "args": {**HOST["args"], "dropout": 0.0}},
            "graft": graft,
            "task": section(folder / "pairs", **fields),
            "optimizer": {"lr": 3e-3},
            "schedule": {"epochs": 1, "warmup_epochs": 0},
            "train": {"threads": 1, "batch_size": 16, **(train or {})},
        }
    )


def test_smoothing_is_shared_by_the_other_tokens(tmp_path: Path) -> None:
    """Of sentences of different lengths, with padding; losses and gradients."""
    loaded = Loaded(recipe(tmp_path, loss={"smoothing": 0.2}))
    model, batch = loaded.model, loaded.batch(range(5))
    labels = batch["labels"]
    assert (labels < 0).any()
    model.zero_grad()
    at = StepContext(seed=0, epoch=0, step=0, model=model)
    loss = loaded.task.step(model, batch, at)["loss"].mean
    loss.backward()
    found = [parameter.grad.clone() for parameter in model.parameters() if parameter.grad is not None]
    inputs = {name: batch[name] for name in ("input_ids", "attention_mask", "decoder_input_ids")}
    log_probabilities = model(**inputs).log_softmax(-1)
    classes = log_probabilities.shape[-1]
    wanted = torch.full_like(log_probabilities, 0.2 / (classes - 1))
    wanted.scatter_(2, labels.clamp_min(0)[..., None], 0.8)
    expected = -(wanted * log_probabilities).sum(-1)[labels >= 0].mean()
    model.zero_grad()
    expected.backward()
    torch.testing.assert_close(loss, expected)
    gradients = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
    torch.testing.assert_close(found, gradients, rtol=1e-4, atol=1e-6)
    assert loaded.task.weights(batch) == {"loss": float((labels >= 0).sum())}


def test_metrics_do_not_depend_on_the_batch_size(tmp_path: Path) -> None:
    loaded = Loaded(recipe(tmp_path))
    found = []
    for size in (1, 7, 25):
        collector = RecordCollector([loaded.data.val.name(index) for index in range(25)])
        for start in range(0, 25, size):
            indices = range(start, min(start + size, 25))
            collector.add(np.array(indices), loaded.infer(indices))
        found.append(loaded.task.measure(collector.table(), loaded.data.facts).values)
    assert found[0] == pytest.approx(found[1], rel=1e-6)
    assert found[0] == pytest.approx(found[2], rel=1e-6)


def test_a_graft_that_cannot_mask_padding_sees_none(tmp_path: Path) -> None:
    loaded = Loaded(recipe(tmp_path, graft="cb@encoder"))
    assert not takes_padding(loaded.model)
    together, alone = loaded.infer(range(6)), [loaded.infer([index]) for index in range(6)]
    for index in range(6):
        assert together.statistics["nll"][index] == pytest.approx(alone[index].statistics["nll"][0], rel=1e-5)
        assert together.outputs["translation"][index] == alone[index].outputs["translation"][0]


def test_light_inference_is_greedy(tmp_path: Path) -> None:
    loaded = Loaded(recipe(tmp_path, decoding={"beams": 3, "max_length": 12, "length_penalty": 0.7}))
    called: list[dict[str, Any]] = []
    generate = loaded.model.generate

    def spied(*args: Any, **options: Any) -> Any:
        called.append(options)
        return generate(*args, **options)

    loaded.model.generate = spied  # type: ignore[assignment]
    for full in (True, False):
        loaded.task.infer(loaded.model, loaded.batch(range(3)), full=full)
    options = [{name: value for name, value in each.items() if not isinstance(value, torch.Tensor)} for each in called]
    beam = {"num_beams": 3, "max_new_tokens": 12, "length_penalty": 0.7, "early_stopping": True}
    assert options == [beam, {"num_beams": 1, "max_new_tokens": 12}]


def test_chance_and_the_plateau(tmp_path: Path) -> None:
    loaded = Loaded(recipe(tmp_path))
    data, task = loaded.data, loaded.task
    ids = np.concatenate(data.train.targets)  # type: ignore[attr-defined]
    counts = np.bincount(ids, minlength=data.facts["input"]["vocab_size"]) + 1
    val = np.concatenate(data.val.targets)  # type: ignore[attr-defined]
    loss = float(-np.log(counts / counts.sum())[val].mean())
    assert data.facts["unigram"]["loss"]["val"] == pytest.approx(loss)
    records = loaded.infer(range(25))
    table = RecordTable(names=np.arange(25).astype(str), columns={**records.statistics, **records.outputs})
    chance = task.chance(table, data.facts)
    assert chance is not None
    assert chance.values["perplexity"] == pytest.approx(np.exp(loss))
    assert chance.values["accuracy"] == pytest.approx((val == counts.argmax()).mean())
    assert 0 < chance.values["bleu"] < 20
    without = task.chance(RecordTable(names=table.names, columns=records.statistics), data.facts)
    assert without is not None and "bleu" not in without.values
    assert "little more than the frequencies of tokens" in task.training_note({"loss": loss}, data.facts)
    assert task.training_note({"loss": 0.9 * loss}, data.facts) == ""


def test_a_run_that_learned_nothing_is_reported(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    stuck = recipe(tmp_path)
    stuck = replace(stuck, optimizer=replace(stuck.optimizer, lr=1e-9))
    train(stuck, tmp_path / "run", progress=Silent())
    assert "run: the decoder has learned little more than the frequencies" in caplog.text


def test_translations_for_the_report(tmp_path: Path) -> None:
    loaded = Loaded(recipe(tmp_path))
    records = loaded.infer(range(20))
    (found,) = loaded.task.sections([{**records.statistics, **records.outputs}], facts=loaded.data.facts)
    assert found.table is not None and len(found.table.rows) == 20
    assert [column.role for column in found.table.columns] == ["own", "common", "compared"]
    lengths = [len(str(row[0])) for row in found.table.rows]
    assert lengths == sorted(lengths)
    assert loaded.task.sections([records.statistics], facts=loaded.data.facts) == []


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"host": {"name": "vit_tiny_patch16_224"}}, "the host is not an encoder-decoder; use --host attngraft:mt_"),
        ({"task": {"name": "translation"}}, "task.data: missing; give --data"),
        ({"task": {"name": "translation", "data": {"source": "x"}, "loss": {"smoothing": 2}}}, "loss.smoothing"),
        ({"task": {"name": "translation", "data": {"source": "x"}, "decoding": {"beams": 0}}}, "decoding.beams"),
        (
            {"task": {"name": "translation", "data": {"source": "x"}, "decoding": {"length_penalty": 1e300}}},
            "decoding.length_penalty: must lie between",
        ),
    ],
)
def test_mistakes(changes: dict[str, Any], reason: str, tmp_path: Path) -> None:
    base = recipe(tmp_path)
    plain: dict[str, Any] = {"host": base.host.name, "task": base.task} | changes
    plain["host"] = plain["host"] if isinstance(plain["host"], dict) else {"name": plain["host"], "args": HOST["args"]}
    with pytest.raises(AttngraftError, match=reason):
        train(recipe_from_dict(plain), tmp_path / "run", progress=Silent())
    assert not (tmp_path / "run").exists()


def test_the_tokenizer_of_a_run_is_kept(tmp_path: Path) -> None:
    """Other data are encoded with it; without it, the run is not evaluated."""
    train(recipe(tmp_path), tmp_path / "run", progress=Silent())
    pairs = sentences(30, seed=5)
    other = write_pairs(tmp_path / "other", {"train": pairs[:20], "val": pairs[20:]})
    evaluation = evaluate_run(tmp_path / "run", data=str(other))
    assert len(evaluation.predictions.names) == 10
    changed = "tokenizer .fitted in its folder. is missing or was changed"
    settings = tmp_path / "run" / "fitted" / "translation.json"
    settings.write_text(settings.read_text().replace('"start": ', '"start": 1'))
    with pytest.raises(AttngraftError, match=r"fitted/translation.json: damaged since the run finished"):
        open_model(str(tmp_path / "run"))
    for file in (tmp_path / "run" / "fitted").iterdir():
        file.unlink()
    with pytest.raises(AttngraftError, match=changed):
        evaluate_run(tmp_path / "run", data=str(other))


def test_a_tokenizer_has_no_more_tokens_than_the_model(tmp_path: Path) -> None:
    loaded = Loaded(recipe(tmp_path))
    known = loaded.data.facts["input"]
    for missing in (0, 1):
        facts = {**loaded.data.facts, "input": {**known, "vocab_size": known["vocab_size"] - missing}}
        with pytest.raises(AttngraftError, match="or was changed; restore its files") if missing else nullcontext():
            loaded.task.codec(facts, model_data_config={})


def test_words_are_compared_without_case(tmp_path: Path) -> None:
    facts = Loaded(recipe(tmp_path, tokens="words")).data.facts
    assert "case:lc" in facts["metrics"]["bleu"] and "case:lc" in facts["metrics"]["chrf"]
    assert "case:mixed" in Loaded(recipe(tmp_path)).data.facts["metrics"]["bleu"]


@pytest.mark.slow
def test_overfits_fifty_pairs(tmp_path: Path) -> None:
    base = recipe(tmp_path, train={"outputs": True})
    pairs = sentences(50)
    write_pairs(tmp_path / "pairs", {"train": pairs, "val": pairs})
    data = {"source": str(tmp_path / "pairs"), "check": "off"}
    changed = replace(
        base,
        task={**base.task, "data": data, "loss": {"smoothing": 0.0}, "decoding": {"max_length": 40}},
        host=replace(base.host, args={**base.host.args, "dim": 64, "hidden": 128}),
        schedule=replace(base.schedule, name="linear", epochs=60, warmup_epochs=6, min_lr=0),
        train=replace(base.train, eval_every=1000),
    )
    record = train(changed, tmp_path / "run", progress=Silent())
    assert record.judged is not None
    assert record.judged.compared()["bleu"] > 95
