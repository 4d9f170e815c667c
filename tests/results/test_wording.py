from __future__ import annotations

import math
from dataclasses import replace

import pytest

from attngraft.results import wording
from attngraft.results.study import Interval, Spread
from tests.report import studies


def test_shares_are_written_in_percent_and_differences_in_points():
    style = wording.metric_format(studies.usual())
    assert (style.unit, style.points, style.scale) == ("%", "points", 100.0)
    assert style.value(0.61234) == "61.23"
    assert style.change(-0.0123) == "-1.23"
    assert style.interval(Interval(point=0.0, low=-0.01, high=0.02)) == "-1.00 to +2.00"
    assert style.column == "top-1 %"


def test_a_metric_in_percent_already_is_not_multiplied():
    study = studies.usual()
    base = study.variants[0]
    runs = [replace(run, last={"top1": 61.0}, best={"top1": 61.0}) for run in base.runs]
    style = wording.metric_format(replace(study, variants=[replace(base, runs=runs)]))
    assert style.value(61.0) == "61.00"


def test_any_other_metric_keeps_its_size_and_four_digits():
    study = studies.translation()
    assert wording.metric_format(study).value(15.5512) == "15.55"
    assert wording.metric_format(study).points == ""
    assert wording.metric_format(study, "never seen").value(0.5) == "0.500"


def test_the_moving_average_is_named():
    style = wording.metric_format(studies.usual(), "ema/top1")
    assert style.column == "EMA top-1 %"
    assert style.label == "top-1 accuracy of the moving average"


@pytest.mark.parametrize("number", [None, math.nan, math.inf])
def test_what_is_no_number_is_said(number):
    style = wording.metric_format(studies.usual())
    said = [style.value(number), style.change(number), wording.ratio(number), wording.p_value(number)]
    said += [wording.si(number), wording.duration(number), wording.spread_text(number, 0.1, style)]
    assert set(said) == {wording.ABSENT}


def test_a_difference_that_rounds_to_zero_has_no_sign():
    style = wording.metric_format(studies.usual())
    assert style.change(-0.00001) == "0.00"
    assert style.change(0.0) == "0.00"


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        (wording.ratio(1.0), "1.00×"),
        (wording.ratio(1.0004), "1.00×"),
        (wording.ratio(1.0004, exact=True), "1.0004×"),
        (wording.ratio(1.083, exact=True), "1.08×"),
        (wording.p_value(0.0004), "<0.001"),
        (wording.p_value(0.0421), "0.042"),
        (wording.p_value(0.421), "0.42"),
        (wording.si(5_717_416), "5.72M"),
        (wording.si(172_441_088), "172M"),
        (wording.si(960), "960"),
        (wording.size(412 * 2**20), "412.0 MiB"),
        (wording.duration(0.0387), "38.7 ms"),
        (wording.duration(75), "1 min 15 s"),
        (wording.duration(7260), "2 h 01 min"),
        (wording.minus("top-1: -0.5 to -.2, x-3, 1-2"), "top-1: −0.5 to −.2, x-3, 1-2"),
    ],
)
def test_numbers(said, expected):
    assert said == expected


def test_shorten_keeps_both_ends_and_the_width():
    text = "cb_s@blocks.6-11 + horizontal@first:2"
    short = wording.shorten(text, 20)
    assert len(short) == 20
    assert short.startswith("cb_s") and short.endswith("first:2")
    assert wording.shorten("cb", 20) == "cb"


def test_shown_leaves_no_control_characters():
    assert wording.shown("a\x00b\x1b[31m\nc") == "a�b�[31m c"


def test_headlines():
    assert wording.headline(studies.usual()) == (
        "Of 4 grafts compared, 1 is better, 1 is worse and 2 are inside the noise (no significant difference)."
    )
    assert "nothing to compare" in wording.headline(studies.only_baseline())
    assert "unknown" in wording.headline(studies.one_seed())
    assert wording.headline(studies.with_failed_runs()).endswith("1 variant could not be compared.")
    assert wording.headline(studies.usual(names=("none", "cb_s"))) == "The graft is better than the baseline."
    assert wording.headline(studies.usual(names=("none", "cb", "horizontal"))) == (
        "Both grafts are inside the noise (no significant difference)."
    )


def test_reasons_are_true_of_the_numbers():
    for variant in studies.usual().variants:
        found = variant.difference
        if found is None:
            continue
        said = wording.reason(found, seeds=3)
        assert ("above" in said) == (found.interval.low > 0)
        assert ("below" in said) == (found.interval.high < 0)
        if found.verdict == "inside the noise":
            assert "contain" in said
    one = studies.one_seed().variants[1].difference
    assert "one seed" in wording.reason(one, seeds=1)
    assert "Only one seed is finished" in wording.reason(one, seeds=3)
    assert "exactly the same" in wording.reason(replace(one, p_source="crossed over seeds and examples"), seeds=3)
    old = replace(studies.usual().variants[1].difference, interval=None, examples=None)
    assert "older version" in wording.reason(old, seeds=3)
    assert wording.deciding_interval(old) == old.bootstrap
    assert "bootstrap" in wording.difference_sentence(old, wording.metric_format(studies.usual()))


def test_epochs_that_were_not_enough():
    study = studies.usual()
    assert wording.epochs_text(study.variants[4], study.epochs) == ">12, >12, >12"
    assert wording.epochs_text(replace(study.variants[4], epochs_to_baseline=None), 12) == wording.ABSENT


def test_metric_names_put_the_primary_one_first():
    study = studies.usual()
    base = replace(study.variants[0], last={"loss": Spread(mean=1.0, deviation=None)})
    assert wording.metric_names(replace(study, variants=[base, *study.variants[1:]]))[0] == "top1"


def test_a_model_is_named_with_what_changes_it():
    args = {"img_size": 32, "embed_dim": [16, 24], "ratio": 3.5, "config": {"model_type": "vit"}, "name": "a b"}
    host = {"name": "levit_128s", "args": args, "pretrained": False}
    text = "levit_128s (embed_dim=[16, 24], ratio=3.5, name=a b), 683k parameters, 32 × 48 pixels"
    assert wording.model_text(host, parameters=683_210, input_size=[3, 32, 48]) == text
    assert wording.model_text(host | {"args": {"depth": 2}}, parameters=None, input_size=()) == "levit_128s (depth=2)"
    assert wording.model_text({"name": "bert"}, parameters=1_260_000, input_size=()) == "bert, 1.26M parameters"
    assert wording.model_size(parameters=None, input_size=()) == ""
    study = studies.usual()
    assert wording.study_model(study) == "vit_tiny_patch16_224 (depth=6), 2.70M parameters, 32 × 32 pixels"
    assert wording.study_model(replace(study, data={"input": {"tokenizer": "x"}})).endswith("2.70M parameters")
