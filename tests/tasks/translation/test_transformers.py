"""Translation by encoder-decoders of transformers: all families, and a run with its exported folder."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import attngraft
from attngraft.errors import UsageError
from attngraft.export.predict import open_model
from attngraft.export.run import export_run
from attngraft.tasks.task import StepContext
from attngraft.training.build import build_model, build_task, model_data_config
from attngraft.training.evaluate import evaluate_run
from attngraft.training.loop import train
from attngraft.training.recipe import Recipe, recipe_from_dict
from attngraft.training.run_folder import read_run
from tests.cli.test_export import run as command
from tests.contract.stirring import stir
from tests.contract.task_contract import total
from tests.slow import slow_but
from tests.tasks.translation.pairs import section
from tests.tasks.translation.test_tokenizer import host_tokenizer

pytest.importorskip("sacrebleu", reason="needs the extra text")
transformers = pytest.importorskip("transformers", reason="needs the extra hf")

BART = {
    "d_model": 16,
    "encoder_layers": 1,
    "decoder_layers": 1,
    "encoder_ffn_dim": 32,
    "decoder_ffn_dim": 32,
    "encoder_attention_heads": 2,
    "decoder_attention_heads": 2,
    "max_position_embeddings": 40,
    "dropout": 0.0,
    "forced_eos_token_id": None,
}
T5 = {"d_model": 16, "d_kv": 8, "num_heads": 2, "d_ff": 32, "num_layers": 1, "dropout_rate": 0.0}
KINDS = {"marian": BART, "bart": BART, "mbart": BART, "m2m_100": BART, "t5": T5, "mt5": T5}


def write_host(folder: Path, kind: str) -> str:
    """Write a configuration without weights and without a tokenizer."""
    ids = {"vocab_size": 340, "pad_token_id": 0, "eos_token_id": 1, "decoder_start_token_id": 2}
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps({"model_type": kind, **KINDS[kind], **ids}))
    return f"hf:{folder}"


def recipe(folder: Path, kind: str, graft: str | None = None, **fields: Any) -> Recipe:
    return recipe_of({"name": write_host(folder / kind, kind)}, section(folder / "pairs", **fields), graft)


def recipe_of(host: dict[str, Any], task: dict[str, Any], graft: str | None = None) -> Recipe:
    return recipe_from_dict(
        {
            "host": host,
            "graft": graft,
            "task": task,
            "optimizer": {"lr": 3e-3},
            "schedule": {"epochs": 1, "warmup_epochs": 0},
            "train": {"batch_size": 8, "eval_batch_size": 16, "threads": 1},
        }
    )


@pytest.mark.parametrize("graft", ["horizontal@decoder.cross + vertical", "cb@encoder + bisa@encoder.self"])
@pytest.mark.parametrize("kind", slow_but(KINDS, "marian", "t5"))
def test_every_family_learns_and_translates(tmp_path: Path, kind: str, graft: str) -> None:
    """A sentence has the same loss and translation alone and among longer ones."""
    given = recipe(tmp_path, kind, graft)
    task = build_task(given)
    data = task.load(model_data_config=model_data_config(given))
    model = stir(build_model(given, data.model_args), lambda name, _: True, by=0.1).eval()
    examples = [data.val[0, index] for index in range(4)]
    batch = data.val.collate(examples)
    total(task.step(model, batch, StepContext(seed=0, epoch=0, step=0, model=model))).backward()
    assert all(torch.isfinite(each.grad).all() for each in model.parameters() if each.grad is not None)
    with torch.no_grad():
        together = task.infer(model, batch)
        alone = [task.infer(model, data.val.collate([each])) for each in examples]
    nll = np.concatenate([each.statistics["nll"] for each in alone])
    np.testing.assert_allclose(together.statistics["nll"], nll, rtol=1e-4)
    assert list(together.outputs["translation"]) == [each.outputs["translation"][0] for each in alone]


def test_a_fine_tuned_model_is_exported_for_transformers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It starts from the weights of a folder, with its tokenizer, which has a token for each language.

    The exported folder is a host too, and has the run's scores on two files.
    """
    tokenizer, run = host_tokenizer("nllb"), tmp_path / "run"
    ids = {"vocab_size": len(tokenizer), "pad_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 2}
    own = transformers.M2M100ForConditionalGeneration(
        transformers.M2M100Config(**{**BART, **ids, "max_position_embeddings": 80})
    )
    for part in (own, tokenizer):
        part.save_pretrained(tmp_path / "nllb")
    task = section(tmp_path / "pairs", train=16, val=6, source="eng_Latn", target="deu_Latn")
    task["data"] |= {"source_column": "en", "target_column": "de"}
    train(recipe_of({"name": f"hf:{tmp_path / 'nllb'}", "pretrained": True}, task), run)
    (tmp_path / "nllb").rename(tmp_path / "moved")
    assert evaluate_run(run).metrics["perplexity"] == pytest.approx(read_run(run).epochs[-1]["val/perplexity"])
    made = export_run(run, tmp_path / "model", to=["hf"])
    assert [check.file for check in made.manifest.checks] == ["model.safetensors", "config.json"]
    capsys.readouterr()
    columns = {"source": "eng_Latn", "target": "deu_Latn", "data.source_column": "en", "data.target_column": "de"}
    options = [text for name, value in columns.items() for text in ("--set", f"task.{name}={value}")]
    data = ["--task", "translation", "--data", tmp_path / "pairs" / "val", "--set", "task.decoding.max_length=12"]
    assert command("eval", f"hf:{tmp_path / 'model'}", "--pretrained", *data, *options, "--json") == 0
    assert json.loads(capsys.readouterr().out)["metrics"] == pytest.approx(evaluate_run(run).metrics, rel=1e-5)
    words = transformers.AutoTokenizer.from_pretrained(tmp_path / "model", src_lang="eng_Latn")
    models: list[Any] = [
        transformers.AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "model"),
        attngraft.load(tmp_path / "model"),
    ]
    assert type(models[0]) is type(own)
    decoding = {"num_beams": 5, "length_penalty": 0.7, "early_stopping": True, "max_new_tokens": 12}
    decoding["forced_bos_token_id"] = words.convert_tokens_to_ids("deu_Latn")
    found, expected = (each.generate(**words(["A red house."], return_tensors="pt"), **decoding) for each in models)
    assert torch.equal(found, expected)
    (translation,) = open_model(tmp_path / "model")(["A red house."])
    assert translation.value == words.decode(found[0], skip_special_tokens=True).strip()
    with pytest.raises(UsageError, match="--to pt2: only for models that classify images"):
        export_run(run, tmp_path / "other", to=["hf", "pt2"])


def test_what_an_encoder_decoder_refuses(tmp_path: Path) -> None:
    run = tmp_path / "run"
    train(recipe(tmp_path, "marian", "horizontal"), run)
    with pytest.raises(
        UsageError, match=r"--to hf: transformers would load the model without its grafts \(horizontal\)"
    ):
        export_run(run, tmp_path / "model", to=["hf"])
    assert not (tmp_path / "model").exists()
    for graft, reason in (("cb", "must not see later ones, but this graft averages"), ("bisa@decoder.cross", "does")):
        given = recipe(tmp_path / graft, "t5", graft)
        with pytest.raises(attngraft.HostError, match=rf"cannot be grafted at decoder.*{reason}"):
            build_model(given, {})
    (tmp_path / "bert").mkdir()
    (tmp_path / "bert" / "config.json").write_text(json.dumps({"model_type": "bert"}))
    with pytest.raises(
        UsageError, match="no AutoModelForSeq2SeqLM of model_type 'bert'; use another host for this task"
    ):
        model_data_config(
            recipe_from_dict({"host": {"name": f"hf:{tmp_path / 'bert'}"}, "task": section(tmp_path / "pairs")})
        )
