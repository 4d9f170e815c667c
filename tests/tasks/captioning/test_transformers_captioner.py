"""Captioning by encoder-decoders of transformers."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import attngraft
from attngraft.errors import AttngraftError
from attngraft.export.predict import open_model
from attngraft.models.examine import examine
from attngraft.models.host_input import host_input
from attngraft.tasks.captioning.transformers_captioner import TransformersCaptioner
from attngraft.tasks.images.inputs import HostInput
from attngraft.tasks.task import StepContext
from attngraft.training.evaluate import evaluate_run
from attngraft.training.loop import train
from attngraft.training.progress import Silent
from attngraft.training.recipe import Recipe, recipe_from_dict
from tests.cli.test_export import run as command
from tests.contract.stirring import stir
from tests.contract.task_contract import Loaded
from tests.tasks.captioning.scenes import section, write_scenes
from tests.tasks.captioning.transformers_hosts import transformers, write_gpt2, write_host


def recipe(folder: Path, host: str | None = None, graft: str | None = None, **fields: Any) -> Recipe:
    if not (folder / "scenes").exists():
        (write_scenes(folder / "scenes", images=True) / "features.h5").unlink()
    return recipe_from_dict(
        {
            "host": {"name": host or write_host(folder / "host")},
            "graft": graft,
            "task": section(folder / "scenes", **{"max_length": 9, **fields}),
            "optimizer": {"lr": 3e-3},
            "schedule": {"epochs": 1, "warmup_epochs": 0},
            "train": {"threads": 1, "batch_size": 8, "outputs": True},
        }
    )


def test_the_input_is_that_of_the_folder(tmp_path: Path) -> None:
    given = host_input(write_host(tmp_path / "host"), {"auto_class": "AutoModelForImageTextToText"})
    assert given["kind"] == "captioned images"
    assert given["decoder"] == {"start": 2, "end": 3, "max_length": 20, "forced": None}
    assert (given["vocab_size"], given["pad"], given["tokenizer"]) == (24, 0, str(tmp_path / "host"))
    images = HostInput.from_model({**given, "kind": "images"})
    assert (images.channels, images.height, images.width, images.mean, images.std) == (
        3,
        16,
        16,
        (0.5,) * 3,
        (0.25,) * 3,
    )
    overlay = {"mean": [0, 0, 0], "std": [1, 1, 1]}
    write_host(tmp_path / "plain", images=False)
    other = host_input(f"hf:{tmp_path / 'plain'}", {"pretrained_cfg_overlay": overlay})
    assert (other["kind"], other["input_size"], other["mean"]) == ("captioned images", [3, 16, 16], [0, 0, 0])
    with pytest.raises(AttngraftError, match="takes captioned images, but this task requires images"):
        HostInput.from_model(given)


def test_logits_and_captions_are_those_of_transformers(tmp_path: Path) -> None:
    loaded = Loaded(recipe(tmp_path))
    model, batch = loaded.model, loaded.batch(range(3))
    assert isinstance(model, TransformersCaptioner)
    host: Any = model.host
    pixels = (batch["inputs"] / 255 - 0.5) / 0.25
    logits = model(batch["inputs"], batch["input_ids"], batch["image"])
    expected = host(pixels[batch["image"]], decoder_input_ids=batch["input_ids"]).logits
    torch.testing.assert_close(logits, expected)
    torch.testing.assert_close(model(batch["inputs"], batch["input_ids"]), expected)
    found = model.generate(batch["inputs"], num_beams=3, length_penalty=0.0, max_new_tokens=9)
    assert torch.equal(found, host.generate(pixels, num_beams=3, length_penalty=0.0, max_new_tokens=9))
    assert batch["input_ids"][0, :3].tolist() == [2, 2, 4] and 3 in batch["labels"][0]


def test_sampled_captions_are_drawn_from_the_hosts_probabilities(tmp_path: Path) -> None:
    """Beams with one caption are greedy; drawn tokens depend on the draws alone, and have the host's probabilities."""
    loaded = Loaded(recipe(tmp_path, graft="horizontal@decoder"))
    model, images = loaded.model, loaded.batch(range(3))["inputs"]
    greedy = model.sample(images, count=1, max_new_tokens=6)[:, 0]
    assert torch.equal(greedy, model.generate(images, num_beams=1, max_new_tokens=6)[:, 1 : greedy.shape[1] + 1])
    draws = torch.rand(3, 2, 6, generator=torch.Generator().manual_seed(0))
    drawn = model.sample(images, count=2, max_new_tokens=6, draws=draws)
    alone = model.sample(images[2:], count=2, max_new_tokens=6, draws=draws[2:])
    length = alone.shape[2]
    assert torch.equal(drawn[2:, :, :length], alone) and not torch.equal(drawn[:, 0], drawn[:, 1])
    ids = torch.cat([torch.full((6, 1), 2), drawn.flatten(0, 1)[:, :-1]], dim=1)
    reached = model(images, ids).softmax(-1).cumsum(-1).gather(2, drawn.flatten(0, 1)[..., None])[..., 0]
    first = draws.flatten(0, 1)[:, : reached.shape[1]]
    assert (reached >= first - 1e-5)[:, 0].all()


def test_decoder_grafts_change_the_captioner_and_are_undone(tmp_path: Path) -> None:
    host: Any = transformers.VisionEncoderDecoderModel.from_pretrained(write_host(tmp_path / "host")[3:]).eval()
    pixels, ids = torch.randn(2, 3, 16, 16), torch.randint(4, 20, (2, 5))
    plain = host(pixels, decoder_input_ids=ids).logits
    report = attngraft.graft(host, "horizontal@decoder.cross + vertical@decoder + bisa@encoder")
    assert {entry.site.partition(".")[0] for entry in report.entries} == {"encoder", "decoder"}
    stir(host, lambda name, _: ".grafts." in name)
    assert not torch.allclose(host(pixels, decoder_input_ids=ids).logits, plain, atol=1e-3)
    attngraft.ungraft(host)
    assert torch.equal(host(pixels, decoder_input_ids=ids).logits, plain)
    for spec, reason in (("cb@decoder", "must not see later ones"), ("bisa@decoder.cross", "does")):
        with pytest.raises(attngraft.HostError, match=reason):
            attngraft.graft(host, spec)


def test_a_decoder_without_an_adapter_is_named(tmp_path: Path) -> None:
    sizes = {"d_model": 24, "decoder_layers": 1, "decoder_attention_heads": 2, "vocab_size": 24, "decoder_ffn_dim": 48}
    folder = tmp_path / "host"
    write_host(folder, decoder=transformers.TrOCRConfig(**sizes, max_position_embeddings=20))
    host = transformers.VisionEncoderDecoderModel.from_pretrained(folder)
    assert {entry.site.partition(".")[0] for entry in attngraft.plan(host, "vertical").entries} == {"encoder"}
    assert "its decoder, TrOCRForCausalLM, is not supported" in str(examine(host))
    with pytest.raises(AttngraftError, match="its decoder, TrOCRForCausalLM, is not supported"):
        attngraft.graft(host, "vertical@decoder")


@pytest.mark.parametrize("draw", ["beam", "multinomial"])
def test_rewards_are_of_words(tmp_path: Path, draw: str) -> None:
    loaded = Loaded(recipe(tmp_path, objective="reward", reward={"draw": draw, "samples": 3}))
    task: Any = loaded.task
    batch = loaded.data.train.collate([loaded.data.train[0, index] for index in (3, 9)])
    written = ["this is a white horse", "a brown horse unknown horse", "the"]
    rows = [task._tokens.encode(each)[1:] for each in written]
    tokens = torch.tensor([[*row, *[0] * (8 - len(row))] for row in rows])
    rewards, ids = task._rewards(), task._tokens.hypothesis_ids(tokens)
    assert [len(each) for each in ids] == [5, 4, 1]  # the tokenizer does not know `unknown`
    scores = rewards.score(ids, [3, 3, 3])
    assert scores[0] > scores[1] > 0
    losses = task.step(loaded.model, batch, StepContext(seed=0, epoch=0, step=0, model=loaded.model))
    losses["loss"].mean.backward()
    assert losses["reward"].mean >= 0
    decoder = loaded.model.get_submodule("host.decoder.bert.encoder.layer.0.crossattention.self.query")
    assert torch.isfinite(decoder.weight.grad).all()  # type: ignore[union-attr, arg-type]


def test_a_run_predicts_and_its_folder_is_a_host(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """From the weights of a folder; predictions are those of the run, and `eval` of the folder those of the host."""
    given = recipe(tmp_path, graft="horizontal@decoder")
    train(given, tmp_path / "run", progress=Silent())
    (tmp_path / "host").rename(tmp_path / "moved")
    names = [str(tmp_path / f"scenes/images/{number}.png") for number in range(20, 23)]
    found = [each.value for each in open_model(tmp_path / "run", device="cpu")(names)]
    with np.load(tmp_path / "run/predictions.npz") as saved:
        assert saved["caption"][:3].tolist() == found
    assert evaluate_run(tmp_path / "run").metrics["loss"] > 0
    data = ["--task", "captioning", "--data", tmp_path / "scenes", "--set", "task.max_length=9"]
    assert command("eval", f"hf:{tmp_path / 'moved'}", "--pretrained", *data, "--json") == 0
    assert json.loads(capsys.readouterr().out)["metrics"]["loss"] > 0


@pytest.mark.parametrize("objective", ["cross_entropy", "reward"])
def test_the_start_may_be_the_end_and_the_padding(tmp_path: Path, objective: str) -> None:
    """As in GPT-2; captions are learned and written, alone and among others."""
    loaded = Loaded(recipe(tmp_path, write_gpt2(tmp_path / "host"), "horizontal@decoder", objective=objective))
    task: Any = loaded.task
    ids = task._tokens.encode("A red dog .")
    assert (ids[[0, -1]].tolist(), len(ids), task._tokens.decode(ids[1:])) == ([3, 3], 6, "a red dog .")
    batch = loaded.data.train.collate([loaded.data.train[0, index] for index in range(4)])
    assert (batch["labels"] == 3).sum() == len(batch["labels"])
    model, optimizer = loaded.model, torch.optim.Adam(loaded.model.parameters(), lr=5e-3)
    losses = []
    for step in range(30 if objective == "cross_entropy" else 2):
        loss = task.step(model, batch, StepContext(seed=0, epoch=0, step=step, model=model))["loss"].mean
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    together, alone = (loaded.infer(each).outputs["caption"] for each in (range(3), [1]))
    assert together[1] == alone[0]
    if objective == "cross_entropy":
        assert losses[-1] < 0.5 * losses[0] and all(together)


@pytest.mark.parametrize(
    ("written", "fields", "message"),
    [
        (
            {"words": False},
            {},
            r"has no tokenizer, whose tokens its captions consist of; save it there \(AutoTokenizer",
        ),
        ({"images": False}, {}, "no such file; it specifies the preprocessing of images"),
        ({"eos_token_id": None}, {}, r"config\.json has no eos_token_id, which captioning needs; add it"),
        ({}, {"max_length": 21}, "the host has 20 positions, got 21"),
        ({}, {"features": "features.h5"}, "task.features: the host has its own image encoder"),
        ({}, {"encoder": {"name": "resnet18"}}, "task.encoder: the host has its own image encoder"),
    ],
)
def test_what_is_missing_is_named(
    tmp_path: Path, written: dict[str, Any], fields: dict[str, Any], message: str
) -> None:
    host = write_host(tmp_path / "host", **written)
    with pytest.raises(AttngraftError, match=message):
        train(recipe(tmp_path, host, **fields), tmp_path / "run", progress=Silent())


@pytest.mark.parametrize(
    ("file", "field", "value", "message"),
    [
        (
            "preprocessor_config.json",
            "image_mean",
            [0.5],
            r"must be finite and of the same length, and image_std positive",
        ),
        (
            "preprocessor_config.json",
            "image_std",
            [0.0] * 3,
            r"must be finite and of the same length, and image_std positive",
        ),
        (
            "preprocessor_config.json",
            "image_std",
            [math.nan] * 3,
            r"must be finite and of the same length, and image_std positive",
        ),
        ("generation_config.json", "decoder_start_token_id", 99, r"decoder_start_token_id is 99, but the decoder has"),
        ("generation_config.json", "forced_bos_token_id", 99999, r"forced_bos_token_id is 99999, but the decoder has"),
        ("generation_config.json", "pad_token_id", -1, r"pad_token_id is -1, but the decoder has"),
    ],
)
def test_settings_of_hosts_are_checked(tmp_path: Path, file: str, field: str, value: Any, message: str) -> None:
    host = write_host(tmp_path / "host")
    path = tmp_path / "host" / file
    path.write_text(json.dumps({**json.loads(path.read_text()), field: value}))
    with pytest.raises(AttngraftError, match=message):
        train(recipe(tmp_path, host), tmp_path / "run", progress=Silent())


def test_images_are_normalized_in_the_channels_of_the_encoder(tmp_path: Path) -> None:
    host = write_host(tmp_path / "host")
    path = tmp_path / "host/preprocessor_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "image_mean": [0.5], "image_std": [0.5]}))
    with pytest.raises(AttngraftError, match=r"image_mean has 1 channels, but the encoder 3; correct"):
        train(recipe(tmp_path, host), tmp_path / "run", progress=Silent())


def test_eval_of_a_host_without_a_tokenizer_is_refused(tmp_path: Path) -> None:
    data = ["--task", "captioning", "--data", write_scenes(tmp_path / "scenes", images=True)]
    assert command("eval", write_host(tmp_path / "host", words=False), "--pretrained", *data) != 0
