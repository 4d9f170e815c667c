"""The reward of self-critical training, training steps of a captioner, and evaluation by beam search.

    python bench/captioning.py --threads 1 --out benchmarks/captioning.json

The reward, CIDEr-D of sampled captions, is timed relative to pycocoevalcap's scorer with known document frequencies and
counted references, if that is installed, and to the plain form; before, it must be that of the plain form. Captions are
random, with few frequent words and many rare ones; half of the words of a sample are those of a reference. Steps of the
meshed-memory captioner of the recipe `tiny-captioning` are timed with grafts relative to without, and self-critical ones
relative to those with cross-entropy, per word.
"""

from __future__ import annotations

import argparse
import copy
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from math import log
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import torch
from steps import grafted
from torch import nn

from attngraft.bench.command import finish, options
from attngraft.bench.result import Measurement, check_outputs, current_setting, measured_once, measurement
from attngraft.tasks.captioning.cider import Frequencies, cider_d
from attngraft.tasks.captioning.reward import CiderReward
from attngraft.tasks.captioning.task import Captioning
from attngraft.tasks.task import StepContext
from attngraft.timing import paired_ratio, several
from attngraft.training.build import build_model, build_task, model_data_config
from attngraft.training.recipe import Recipe, load_recipe

try:
    from pycocoevalcap.cider import cider_scorer
except ImportError:  # only compared with
    cider_scorer = None

REFERENCES = 5
VOCABULARY = 10_000
LENGTHS = (8, 14)
PER_WORD = 3.0  #: bar of a self-critical step per word
GRAFTS = {"horizontal": 1.10, "vertical": 1.10, "horizontal + vertical": 1.20}


def captions(count: int, random: np.random.Generator) -> list[list[int]]:
    """Return random captions; a word of rank r has a probability near 1 / r."""
    lengths = random.integers(*LENGTHS, size=count, endpoint=True)
    return [(VOCABULARY ** random.random(length)).astype(int).tolist() for length in lengths]


def samples(references: list[list[list[int]]], images: np.ndarray, random: np.random.Generator) -> list[list[int]]:
    """Return a caption for each image, whose second half is that of a reference."""
    written = captions(len(images), random)
    return [
        each[: len(each) // 2] + references[image][0][len(each) // 2 :]
        for each, image in zip(written, images, strict=True)
    ]


def scorer(references: list[list[list[int]]], images: np.ndarray, known: Frequencies) -> Callable[[Any], object]:
    """Return a function that scores samples as pycocoevalcap's scorer does, with counted references."""
    counted = [
        [Counter(cider_scorer.precook(" ".join(map(str, each)))) for each in references[image]] for image in images
    ]
    frequencies = Counter({tuple(map(str, gram)): count for gram, count in known.counts.items()})

    def score(samples: list[list[int]]) -> object:
        found = cider_scorer.CiderScorer()
        found.crefs, found.ctest = counted, [cider_scorer.cook_test(" ".join(map(str, each))) for each in samples]
        found.document_frequency = frequencies
        found.ref_len = log(known.documents)
        return found.compute_cider()

    return score


def rewards(arguments: argparse.Namespace) -> list[Measurement]:
    random = np.random.default_rng(0)
    references = [captions(REFERENCES, random) for _ in range(arguments.images)]
    images = random.integers(arguments.images, size=arguments.samples)
    sampled = samples(references, images, random)
    reward, frequencies = CiderReward(references), Frequencies.of(references)
    chosen = [references[image] for image in images]
    check_outputs(
        torch.from_numpy(reward.score(sampled, images)),
        torch.from_numpy(cider_d(sampled, chosen, frequencies=frequencies)),
        what="reward",
        rtol=0,
        atol=1e-12,
    )
    plain = lambda: cider_d(sampled, chosen, frequencies=frequencies)  # noqa: E731
    others: dict[str, Callable[[], object]] = {"the plain form": plain}
    if cider_scorer is not None:
        theirs = scorer(references, images, frequencies)
        others["pycocoevalcap"] = lambda: theirs(sampled)
    return [
        measurement(
            f"CIDEr-D of {arguments.samples} samples, over {name}",
            paired_ratio(other, lambda: reward.score(sampled, images), pairs=arguments.pairs),
            bar=1 / 3,
        )
        for name, other in others.items()
    ]


def write_data(folder: Path, images: int, rows: int, channels: int) -> None:
    """Write images with five captions of frequent words, and features."""
    random, lines = np.random.default_rng(0), []
    with h5py.File(folder / "features.h5", "w") as file:
        for number in range(images):
            file[f"{number}.jpg_features"] = random.normal(size=(rows, channels)).astype(np.float32)
            texts = [" ".join(f"w{word % 600}" for word in caption) for caption in captions(REFERENCES, random)]
            lines.append(f'{{"file_name": "{number}.jpg", "captions": {texts}}}'.replace("'", '"'))
    (folder / "captions_train.jsonl").write_text("\n".join(lines))


def step_of(task: Captioning, model: nn.Module, batch: Any) -> Callable[[], object]:
    optimizer = torch.optim.AdamW(model.train().parameters(), lr=1e-6)
    at = StepContext(seed=0, epoch=0, step=0, model=model)

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        task.step(model, batch, at)["loss"].mean.backward()
        optimizer.step()

    return step


def loaded(recipe: Recipe) -> tuple[Captioning, nn.Module, Any]:
    """Return the task, its model, and a batch of ten images."""
    task = build_task(recipe)
    assert isinstance(task, Captioning)
    data = task.load(model_data_config=model_data_config(recipe))
    torch.manual_seed(0)
    model = build_model(recipe, data.model_args, facts=data.facts)
    return task, model, data.train.collate([data.train[0, index] for index in range(10)])


def steps(folder: Path, arguments: argparse.Namespace) -> list[Measurement]:
    write_data(folder, arguments.captioned, arguments.rows, arguments.channels)
    settings = [f"task.data.source={folder}", "task.vocabulary.min_count=1", *arguments.set]
    task, model, batch = loaded(load_recipe("tiny-captioning", settings))
    critical, _, of_images = loaded(load_recipe("tiny-captioning", [*settings, "task.objective=reward"]))
    words = int((batch["labels"] >= 0).sum())
    sampled = 10 * critical.config.reward.samples * critical.config.max_length
    candidates = {spec: step_of(task, grafted(model, spec), batch) for spec in GRAFTS}
    found = several(
        step_of(task, model, batch),
        {**candidates, "critical": step_of(critical, copy.deepcopy(model), of_images)},
        pairs=arguments.steps,
    )
    result = [
        measurement(f"{spec}: training step over the plain one", found[spec], bar=bar) for spec, bar in GRAFTS.items()
    ]
    result.append(
        measurement(
            f"self-critical step of {sampled:,} sampled words over one with cross-entropy of {words:,}",
            found["critical"],
            bar=PER_WORD * sampled / words,
        )
    )
    val = task.load(model_data_config=model_data_config(load_recipe("tiny-captioning", settings))).val
    examples = [val[0, index % len(val)] for index in range(arguments.evaluated)]
    model.eval()
    with torch.no_grad():
        start = time.perf_counter()
        for first in range(0, len(examples), 50):
            task.infer(model, val.collate(examples[first : first + 50]))
        seconds = time.perf_counter() - start
    name = f"evaluation of {len(examples)} images with a beam of 5"
    return [*result, measured_once(name, seconds, bar=30.0, unit="seconds")]


def main() -> int:
    parser = options("Rewards, training steps and evaluation of captioning.", pairs=30)
    parser.add_argument("--samples", type=int, default=250, help="captions of a batch whose rewards are computed")
    parser.add_argument("--images", type=int, default=2000, help="images with 5 references each, for the rewards")
    parser.add_argument("--captioned", type=int, default=200, help="images for the steps")
    parser.add_argument("--rows", type=int, default=49, help="rows of their features")
    parser.add_argument("--channels", type=int, default=2048, help="channels of their features")
    parser.add_argument("--steps", type=int, default=30, help="pairs of training steps")
    parser.add_argument("--evaluated", type=int, default=100, help="images to evaluate")
    parser.add_argument("--set", action="append", default=[], help="setting of the recipe")
    parser.add_argument("--threads", type=int, default=None, help="CPU threads of torch; torch's own choice by default")
    arguments: argparse.Namespace = parser.parse_args()
    if arguments.threads:
        torch.set_num_threads(arguments.threads)
    setting = current_setting()
    with tempfile.TemporaryDirectory() as folder:
        measurements = [*rewards(arguments), *steps(Path(folder), arguments)]
    names = ("samples", "images", "captioned", "rows", "channels", "pairs", "steps", "evaluated")
    result = setting.result(
        "Rewards, training steps and evaluation of captioning",
        settings={
            **{name: getattr(arguments, name) for name in names},
            "references": REFERENCES,
            "vocabulary": VOCABULARY,
            "lengths": LENGTHS,
        },
        measurements=tuple(measurements),
    )
    return finish(result, out=arguments.out, as_json=arguments.json)


if __name__ == "__main__":
    sys.exit(main())
