"""Text classification: padding, runs with their tokenizer, prediction, export, studies."""

from __future__ import annotations

import csv
import json
import shutil
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import attngraft
from attngraft.cli import main
from attngraft.errors import ConfigError, DataError, ExportError, TrainingError, UsageError
from attngraft.export.predict import open_model
from attngraft.export.run import export_run
from attngraft.targets.judged import HostOptions, open_target
from attngraft.targets.texts import open_text_handle
from attngraft.tasks.text import TextClassification
from attngraft.tasks.text.lengths import call_model, takes_padding
from attngraft.tasks.text.tokenizer import FILE, read_tokenizer
from attngraft.training.build import build_model, build_task, model_data_config
from attngraft.training.evaluate import evaluate_run, evaluate_target
from attngraft.training.loop import train
from attngraft.training.run_folder import read_run
from attngraft.training.setup import _refuse_unshardable
from tests.tasks.text.toys import host, recipe, sentences, table
from tests.training.toys import with_new_checksums

transformers = pytest.importorskip("transformers", reason="needs the extra hf")


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run of a grafted BERT, beside its data and its host."""
    folder = tmp_path_factory.mktemp("text")
    data = table(folder / "reviews.csv", sentences(40))
    given = recipe(data, host(folder / "bert"), "graft=cb", "optimizer.lr=0.01")
    train(given, folder / "run")
    return folder / "run"


MODERN = {"model_type": "modernbert", "pad_token_id": 0, "cls_token_id": 2, "sep_token_id": 3, "local_attention": 4}


@pytest.mark.parametrize("changes", [{}, MODERN], ids=["bert", "modernbert"])
@pytest.mark.parametrize(("graft", "padding"), [("none", True), ("horizontal + bisa", True), ("cb", False)])
def test_the_logits_of_a_text_do_not_depend_on_the_others(
    tmp_path: Path, graft: str, padding: bool, changes: dict[str, Any]
) -> None:
    given = recipe(tmp_path, host(tmp_path / "host", **changes), f"graft={graft}")
    model = build_model(given, {"num_classes": 3}).eval()
    assert takes_padding(model) is padding
    with nullcontext() if padding else pytest.raises(ConfigError, match="calls this model without FSDP's wrapper"):
        _refuse_unshardable(given, build_task(given), model)  # under FSDP
    ids = torch.randint(5, 120, (5, 9))
    mask = (torch.arange(9) < torch.tensor([4, 9, 2, 4, 7])[:, None]).long()
    with torch.no_grad():
        together = call_model(model, ids, mask)
        alone = [model(input_ids=row[: int(n)][None]).logits[0] for row, n in zip(ids, mask.sum(1), strict=True)]
    torch.testing.assert_close(together, torch.stack(alone), atol=1e-5, rtol=1e-4)
    with torch.no_grad():
        assert torch.equal(call_model(model, ids, torch.ones_like(mask)), model(input_ids=ids).logits)


def test_loading_trains_a_tokenizer_that_fits_the_host(tmp_path: Path) -> None:
    data, name = table(tmp_path / "a.csv", sentences(40)), host(tmp_path / "bert")
    task = build_task(given := recipe(data, name))
    loaded = task.load(model_data_config=model_data_config(given))
    assert loaded.model_args == {"num_classes": 2}
    assert loaded.facts["sizes"] == {"train": 32, "val": 8} and loaded.facts["input"]["max_length"] == 24
    batch = loaded.val.collate([loaded.val[0, 0], loaded.val[0, 1]])
    assert batch["input_ids"].max() < 80 and batch["target"].tolist() == loaded.val.labels[:2].tolist()  # type: ignore[attr-defined]
    for settings, message in (
        ("task.tokenizer.vocab_size=200", "the host has 120 embeddings"),
        ("task.tokenizer.max_length=99", "the host supports at most 24 tokens"),
        ("task.metrics.primary=top5", "top5 needs more than five classes"),
    ):
        task = build_task(wrong := recipe(data, name, settings))
        with pytest.raises(ConfigError, match=message):
            task.load(model_data_config=model_data_config(wrong))
    with pytest.raises(ConfigError, match=r"is an image model; use a text model, hf:FOLDER or hf:USER/NAME"):
        build_task(given).load(model_data_config={"input_size": (3, 8, 8)})
    assert not TextClassification.missing_from_host({"input_size": (3, 8, 8)})


def test_a_run_keeps_its_tokenizer(trained: Path, tmp_path: Path) -> None:
    last = read_run(trained).epochs[-1]
    assert evaluate_run(trained).metrics["top1"] == last["val/top1"]
    more = table(tmp_path / "more.csv", [(f"{text} Again and again.", label) for text, label in sentences(20, seed=5)])
    assert len(evaluate_run(trained, data=str(more)).predictions.names) == 4
    other = shutil.copytree(trained, tmp_path / "run")
    changed = (other / "fitted" / FILE).read_text().replace('"a"', '"A"', 1)
    (other / "fitted" / FILE).write_text(changed)
    with pytest.raises(TrainingError, match=r"fitted/tokenizer\.json: damaged since the run finished"):
        open_model(str(other))
    content = json.loads((trained / "fitted" / FILE).read_text())
    vocabulary = content["model"]["vocab"]
    first, second = [*vocabulary][-2:]
    vocabulary[first], vocabulary[second] = vocabulary[second], vocabulary[first]
    (other / "fitted" / FILE).write_text(json.dumps(content))
    with_new_checksums(other)
    with pytest.raises(DataError, match=r"fitted/tokenizer\.json in its folder\) is missing or was changed"):
        open_model(str(other))
    vocabulary[first], vocabulary[second] = vocabulary[second], vocabulary[first] + 500
    (other / "fitted" / FILE).write_text(json.dumps(content))
    digest = read_tokenizer(other / "fitted" / FILE).digest  # of a token without an embedding
    known = (other / "data.json").read_text()
    (other / "data.json").write_text(known.replace(read_tokenizer(trained / "fitted" / FILE).digest, digest))
    with_new_checksums(other)
    with pytest.raises(DataError, match=r"fitted/tokenizer\.json in its folder\) is missing or was changed"):
        open_model(str(other))
    (other / "data.json").write_text(known)
    with_new_checksums(other)
    (other / "fitted" / FILE).unlink()
    with pytest.raises(DataError, match=r"fitted/tokenizer\.json in its folder\) is missing"):
        evaluate_run(other, data=str(more))


def test_export_and_run_predict_alike(trained: Path, tmp_path: Path) -> None:
    made = export_run(trained, tmp_path / "model")
    assert made.manifest.serving.kind == "text" and made.manifest.checks[0].difference < 1e-6
    assert "text-classification" in (tmp_path / "model/README.md").read_text()
    texts = ["A dull film.", "A warm and bright and clever song.", "Cold."]
    found = [
        [each.probabilities for each in open_model(path)(texts, batch=2)] for path in (trained, tmp_path / "model")
    ]
    assert np.allclose(*found, atol=1e-6) and np.allclose(np.sum(found, axis=2), 1)
    model = attngraft.load(tmp_path / "model")
    assert model(input_ids=torch.tensor([[2, 7, 3]])).logits.shape == (1, 2)
    with pytest.raises(UsageError, match="--to onnx: only for models that classify images"):
        export_run(trained, tmp_path / "other", to=["onnx"])
    with pytest.raises(UsageError, match=r"--to hf: transformers would load the model without its grafts \(cb\)"):
        export_run(trained, tmp_path / "other", to=["hf"])
    tokenizer = tmp_path / "model" / made.manifest.serving.input["tokenizer"]
    tokenizer.write_text(tokenizer.read_text() + " ")
    for read in (lambda: open_model(tmp_path / "model"), lambda: open_text_handle(str(tmp_path / "model"))):
        with pytest.raises(ExportError, match=r"tokenizer\.json: damaged since the export"):
            read()


def test_exported_folders_and_hosts_are_judged(trained: Path, tmp_path: Path) -> None:
    data = str(trained.parent / "reviews.csv")
    export_run(trained, tmp_path / "model")
    found = evaluate_target(open_target(str(tmp_path / "model")), data=data)
    assert found.metrics == pytest.approx(evaluate_run(trained, data=data).metrics, rel=1e-5)
    folder = Path(host(tmp_path / "bert", id2label={"0": "bad", "1": "good"}).removeprefix("hf:"))
    options = HostOptions(pretrained=True)
    with pytest.raises(
        UsageError, match=r"lack the tokenizer that it was trained with \(save it in the host's folder: "
    ):
        open_target(f"hf:{folder}", host=options, task="text_classification")
    config = transformers.AutoConfig.from_pretrained(folder)
    transformers.AutoModelForSequenceClassification.from_config(config).save_pretrained(folder)
    shutil.copy(trained / "fitted" / FILE, folder / "tokenizer.json")
    target = open_target(str(folder), host=options, task="text_classification")
    assert len(evaluate_target(target, data=data).predictions.names) == 8
    with pytest.raises(
        ConfigError, match=r"such as vit_tiny_patch16_224 .*, or add --task text_classification for texts"
    ):
        evaluate_target(open_target(str(folder), host=options), data="digits")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"id2label": {"0": "good", "1": "bad"}}))
    with pytest.raises(UsageError, match="the same classes in another order"):
        evaluate_target(open_target(str(folder), host=options, task="text_classification"), data=data)


def test_predict_reads_tables_and_options(trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = trained.parent / "reviews.csv"
    with pytest.raises(SystemExit) as stop:
        main(["predict", str(trained), str(data), "--out", str(tmp_path / "p.csv"), "--top", "2"])
    rows = list(csv.DictReader((tmp_path / "p.csv").open()))
    assert stop.value.code == 0 and len(rows) == 40
    assert rows[0]["text"] == sentences(1)[0][0] and {rows[0]["label"], rows[0]["label_2"]} == {"good", "bad"}
    with pytest.raises(SystemExit) as stop:
        main(["predict", str(trained), "--text", "A dull film.", "--format", "json"])
    assert json.loads(capsys.readouterr().out)["texts"][0]["text"] == "A dull film."
    with pytest.raises(SystemExit) as stop:
        main(["predict", str(trained), str(tmp_path / "none.csv")])
    assert stop.value.code == 2 and "no such file" in capsys.readouterr().err


@pytest.mark.parametrize(
    "command",
    [["analyze", "entropy", "--run", "RUN"], ["eval", "RUN", "--suite", "robustness"]],
    ids=["analyze", "suite"],
)
def test_commands_for_images_refuse(trained: Path, command: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main([str(trained) if word == "RUN" else word for word in command])
    assert stop.value.code == 2 and "images" in capsys.readouterr().err


@pytest.mark.slow
def test_a_study_shares_the_tokenizer_of_equal_hosts(tmp_path: Path) -> None:
    data, out = table(tmp_path / "a.csv", sentences(40)), tmp_path / "study"
    other = host(tmp_path / "electra", model_type="electra", embedding_size=16, vocab_size=110)
    sets = ["train.batch_size=8", "train.threads=1"]
    command = ["compare", "--task", "text_classification", "--host", host(tmp_path / "bert"), "--against", other]
    command += [
        "--graft",
        "cb",
        "--data",
        str(data),
        "--seeds",
        "1",
        "--epochs",
        "1",
        "--out",
        str(out),
    ]
    with pytest.raises(SystemExit) as stop:
        main([*command, *(word for each in sets for word in ("--set", each))])
    assert stop.value.code == 0
    result = json.loads((out / "results.json").read_text())
    assert any("Inputs are prepared differently" in note for note in result["notes"])
    own = [path.read_text() for path in sorted(out.glob("runs/*/*/fitted/tokenizer.json"))]
    shared = (out / "fitted" / FILE).read_text()
    assert len(own) == 3 and own.count(shared) == 2
    assert "Class by class" in (out / "report.html").read_text()


@pytest.mark.slow
def test_learning_to_read(tmp_path: Path) -> None:
    data = table(tmp_path / "a.csv", sentences(200))
    name = host(tmp_path / "bert", hidden_size=32, hidden_dropout_prob=0.0, max_position_embeddings=48)
    given = recipe(data, name, "schedule.epochs=12", "optimizer.lr=0.003", "task.tokenizer.vocab_size=120")
    assert train(given, tmp_path / "run").epochs[-1]["val/top1"] > 0.9
