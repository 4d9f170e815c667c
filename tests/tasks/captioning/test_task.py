"""The captioning task: both losses, inference, floors, stages and messages."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import h5py
import numpy as np
import pytest
import torch
from torch import Tensor, nn

from attngraft.errors import AttngraftError, DataError
from attngraft.export.predict import open_model
from attngraft.results.records import RecordTable
from attngraft.tasks.captioning.cider import Frequencies, cider_d
from attngraft.tasks.captioning.codec import CaptioningCodec, without_repeats
from attngraft.tasks.captioning.encoder import EncoderConfig, create_encoder
from attngraft.tasks.captioning.extraction import write_features
from attngraft.tasks.captioning.features import REGIONS, as_attribute, described
from attngraft.tasks.captioning.task import Captioning
from attngraft.tasks.captioning.vocabulary import BOS, EOS, PAD, UNK, Vocabulary, ids_of_captions, words_of
from attngraft.tasks.task import StepContext
from attngraft.training.loop import train
from attngraft.training.progress import Silent
from attngraft.training.recipe import Recipe, recipe_from_dict, recipe_to_dict
from tests.contract.task_contract import Broken, Loaded
from tests.tasks.captioning.scenes import HOST, captions, section, write_scenes
from tests.tasks.captioning.test_contract import TINY_VIT
from tests.training.toys import assert_same_outcome, final_state, metric_rows

REWARD = {"name": "reward", "epochs": 1, "lr": 1e-4, "optimizer": "fresh", "start": "best"}


def recipe(folder: Path, *, train: dict[str, Any] | None = None, **fields: Any) -> Recipe:
    stages = fields.pop("stages", [])
    return recipe_from_dict(
        {
            "host": HOST,
            "task": section(folder / "scenes", **fields),
            "optimizer": {"lr": 3e-3},
            "schedule": {"epochs": sum(each["epochs"] for each in stages) or 1, "warmup_epochs": 0},
            "train": {"threads": 1, "batch_size": 6, "outputs": True, **(train or {})},
            "stages": stages,
        }
    )


def loaded_by(folder: Path, **fields: Any) -> tuple[Loaded, Captioning]:
    loaded = Loaded(recipe(folder, **fields))
    assert isinstance(loaded.task, Captioning)
    return loaded, loaded.task


def training_batch(loaded: Loaded, *indices: int) -> Any:
    return loaded.data.train.collate([loaded.data.train[0, index] for index in indices])


def test_cross_entropy_is_the_mean_over_words_and_ends(tmp_path: Path) -> None:
    loaded, task = loaded_by(tmp_path)
    batch, model = training_batch(loaded, 0, 4, 7), loaded.model
    loss = task.step(model, batch, StepContext(seed=0, epoch=0, step=0, model=model))["loss"].mean
    scores = model(batch["inputs"], batch["input_ids"]).log_softmax(-1)
    known = batch["labels"] >= 0
    expected = -scores[known].gather(1, batch["labels"][known][:, None]).mean()
    torch.testing.assert_close(loss, expected)
    assert task.weights(batch) == {"loss": float(known.sum())}


@pytest.mark.parametrize("draw", ["beam", "multinomial"])
def test_rewards_are_cider_d_of_training_captions(tmp_path: Path, draw: str) -> None:
    loaded, task = loaded_by(tmp_path, objective="reward", reward={"draw": draw, "samples": 4})
    batch = training_batch(loaded, 3, 9)
    sampled, rewards = task._sample(StepContext(seed=0, epoch=0, step=0, model=loaded.model), batch)
    vocabulary = task._tokens
    assert isinstance(vocabulary, Vocabulary) and sampled.shape[:2] == rewards.shape == (2, 4)
    written = [vocabulary.decode(ids).split() for ids in sampled.flatten(0, 1).tolist()]
    train = [[words_of(text) for text in captions(number)] for number in range(20)]
    expected = cider_d(written, [train[3]] * 4 + [train[9]] * 4, frequencies=Frequencies.of(train))
    np.testing.assert_allclose(rewards.flatten().numpy(), expected, atol=1e-12)
    again, _ = task._sample(StepContext(seed=0, epoch=0, step=5, model=loaded.model), batch)
    other, _ = task._sample(StepContext(seed=1, epoch=0, step=0, model=loaded.model), batch)
    assert torch.equal(sampled, again)
    assert torch.equal(sampled, other) == (draw == "beam")


def test_unknown_words_are_never_rewarded(tmp_path: Path) -> None:
    loaded, task = loaded_by(tmp_path, objective="reward", vocabulary={"min_count": 10, "validation": False})
    assert task._tokens is not None and UNK in task._tokens.encode(captions(5)[0])
    assert task._rewards().score([[UNK] * 3, [UNK]], [5, 5]).tolist() == [0, 0]
    assert loaded.data.model_args["vocab_size"] == len(task._tokens)


@pytest.mark.parametrize("baseline", ["leave_one_out", "mean"])
def test_the_gradient_is_that_of_the_expected_reward(
    tmp_path: Path, baseline: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Over all pairs of captions of up to 2 words, weighted by their probability; the mean as baseline halves it."""
    folder = write_scenes(tmp_path / "scenes", train=4, val=2)
    written = [["up down"], ["up up down", "down", "up"], ["down"], ["left"]]
    lines = [json.dumps({"file_name": f"{number}.png", "captions": each}) for number, each in enumerate(written)]
    (folder / "captions_train.jsonl").write_text("\n".join(lines))
    fields = {"vocabulary": {"min_count": 2, "validation": False}, "max_length": 2}
    loaded, task = loaded_by(
        tmp_path, objective="reward", reward={"samples": 2, "draw": "multinomial", "baseline": baseline}, **fields
    )
    model = loaded.model.double()
    words = loaded.data.model_args["vocab_size"]
    assert words == 6
    every = [each for each in product(range(words), repeat=2) if each[0] != EOS or each[1] == PAD]
    all_captions = torch.tensor(every)
    rewards = torch.from_numpy(task._rewards().score(ids_of_captions(all_captions), [1] * len(every)))
    assert len(rewards.unique()) > 3
    inputs = training_batch(loaded, 1)["inputs"].double()

    def log_probabilities() -> Tensor:
        ids = torch.cat([torch.full((len(every), 1), BOS), all_captions[:, :1]], dim=1)
        scores = model(inputs, ids).log_softmax(-1).gather(2, all_captions[..., None])[..., 0]
        return scores[:, 0] + torch.where(all_captions[:, 0] == EOS, 0.0, scores[:, 1])

    pairs = torch.cartesian_prod(torch.arange(len(every)), torch.arange(len(every)))
    with torch.no_grad():
        probability = log_probabilities().exp()
    assert probability.sum() == pytest.approx(1)
    weights = probability[pairs].prod(dim=1) * len(pairs)
    advantages = task._advantages
    monkeypatch.setattr(task, "_sample", lambda at, batch: (all_captions[pairs], rewards[pairs]))
    monkeypatch.setattr(task, "_advantages", lambda given: advantages(given) * weights[:, None])
    batch = {"inputs": inputs.expand(len(pairs), -1, -1)}
    losses = task.step(model, batch, StepContext(seed=0, epoch=0, step=0, model=model))
    assert not losses["reward"].trained
    parameters = [each for each in model.parameters() if each.requires_grad]
    gradients = torch.autograd.grad(losses["loss"].mean, parameters)
    random = torch.Generator().manual_seed(0)
    direction = [torch.randn(each.shape, dtype=each.dtype, generator=random) for each in parameters]
    found = sum(float((one * other).sum()) for one, other in zip(gradients, direction, strict=True))

    def expected_reward(step: float) -> float:
        with torch.no_grad():
            torch._foreach_add_(parameters, direction, alpha=step)
            value = float((log_probabilities().exp() * rewards).sum())
            torch._foreach_add_(parameters, direction, alpha=-step)
        return value

    slope = (expected_reward(1e-5) - expected_reward(-1e-5)) / 2e-5
    share = 1.0 if baseline == "leave_one_out" else 0.5
    assert abs(slope) > 1e-4
    assert -2 * found == pytest.approx(share * slope, rel=1e-4)


def stages(*, epochs: int = 1) -> list[dict[str, Any]]:
    reward = {"samples": 3, "draw": "multinomial"}
    return [{"name": "words", "epochs": epochs}, {**REWARD, "task": {"objective": "reward", "reward": reward}}]


@pytest.mark.parametrize("stop", [3, 12])
def test_training_resumes_across_the_switch(tmp_path: Path, stop: int) -> None:
    """Cross-entropy has 10 updates, self-critical training 4."""

    class Stopped(Broken):
        def on_step(self, *, step: int, epoch: int, loss: float, lr: float) -> None:
            if step == stop:
                raise RuntimeError("pulled the plug")

    given = recipe(tmp_path, stages=stages(), train={"save_every": 2})
    train(given, tmp_path / "whole", progress=Silent())
    with pytest.raises(RuntimeError, match="pulled the plug"):
        train(given, tmp_path / "broken", progress=Stopped())
    assert train(given, tmp_path / "broken", progress=Silent()).finished
    assert_same_outcome(tmp_path / "whole", tmp_path / "broken")
    rows = metric_rows(tmp_path / "whole")
    assert "train/reward" in rows[-1] and "train/reward" not in rows[0]


@pytest.mark.slow
def test_a_few_images_are_learned_by_heart(tmp_path: Path) -> None:
    """Scenes 35 and following are those from 0 on again."""
    write_scenes(tmp_path / "scenes", train=35, val=20)
    given = recipe(tmp_path, examples="images", train={"batch_size": 7, "eval_every": 400, "outputs": False})
    train(with_epochs(given, 80), tmp_path / "run", progress=Silent())
    last = metric_rows(tmp_path / "run")[-1]
    assert last["val/cider"] > 300 and last["val/bleu1"] > 60


def with_epochs(given: Recipe, epochs: int) -> Recipe:
    return replace(given, schedule=replace(given.schedule, epochs=epochs))


def test_grids_and_regions_give_the_same_model(tmp_path: Path) -> None:
    for name in ("regions", "grid"):
        write_scenes(tmp_path / name / "scenes")
    with h5py.File(tmp_path / "grid/scenes/features.h5", "r+") as file:
        facts = {**described(EncoderConfig(name="resnet18")), "digest": "0"}
        file.attrs.update({name: as_attribute(value) for name, value in facts.items()})
    for name in ("regions", "grid"):
        train(recipe(tmp_path / name), tmp_path / name / "run", progress=Silent())
    one, other = (final_state(tmp_path / name / "run")["model"] for name in ("regions", "grid"))
    assert all(torch.equal(one[name], other[name]) for name in one)


def test_images_are_predicted_as_in_training(tmp_path: Path) -> None:
    """Features of `attngraft features`, then images alone."""
    folder = write_scenes(tmp_path / "scenes", images=True)
    (folder / "features.h5").unlink()
    config = EncoderConfig(**TINY_VIT)
    files = {f"{number}.png": folder / "images" / f"{number}.png" for number in range(29)}
    assert write_features(config, files, folder / "features.h5") == (29, 0)
    record = train(recipe(tmp_path, decoding={"beams": 1}), tmp_path / "run", progress=Silent())
    assert any("an untrained model" in note for note in record.facts["notes"])
    predictor = open_model(tmp_path / "run", device="cpu")
    found = [each.value for each in predictor([str(folder / f"images/{number}.png") for number in range(20, 23)])]
    with np.load(tmp_path / "run/predictions.npz") as saved:
        assert saved["caption"][:3].tolist() == found
    with torch.no_grad():
        encoder = create_encoder(config).eval()
        assert encoder.digest() == record.facts["input"]["encoder_digest"]


def test_an_encoder_of_other_features_is_not_created() -> None:
    config = EncoderConfig(**{**TINY_VIT, "args": {**TINY_VIT["args"], "embed_dim": 2**17}})
    codec = CaptioningCodec(Mock(), Mock(), given=None, encoder=config, digest="", rows=4, channels=12)
    with pytest.raises(DataError, match="it has 131,072 channels, and the features of training have 12; restore them"):
        _ = codec.encoder


@pytest.mark.parametrize(
    ("array", "message"),
    [
        (np.ones((3, 5), np.float32), r"must have finite floats \(regions, 12\), not float32 \(3, 5\)"),
        (np.full((3, 12), np.nan, np.float32), "must have finite floats"),
        (np.zeros((3, 12), np.float32), "must have finite floats"),
        (np.full((3, 12), 1e300), "must have finite floats"),
        (np.full((3, 12), 3e38, np.float32), "must have finite floats"),
        (np.ones((3, 12), np.int64), "not int64"),
        (np.array([None]), "cannot be read as .npy"),
    ],
)
def test_wrong_inputs_of_predictions_are_named(tmp_path: Path, array: np.ndarray, message: str) -> None:
    loaded, task = loaded_by(tmp_path)
    codec = task.codec(loaded.data.facts, model_data_config={})
    np.save(tmp_path / "x.npy", array, allow_pickle=True)
    with pytest.raises(AttngraftError, match=message):
        codec.check(str(tmp_path / "x.npy"))
    write_scenes(tmp_path / "images", images=True)
    with pytest.raises(AttngraftError, match=r"features of another model, such as a detector; give each image's"):
        codec.check(str(tmp_path / "images/images/0.png"))


def test_regions_are_cut_as_in_training(tmp_path: Path) -> None:
    loaded, task = loaded_by(tmp_path)
    np.save(tmp_path / "x.npy", np.ones((60, 12), np.float32))
    (inputs,), _ = task.codec(loaded.data.facts, model_data_config={}).encode([str(tmp_path / "x.npy")])
    assert inputs.shape == (1, REGIONS, 12)


@pytest.mark.parametrize("words", [None, ["dog", "a"]])
def test_models_require_the_vocabulary_of_training(tmp_path: Path, words: list[str] | None) -> None:
    loaded, task = loaded_by(tmp_path)
    task._tokens = None if words is None else Vocabulary(words)
    with pytest.raises(DataError, match=r"the run's vocabulary \(fitted in its folder\) is missing or was changed"):
        task.codec(loaded.data.facts, model_data_config={})


def test_light_inference_is_greedy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    loaded, task = loaded_by(tmp_path)
    called: list[dict[str, Any]] = []
    generate = loaded.model.generate

    def spied(*args: Any, **options: Any) -> Any:
        called.append(options)
        return generate(*args, **options)  # type: ignore[operator]

    monkeypatch.setattr(loaded.model, "generate", spied)
    for full in (True, False):
        task.infer(loaded.model, loaded.batch(range(3)), full=full)
    assert [each["num_beams"] for each in called] == [3, 1]
    assert {each["max_new_tokens"] for each in called} == {8}


def test_equal_words_in_a_row_are_one() -> None:
    assert without_repeats(["a", "a", "dog", "a", "dog", "dog"]) == ["a", "dog", "a", "dog"]


def test_chance_the_plateau_and_the_report(tmp_path: Path) -> None:
    loaded, task = loaded_by(tmp_path)
    facts, records = loaded.data.facts, loaded.infer(range(9))
    table = RecordTable(names=np.arange(9).astype(str), columns={**records.statistics, **records.outputs})
    chance = task.chance(table, facts)
    assert chance is not None and facts["constant_caption"] in chance.description
    assert chance.values.keys() == task.measure(table, facts).values.keys()
    assert chance.values["loss"] == facts["unigram"]["val"] > 0
    assert "frequencies of words" in task.training_note({"loss": chance.values["loss"]}, facts)
    assert not task.training_note({"loss": 0.5 * chance.values["loss"]}, facts)
    metrics, texts = task.sections([table, table], facts=facts)
    assert metrics.table is not None and texts.table is not None
    assert [row[0] for row in metrics.table.rows] == ["BLEU-1", "BLEU-4", "ROUGE-L", "CIDEr-D"]
    assert [column.name for column in metrics.table.columns][2:] == ["constant caption", "random caption", "human"]
    assert "METEOR" in metrics.note and len(texts.table.rows) == 9
    assert captions(20)[0] in str(texts.table.rows[0][1])
    [only] = task.sections([records.statistics], facts=facts)
    assert "set train.outputs=true" in only.note


def test_hosts_that_write_no_captions_are_refused(tmp_path: Path) -> None:
    given = recipe(tmp_path)
    other = recipe_from_dict({**recipe_to_dict(given), "host": {"name": "vit_tiny_patch16_224"}})
    with pytest.raises(AttngraftError, match="m2_transformer"):
        train(other, tmp_path / "run", progress=Silent())


def test_a_frozen_encoder_stays_as_it_is(tmp_path: Path) -> None:
    write_scenes(tmp_path / "scenes", images=True)
    train(recipe(tmp_path, encoder=TINY_VIT), tmp_path / "run", progress=Silent())
    state = final_state(tmp_path / "run")["model"]
    encoder: nn.Module = create_encoder(EncoderConfig(**TINY_VIT))
    for name, value in encoder.state_dict().items():
        assert torch.equal(state[f"encoder.{name}"], value)
