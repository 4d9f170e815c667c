"""`hf:` hosts: folders and repositories of transformers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import attngraft
from attngraft.errors import AttngraftError, ConfigError, HostError, UsageError
from attngraft.hosts import model_parts
from attngraft.models import schemes
from attngraft.models.create import create_host, start_host
from attngraft.models.host_input import host_input
from attngraft.tasks.images.inputs import HostInput
from attngraft.training.build import build_initial_model, model_data_config
from attngraft.training.recipe import HostConfig, Recipe, recipe_from_dict, recipe_to_dict
from tests.models.test_transformers_folder import IMAGES, saved

transformers = pytest.importorskip("transformers", reason="needs the extra hf")

TEXT = {"vocab_size": 40, "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}


def saved_text(folder: Path, kind: str, **config: Any) -> nn.Module:
    torch.manual_seed(0)
    settings = transformers.AutoConfig.for_model(kind.removesuffix("2"), **TEXT, max_position_embeddings=24, **config)
    model: Any = transformers.AutoModelForMaskedLM.from_config(settings)
    model.save_pretrained(folder)
    return model


def test_a_folder_is_a_host(tmp_path: Path) -> None:
    own = saved(tmp_path)
    for name in (str(tmp_path), f"hf:{tmp_path}"):
        model: Any = attngraft.create_model(name, pretrained=True)
        assert torch.equal(model.eval()(IMAGES), own(IMAGES).logits) and model.num_classes == 5
        assert HostConfig(name=name).name == f"hf:{tmp_path}"
    random: Any = attngraft.create_model(str(tmp_path), num_classes=3)
    assert random.get_classifier().weight.shape == (3, 24)
    assert not torch.equal(random.model.vit.embeddings.cls_token, own.vit.embeddings.cls_token)


def test_the_recipe_needs_no_folder(tmp_path: Path) -> None:
    """Also after it was read again, as in the folder of a run on another machine."""
    saved(tmp_path / "vit")
    first = Recipe(
        host=HostConfig(name=f"hf:{tmp_path / 'vit'}", args={"hidden_dropout_prob": 0.5}), graft="cb_s@layers.1"
    )
    expected = model_data_config(first)
    assert expected["mean"] == pytest.approx([0.1, 0.2, 0.3]) and expected["input_size"] == (3, 16, 16)
    (tmp_path / "vit").rename(tmp_path / "elsewhere")
    again = recipe_from_dict(recipe_to_dict(first))
    assert again == first and model_data_config(again) == expected
    model, _ = build_initial_model(again, {"num_classes": 3}, load_weights=False)
    assert model.model.config.hidden_dropout_prob == 0.5 and model_parts(model).head == ("model.classifier",)
    assert model_data_config(Recipe(host=HostConfig(name=f"hf:{tmp_path / 'elsewhere'}", args={"img_size": 8})))[
        "input_size"
    ] == (3, 8, 8)


def test_another_number_of_classes_gets_a_new_head(tmp_path: Path) -> None:
    own = saved(tmp_path)
    recipe = Recipe(host=HostConfig(name=str(tmp_path), pretrained=True))
    model, start = build_initial_model(recipe, {"num_classes": 3})
    assert "a new head: model.classifier.bias, model.classifier.weight" in start.origin and not start.whole
    assert start.path == tmp_path / "model.safetensors"
    assert torch.equal(model.model.vit.embeddings.cls_token, own.vit.embeddings.cls_token)
    untrained, _ = build_initial_model(recipe, {"num_classes": 3}, load_weights=False)
    assert torch.equal(model.get_classifier().weight, untrained.get_classifier().weight)
    assert build_initial_model(recipe, {"num_classes": 5})[1].whole


@pytest.mark.parametrize(
    ("arguments", "kind", "head"),
    [
        ({}, "BertForMaskedLM", "cls."),
        ({"auto_class": "AutoModel"}, "BertModel", "pooler."),
        (
            {"auto_class": "AutoModelForSequenceClassification", "num_classes": 3},
            "BertForSequenceClassification",
            "classifier.",
        ),
    ],
)
def test_text(tmp_path: Path, arguments: dict[str, Any], kind: str, head: str) -> None:
    own: Any = saved_text(tmp_path, "bert")
    started = start_host(f"hf:{tmp_path}", arguments, pretrained=True)
    model: Any = started.model
    assert type(model).__name__ == kind and head.removesuffix(".") in model_parts(model).head
    assert torch.equal(model.get_input_embeddings().weight, own.get_input_embeddings().weight)
    assert host_input(f"hf:{tmp_path}", arguments) == {
        "kind": "text",
        "tokenizer": None,
        "max_length": 24,
        "vocab_size": 40,
        "pad": 0,
    }
    if "num_classes" in arguments:
        assert model.classifier.weight.shape == (3, 16) and started.fitted is not None
        assert started.fitted.new[:2] == ("classifier.bias", "classifier.weight")
        assert attngraft.graft(model, "cb_s").entries


def test_the_tokenizer_and_its_limit(tmp_path: Path) -> None:
    saved_text(tmp_path, "roberta", pad_token_id=1)
    found = host_input(f"hf:{tmp_path}", {"vocab_size": 50})
    assert found == {"kind": "text", "tokenizer": None, "max_length": 22, "vocab_size": 50, "pad": 1}
    (tmp_path / "tokenizer.json").write_text("{}")
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"model_max_length": 20}))
    assert host_input(f"hf:{tmp_path}", {}) | {"vocab_size": 0} == {
        "kind": "text",
        "tokenizer": str(tmp_path),
        "max_length": 20,
        "vocab_size": 0,
        "pad": 1,
    }


def test_a_host_for_text_does_not_fit_images(tmp_path: Path) -> None:
    saved_text(tmp_path, "bert")
    with pytest.raises(ConfigError, match="takes text, but this task requires images"):
        HostInput.from_model(host_input(str(tmp_path), {}))


def test_a_repository_of_the_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    saved(tmp_path / "cached")
    asked: list[list[str]] = []

    def download(name: str, *, allow_patterns: list[str], local_files_only: bool) -> str:
        if name != "jane/vit":
            raise ConnectionError("no network")
        asked.append(allow_patterns)
        return str(tmp_path / "cached")

    monkeypatch.setattr("huggingface_hub.snapshot_download", download)
    create_host("hf:jane/vit")
    assert not any("safetensors" in pattern for pattern in asked[-1])
    create_host("hf:jane/vit", pretrained=True)
    assert "model.safetensors" in asked[-1]
    with pytest.raises(HostError, match="hf download jane/bert --local-dir FOLDER elsewhere, and pass hf:FOLDER"):
        create_host("hf:jane/bert")


def test_what_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    saved(tmp_path / "vit", processor=None)
    name = f"hf:{tmp_path / 'vit'}"
    with pytest.raises(UsageError, match=r"no preprocessor_config.json there"):
        host_input(name, {})
    assert host_input(name, {"pretrained_cfg_overlay": {"mean": [0] * 3, "std": [1] * 3}})["input_size"] == (3, 16, 16)
    with pytest.raises(UsageError, match="no such folder"):
        create_host(f"hf:{tmp_path}/nothing")
    with pytest.raises(UsageError, match=r"no config.json with a model_type"):
        create_host(f"hf:{tmp_path}")
    with pytest.raises(AttngraftError, match="has no field 'hidden_sise'"):
        create_host(name, hidden_sise=3)
    with pytest.raises(UsageError, match="no such class.*AutoModel"):
        create_host(name, auto_class="AutoModell")
    with pytest.raises(
        UsageError, match="transformers has no AutoModelForCausalLM of model_type 'vit'; use another host"
    ):
        create_host(name, auto_class="AutoModelForCausalLM")
    (tmp_path / "vit" / "model.safetensors").touch()
    for weights in (tmp_path / "vit", tmp_path / "vit" / "model.safetensors"):
        with pytest.raises(UsageError, match="use the host hf:.*vit with --pretrained"):
            attngraft.create_model(name, weights=weights)


def test_a_host_much_larger_than_its_weights_is_not_created(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    saved(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"hidden_size": 600}))
    monkeypatch.setattr(schemes, "_MOST_EXTRA", 0)
    with pytest.raises(HostError, match="the host is much larger than its weights; restore its arguments"):
        attngraft.create_model(str(tmp_path), pretrained=True)
    host = HostConfig(name="vit_base_patch16_224", weights=str(tmp_path / "model.safetensors"))
    with pytest.raises(HostError, match="the host is much larger than its weights; restore its arguments"):
        build_initial_model(Recipe(host=host), {"num_classes": 3})


def test_no_remote_code(tmp_path: Path) -> None:
    """Neither from a repository, nor a kernel for the attention, which transformers would download."""
    saved(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    code = {"auto_map": {"AutoModelForImageClassification": "evil.Model"}, "attn_implementation": "evil/kernel"}
    (tmp_path / "config.json").write_text(json.dumps(config | code))
    (tmp_path / "evil.py").write_text("raise SystemExit('ran')")
    model: Any = attngraft.create_model(str(tmp_path), pretrained=True)
    assert type(model.model).__name__ == "ViTForImageClassification"
    assert not {"auto_map", "attn_implementation"} & HostConfig(name=str(tmp_path)).args["config"].keys()
    for field in ("attn_implementation", "trust_remote_code"):
        with pytest.raises(AttngraftError, match=f"has no field '{field}'"):
            create_host(str(tmp_path), **{field: "evil/kernel"})
    (tmp_path / "config.json").write_text(json.dumps(config | {"model_type": "evil"} | code))
    with pytest.raises(UsageError, match="cannot read it"):
        create_host(str(tmp_path))


PAIR = {
    "vocab_size": 30,
    "d_model": 16,
    "pad_token_id": 0,
    "eos_token_id": 1,
    "encoder_layers": 1,
    "decoder_layers": 1,
    "encoder_attention_heads": 2,
    "decoder_attention_heads": 2,
    "encoder_ffn_dim": 16,
    "decoder_ffn_dim": 16,
    "max_position_embeddings": 20,
}
T5_PAIR = {"vocab_size": 30, "d_model": 16, "d_kv": 8, "num_heads": 2, "d_ff": 16, "num_layers": 1}


def saved_pair(folder: Path, kind: str, **config: Any) -> Any:
    torch.manual_seed(0)
    sizes = T5_PAIR if kind.endswith("t5") else PAIR
    settings = transformers.AutoConfig.for_model(kind, **{**sizes, **config})
    model: Any = transformers.AutoModelForSeq2SeqLM.from_config(settings)
    model.generation_config.num_beams = 4
    model.save_pretrained(folder)
    return model.eval()


@pytest.mark.parametrize(
    ("kind", "config", "decoder"),
    [
        ("marian", {"decoder_start_token_id": 0}, {"start": 0, "end": 1, "max_length": 20, "forced": None}),
        ("bart", {}, {"start": 2, "end": 1, "max_length": 20, "forced": None}),
        ("mbart", {"decoder_start_token_id": 5}, {"start": 5, "end": 1, "max_length": 20, "forced": None}),
        ("m2m_100", {}, {"start": 2, "end": 1, "max_length": 20, "forced": None}),
        ("t5", {"decoder_start_token_id": 3}, {"start": 3, "end": 1, "max_length": None, "forced": None}),
        ("mt5", {}, {"start": 0, "end": 1, "max_length": None, "forced": None}),
    ],
)
def test_an_encoder_decoder(tmp_path: Path, kind: str, config: dict[str, Any], decoder: dict[str, Any]) -> None:
    own = saved_pair(tmp_path, kind, **config)
    if kind == "m2m_100":
        own.generation_config.forced_bos_token_id = decoder["forced"] = 7
        own.save_pretrained(tmp_path)
    recipe = Recipe(host=HostConfig(name=f"hf:{tmp_path}", pretrained=True))
    expected = {"kind": "text", "tokenizer": None, "max_length": decoder["max_length"], "vocab_size": 30}
    assert host_input(recipe.host.name, recipe.host.args) == {**expected, "pad": 0, "decoder": decoder}
    model: Any = build_initial_model(recipe, {})[0].eval()
    ids, mask = torch.tensor([[5, 6, 7, 1], [8, 1, 0, 0]]), torch.tensor([[1, 1, 1, 1], [1, 1, 0, 0]])
    given = {"input_ids": ids, "attention_mask": mask, "decoder_input_ids": torch.tensor([[decoder["start"], 6]] * 2)}
    assert torch.equal(model(**given).logits, own(**given).logits)
    for beams in ({}, {"num_beams": 5, "length_penalty": 0.7, "early_stopping": True}):
        options = {"input_ids": ids, "attention_mask": mask, "max_new_tokens": 6, **beams}
        assert torch.equal(model.generate(**options), own.generate(**options))
    again = recipe_from_dict(recipe_to_dict(recipe))
    assert again.host.args["generation"]["num_beams"] == 4  # of the folder, which is not read again


def test_an_encoder_decoder_without_an_end(tmp_path: Path) -> None:
    saved_pair(tmp_path, "marian", decoder_start_token_id=0)
    (tmp_path / "generation_config.json").unlink()
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"eos_token_id": None}))
    with pytest.raises(UsageError, match=r"config\.json has no eos_token_id, which translation needs; add it"):
        create_host(f"hf:{tmp_path}")
    saved_text(tmp_path / "bert", "bert")
    with pytest.raises(
        UsageError, match="no AutoModelForSeq2SeqLM of model_type 'bert'; use another host for this task"
    ):
        create_host(f"hf:{tmp_path / 'bert'}", auto_class="AutoModelForSeq2SeqLM")


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({}, "host argument config: has no model_type"),
        (["vit"], "host argument config: has no model_type"),
        ({"model_type": "vit", "num_hidden_layers": 10**30}, "num_hidden_layers is more than 10,000"),
        ({"model_type": "vit", "architectures": 1}, "architectures must be a list of names; correct it"),
        ({"model_type": "vit", "num_labels": 2**31}, "num_labels is more than 1,000,000"),
    ],
)
def test_a_configuration_of_a_received_recipe_is_checked(config: Any, message: str) -> None:
    with pytest.raises((UsageError, HostError), match=f"hf:x: .*{message}"):
        create_host("hf:x", config=config)
