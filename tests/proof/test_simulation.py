"""Simulated predictions have the truth that they claim."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from proof.simulation import SETTINGS, Setting, equal_models, simulate


@pytest.mark.parametrize("setting", SETTINGS, ids=lambda setting: setting.name)
def test_shares_fill_the_variance(setting: Setting) -> None:
    assert 0 < setting.rest < 1
    assert min(setting.image, setting.image_by_arm, setting.seed, setting.run, setting.shared) >= 0


@pytest.mark.parametrize("setting", SETTINGS, ids=lambda setting: setting.name)
def test_means_over_many_studies_are_the_truth(setting: Setting) -> None:
    generator = np.random.default_rng(0)
    studies = [simulate(setting, seeds=3, generator=generator) for _ in range(200)]
    for arm, accuracy in zip(("baseline", "variant"), setting.accuracy, strict=True):
        found = np.array([getattr(study, arm).mean() for study in studies])
        assert abs(found.mean() - accuracy) < 4 * found.std(ddof=1) / 200**0.5
    left = np.array([(s.variant - s.baseline).mean() - s.on_these_images for s in studies])
    assert abs(left.mean()) < 4 * left.std(ddof=1) / 200**0.5, "what seeds add has mean 0 on the images of a study"
    assert studies[0].difference == setting.accuracy[1] - setting.accuracy[0]


def test_truth_on_these_images_by_many_seeds() -> None:
    """One study's images with thousands of seeds: their mean difference is the truth that it states."""
    found = simulate(SETTINGS[2], seeds=4000, generator=np.random.default_rng(1))
    by_seed = (found.variant - found.baseline).mean(axis=1)
    assert abs(by_seed.mean() - found.on_these_images) < 4 * by_seed.std(ddof=1) / 4000**0.5
    assert abs(found.on_these_images) > 1e-4


def test_equal_models_are_equal_and_not_independent() -> None:
    pairs = list(equal_models(images=400, studies=300, generator=np.random.default_rng(2)))
    differences = np.array([second.mean() - first.mean() for first, second in pairs])
    assert abs(differences.mean()) < 4 * differences.std(ddof=1) / 300**0.5
    agreement = np.mean([np.corrcoef(first, second)[0, 1] for first, second in pairs])
    assert 0.2 < agreement < 0.7
    assert stats.wilcoxon(differences).pvalue > 0.001
