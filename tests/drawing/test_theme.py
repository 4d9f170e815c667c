from __future__ import annotations

from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest

from attngraft.drawing.theme import DARK, LIGHT, THEMES, css_themes, variant_styles
from tests.report import studies

#: linear-light simulation of color vision deficiencies at full severity (Machado, Oliveira, Fernandes 2009, table 1)
VISION = {
    "normal": np.eye(3),
    "protanopia": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
    "deuteranopia": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.01182, 0.04294, 0.968881]],
    "tritanopia": [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.3039]],
}
TO_CONES = [[0.41222147, 0.53633254, 0.05144599], [0.2119035, 0.6806995, 0.1073969], [0.0883024, 0.2817188, 0.6299787]]
TO_OKLAB = [[0.2104543, 0.7936178, -0.004072], [1.9779985, -2.4285922, 0.4505937], [0.025904, 0.7827718, -0.8086758]]


def linear(color: str) -> np.ndarray:
    srgb = np.array([int(color[i : i + 2], 16) for i in (1, 3, 5)]) / 255
    return np.where(srgb <= 0.04045, srgb / 12.92, ((srgb + 0.055) / 1.055) ** 2.4)


def contrast(one: str, other: str) -> float:
    weights = [0.2126, 0.7152, 0.0722]
    low, high = sorted((linear(one) @ weights, linear(other) @ weights))
    return (high + 0.05) / (low + 0.05)


def distance(one: str, other: str, vision: str) -> float:
    seen = [np.clip(np.array(VISION[vision]) @ linear(color), 0, 1) for color in (one, other)]
    lab = [np.array(TO_OKLAB) @ np.cbrt(np.array(TO_CONES) @ color) for color in seen]
    return float(np.linalg.norm(lab[0] - lab[1]))


@pytest.mark.parametrize("theme", THEMES, ids=lambda theme: theme.name)
@pytest.mark.parametrize("vision", VISION)
def test_series_stay_apart_for_every_reader(theme, vision):
    colors = (theme.baseline, *theme.series)
    assert min(distance(a, b, vision) for a, b in combinations(colors, 2)) > 0.065


@pytest.mark.parametrize("theme", THEMES, ids=lambda theme: theme.name)
def test_contrasts_reach_wcag(theme):
    assert min(contrast(color, theme.surface) for color in (theme.baseline, *theme.series)) >= 3
    assert (
        min(contrast(c, theme.surface) for c in (theme.ink, theme.muted, theme.better, theme.worse, theme.noise)) >= 4.5
    )


def test_themes_name_the_same_roles_with_distinct_colors():
    assert len({tuple(theme.colors) for theme in THEMES}) == 1
    assert len(set(LIGHT.colors.values())) == len(LIGHT.colors)


def test_styles_of_variants_are_unique_and_stable():
    study = studies.usual()
    many = replace(study, variants=[study.variants[0], *(replace(study.variants[1], name=str(i)) for i in range(24))])
    found = variant_styles(many)
    assert found[0].role == "baseline"
    assert len({(style.role, style.marker, style.dashed) for style in found}) == len(found)
    assert variant_styles(study)[:3] == found[:3]


def test_both_themes_declare_the_same_variables():
    themes = css_themes()
    assert set(themes) == {"light", "dark"}
    assert f"--surface: {LIGHT.surface};" in themes["light"]
    assert f"--surface: {DARK.surface};" in themes["dark"]
    names = [[part.partition(":")[0] for part in text.split("; ")] for text in themes.values()]
    assert names[0] == names[1]
