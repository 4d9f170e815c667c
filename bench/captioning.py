"""The reward of self-critical training, CIDEr-D of sampled captions.

    python bench/captioning.py --threads 1 --out benchmarks/captioning.json

Relative to the plain form with known document frequencies, whose references are weighted for each sample. Captions are
random, with few frequent words and many rare ones; half of the words of a sample are those of a reference. Before timing,
both must give the same rewards.
"""

from __future__ import annotations

import argparse
import sys

import numpy as np
import torch

from attngraft.bench.command import finish, options
from attngraft.bench.result import check_outputs, current_setting, measurement
from attngraft.tasks.captioning.cider import Frequencies, cider_d
from attngraft.tasks.captioning.reward import CiderReward
from attngraft.timing import paired_ratio

REFERENCES = 5
VOCABULARY = 10_000
LENGTHS = (8, 14)


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


def main() -> int:
    parser = options("The reward of self-critical training.", pairs=30)
    parser.add_argument("--samples", type=int, default=250, help="captions of a batch")
    parser.add_argument("--images", type=int, default=2000, help="training images, with 5 references each")
    parser.add_argument("--threads", type=int, default=None, help="CPU threads of torch; torch's own choice by default")
    arguments: argparse.Namespace = parser.parse_args()
    if arguments.threads:
        torch.set_num_threads(arguments.threads)
    setting, random = current_setting(), np.random.default_rng(0)
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
    ratio = paired_ratio(
        lambda: cider_d(sampled, chosen, frequencies=frequencies),
        lambda: reward.score(sampled, images),
        pairs=arguments.pairs,
    )
    result = setting.result(
        "Reward of self-critical training",
        settings={
            "samples": arguments.samples,
            "images": arguments.images,
            "references": REFERENCES,
            "vocabulary": VOCABULARY,
            "lengths": LENGTHS,
            "pairs": arguments.pairs,
        },
        measurements=(measurement(f"CIDEr-D of {arguments.samples} samples, over the plain form", ratio, bar=1 / 3),),
    )
    return finish(result, out=arguments.out, as_json=arguments.json)


if __name__ == "__main__":
    sys.exit(main())
