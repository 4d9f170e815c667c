from __future__ import annotations

import io
import math
from dataclasses import replace
from itertools import pairwise
from xml.etree import ElementTree

import numpy as np
import pytest
from PIL import Image

from attngraft.drawing.sheet import inline_svg
from attngraft.drawing.theme import LIGHT, THEMES
from attngraft.report.differences import difference_range
from attngraft.report.figures import (
    FILES,
    band,
    curve_bands,
    difference_bands,
    drawn_text,
    drawn_variants,
    plot_files,
    study_figures,
)
from attngraft.results import wording
from attngraft.results.study import Interval
from attngraft.results.wording import minus
from tests.report import studies
from tests.slow import slow_but

SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture(scope="module")
def usual_files() -> dict[str, bytes]:
    return plot_files(studies.usual())


def test_every_figure_is_there_in_both_formats_and_themes(usual_files):
    assert set(usual_files) == FILES


def test_plots_show_something_on_their_theme(usual_files):
    for name, content in usual_files.items():
        if not name.endswith(".png"):
            continue
        pixels = np.asarray(Image.open(io.BytesIO(content)).convert("RGB"))
        theme = THEMES[1] if "-dark" in name else THEMES[0]
        assert "#{:02x}{:02x}{:02x}".format(*pixels[0, 0]) == theme.surface
        flat = pixels.reshape(-1, 3).astype(np.int64) @ [65536, 256, 1]
        assert (flat != flat[0]).mean() > 0.01
        assert len(np.unique(flat)) > 50


@pytest.mark.slow
def test_drawn_twice_is_the_same_bytes(usual_files):
    assert plot_files(studies.usual()) == usual_files


def test_svg_files_stand_alone(usual_files):
    for name, content in usual_files.items():
        if name.endswith(".svg"):
            root = ElementTree.fromstring(content)
            assert root.tag == f"{SVG}svg"
            assert not list(root.iter(f"{SVG}image"))


@pytest.mark.parametrize(
    ("study", "names"),
    [
        (studies.only_baseline(), ["curves"]),
        (studies.without_costs(), ["differences", "curves", "epochs", "cost"]),
        (studies.one_seed(), ["differences", "curves", "epochs", "cost", "cost-more"]),
        (studies.translation(), ["differences", "curves", "epochs", "cost", "cost-more"]),
    ],
)
def test_only_figures_with_data_are_drawn(study, names):
    assert list(study_figures(study)) == names


@pytest.mark.parametrize("name", slow_but(["with_hostile_names", "with_failed_runs"], "with_hostile_names"))
def test_odd_studies_are_drawn(name):
    assert all(len(content) > 4000 for content in plot_files(studies.ALL[name]()).values())


def test_twenty_variants_have_room_for_their_names():
    study = studies.usual()
    many = [study.variants[0], *(replace(study.variants[1 + i % 4], name=f"variant {i}") for i in range(19))]
    drawing = study_figures(replace(study, variants=many))["curves"][0]
    texts = ElementTree.fromstring(inline_svg(drawing)).iter("text")
    heights = sorted(float(each.get("y")) for each in texts if (each.text or "").startswith("variant"))
    assert len(heights) == 19
    assert min(b - a for a, b in pairwise(heights)) > 12


def test_of_many_variants_the_best_are_drawn():
    study = studies.usual()
    metric, template = study.metric, study.variants[1]
    many = [study.variants[0]]
    for i in range(30):
        mean = replace(template.last[metric], mean=0.01 * i)
        many.append(replace(template, name=f"variant {i}", last={**template.last, metric: mean}))
    study = replace(study, variants=many)
    assert drawn_variants(study) == [0, *range(12, 31)]
    assert drawn_text(study) == "Drawn are the baseline and the 19 best of 30 other variants."
    curves, *_ = study_figures(study)["curves"]
    assert "variant 11" in curves.alt and "variant 10" not in curves.alt
    assert "variant 10" in study_figures(study)["differences"][0].alt
    lower = replace(study, higher_is_better=False)
    assert drawn_variants(lower) == list(range(20))
    assert drawn_text(studies.usual()) == ""


def test_descriptions_hold_the_numbers():
    alts = {drawing.name: drawing.alt for panels in study_figures(studies.usual()).values() for drawing in panels}
    assert "cb_s: +1.51 points" in alts["forest"] and "better" in alts["forest"]
    assert "vertical 59.24" in alts["metric"]
    assert "horizontal 1.0011×, 61.23" in alts["cost-macs"]


def test_parts_of_drawings_have_values_on_hover():
    panels = [drawing for drawings in study_figures(studies.usual()).values() for drawing in drawings if drawing.titles]
    assert {drawing.name for drawing in panels} >= {"forest", "epochs", "cost-macs"}
    for drawing in panels:
        titles = [each.text for each in ElementTree.fromstring(str(inline_svg(drawing))).iter("title")]
        assert titles == [minus(text) for text in drawing.titles.values()]


def test_inline_takes_the_pages_colors_and_reaches_nothing_else():
    study = studies.with_hostile_names()
    (drawing,) = study_figures(study)["differences"]
    text = str(inline_svg(drawing))
    root = ElementTree.fromstring(text)
    assert root.get("aria-label") == minus(drawing.alt)
    assert "var(--series-0)" in text and "var(--ink)" in text
    assert not any(color in text for color in LIGHT.colors.values())
    assert "<style" not in text and "http" not in text and "<script" not in text
    ids = [element.get("id") for element in root.iter() if element.get("id")]
    assert len(set(ids)) == len(ids) and all(each.startswith("forest-") for each in ids)
    referenced = {part.split(")")[0] for part in text.split("url(#")[1:]}
    assert referenced <= set(ids)
    assert any("<script>aler" in (element.text or "") for element in root.iter("text"))


# --- bands of curves -------------------------------------------------------------------------------------------------


def test_a_band_is_mean_and_range_over_the_seeds_that_have_the_epoch():
    found = band([{1.0: 2.0, 2.0: 4.0}, {1.0: 4.0}, {1.0: math.nan}])
    assert found.epochs == [1.0, 2.0]
    assert found.mean == [3.0, 4.0]
    assert (found.low, found.high) == ([2.0, 4.0], [4.0, 4.0])


def test_without_values_there_is_no_band():
    assert band([]) is None
    assert band([{1.0: math.inf}]) is None
    assert curve_bands(studies.usual(), "val/unknown") == [None] * 5


def test_differences_are_paired_by_seed():
    study = studies.usual()
    none, *grafted = difference_bands(study, "val/top1")
    assert none is None
    for variant, found in zip(study.variants[1:], grafted, strict=True):
        assert found.mean[-1] == pytest.approx(variant.difference.mean)
        assert found.low[-1] <= found.mean[-1] <= found.high[-1]


def test_a_variant_without_runs_has_no_band():
    assert difference_bands(studies.with_failed_runs(), "val/top1")[-1] is None


# --- the range of differences ----------------------------------------------------------------------------------------


def test_the_range_holds_zero_the_points_and_the_intervals():
    for make in studies.ALL.values():
        study = make()
        low, high = difference_range(study)
        assert low < 0 < high
        for variant in study.variants:
            if variant.difference is not None:
                interval = wording.deciding_interval(variant.difference)
                assert low < interval.low <= interval.high < high


def test_a_boundless_interval_does_not_squeeze_the_rest():
    study = studies.usual()
    found = study.variants[1]
    wide = replace(found.difference, interval=Interval(point=0.0, low=-9.0, high=9.0))
    low, high = difference_range(replace(study, variants=[study.variants[0], replace(found, difference=wide)]))
    assert high - low < 0.1


def test_no_difference_at_all_still_has_a_range():
    study = studies.usual()
    nothing = Interval(point=0.0, low=0.0, high=0.0)
    zero = replace(study.variants[1].difference, mean=0.0, bootstrap=nothing, t=nothing, interval=nothing)
    low, high = difference_range(replace(study, variants=[replace(study.variants[1], difference=zero)]))
    assert low < 0 < high
