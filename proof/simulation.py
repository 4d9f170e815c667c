"""Predictions of simulated studies with an exactly known true difference.

Score of arm a (0 baseline, 1, ... variants), seed s, image i:

    1 if mu_a + d_i + g_ai + u_s + w_as + e_si + r_asi > 0, else 0

All terms are independent, normal and crossed: `image` d (difficulty of the image), `image_by_arm` g (difficulty of the
image for one arm), `seed` u (a good initialization, shared by both arms), `run` w (a good run), `shared` e (effect of
initialization and batches on single images, shared by both arms), and the rest r, which completes the variance to 1. So the
accuracy of arm a over all seeds and images is Phi(mu_a), and the true difference needs no simulation.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from scipy import stats


@dataclass(frozen=True, kw_only=True)
class Setting:
    """One kind of study. `image` to `shared` are shares of the variance."""

    name: str
    accuracy: tuple[float, ...]  #: baseline's, then each variant's
    images: int
    image: float
    image_by_arm: float
    seed: float
    run: float
    shared: float

    @property
    def rest(self) -> float:
        return 1 - self.image - self.image_by_arm - self.seed - self.run - self.shared

    @property
    def difference(self) -> float:
        """True difference of the first variant over all seeds and images, which the bootstrap interval should contain."""
        return self.accuracy[1] - self.accuracy[0]


SETTINGS = (
    Setting(
        name="little noise between seeds",
        accuracy=(0.9, 0.9),
        images=1000,
        image=0.7,
        image_by_arm=0,
        seed=0.002,
        run=0.002,
        shared=0.1,
    ),
    Setting(
        name="much noise between seeds",
        accuracy=(0.8, 0.8),
        images=1000,
        image=0.6,
        image_by_arm=0,
        seed=0.02,
        run=0.02,
        shared=0.1,
    ),
    Setting(
        name="images differ in difficulty between variants",
        accuracy=(0.75, 0.75),
        images=500,
        image=0.5,
        image_by_arm=0.15,
        seed=0.005,
        run=0.005,
        shared=0.1,
    ),
    Setting(
        name="a difference of 3 points",
        accuracy=(0.8, 0.83),
        images=300,
        image=0.6,
        image_by_arm=0.05,
        seed=0.005,
        run=0.005,
        shared=0.1,
    ),
    Setting(
        name="few images, few errors",
        accuracy=(0.97, 0.97),
        images=200,
        image=0.7,
        image_by_arm=0.05,
        seed=0.005,
        run=0.005,
        shared=0.05,
    ),
)


@dataclass(frozen=True, kw_only=True)
class Study:
    """Scores of one simulated study, (seeds, images) per arm, and its two true differences."""

    baseline: np.ndarray
    variant: np.ndarray
    difference: float  #: over all seeds and all images
    on_these_images: float  #: over all seeds, on the images of this study, which the t-interval should contain


def simulate(setting: Setting, *, seeds: int, generator: np.random.Generator) -> Study:
    """Simulate a study of `seeds` paired seeds with one variant."""
    scores, of_image = simulate_scores(setting, seeds=seeds, generator=generator)
    chance = stats.norm.cdf(of_image / (setting.seed + setting.run + setting.shared + setting.rest) ** 0.5)
    return Study(
        baseline=scores[0],
        variant=scores[1],
        difference=setting.difference,
        on_these_images=float(chance[1].mean() - chance[0].mean()),
    )


def simulate_scores(setting: Setting, *, seeds: int, generator: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Return the scores of all arms, (arms, seeds, images), and their latent means, (arms, images)."""
    arms = len(setting.accuracy)

    def normal(share: float, *shape: int) -> np.ndarray:
        return generator.normal(0, share**0.5, shape)

    mean = stats.norm.ppf(np.array(setting.accuracy))[:, None]
    of_image = mean + normal(setting.image, 1, setting.images) + normal(setting.image_by_arm, arms, setting.images)
    of_seed = (
        normal(setting.seed, 1, seeds, 1)
        + normal(setting.run, arms, seeds, 1)
        + normal(setting.shared, 1, seeds, setting.images)
        + normal(setting.rest, arms, seeds, setting.images)
    )
    return (of_image[:, None, :] + of_seed > 0).astype(float), of_image


def equal_models(
    *, images: int, studies: int, generator: np.random.Generator
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield scores (images,) of two models of exactly equal accuracy, for each study.

    Accuracy and agreement vary between studies. There is no variation between runs, because McNemar's test compares two
    given models.
    """
    for _ in range(studies):
        accuracy, agreement = generator.uniform(0.5, 0.98), generator.uniform(0.0, 0.95)
        common = generator.normal(0, agreement**0.5, (1, images))
        own = generator.normal(0, (1 - agreement) ** 0.5, (2, images))
        first, second = (stats.norm.ppf(accuracy) + common + own > 0).astype(float)
        yield first, second
