from __future__ import annotations

import base64
import hashlib
import itertools
import re
from dataclasses import replace
from html.parser import HTMLParser

import pytest

from attngraft.report.page import report_html
from attngraft.results import wording
from attngraft.results.coverage import coverage_note, measured_coverage
from attngraft.results.power import power_sentences
from attngraft.results.storage import csv_text
from tests.report import studies

VOID = {"meta", "br", "link", "img", "input", "hr"}


class Page(HTMLParser):
    """What a browser would make of the page: tags, ids, references, text; the order of closing tags is checked."""

    def __init__(self, html: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[str] = []
        self.ids: list[str] = []
        self.references: list[str] = []
        self.attributes: list[tuple[str, str]] = []
        self.pieces: list[str] = []
        self.open: list[str] = []
        self.feed(html)
        self.close()
        self.text = " ".join(" ".join(self.pieces).split())

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        if tag not in VOID:
            self.open.append(tag)
        for key, value in attrs:
            self.attributes.append((key, value or ""))
            if key == "id":
                self.ids.append(value)
            if key in ("href", "src", "xlink:href", "action", "data", "srcset"):
                self.references.append(value)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open and self.open[-1] not in ("style", "script"):
            self.pieces.append(data)


@pytest.fixture(scope="module", params=list(studies.ALL))
def rendered(request):
    study = studies.ALL[request.param]()
    return study, report_html(study)


def test_the_page_is_whole_and_self_contained(rendered):
    _, html = rendered
    page = Page(html)
    assert page.open == []
    assert len(set(page.ids)) == len(page.ids)
    assert all(reference.startswith("#") and reference[1:] in page.ids for reference in page.references)
    assert not re.search(r"https?://|//[a-z]|@import|url\((?!#)", html)
    assert not {"link", "img", "iframe", "object", "embed", "form"} & set(page.tags)
    assert not any(key.startswith("on") for key, _ in page.attributes)
    assert "default-src 'none'" in html


def test_only_the_pages_own_script_may_run(rendered):
    (source,) = re.findall(r"<script[^>]*>(.*?)</script>", rendered[1], re.DOTALL)
    allowed = base64.b64encode(hashlib.sha256(source.encode()).digest()).decode()
    assert f"script-src 'sha256-{allowed}'" in rendered[1]
    assert not re.search(r"fetch|XMLHttp|import\b|eval|innerHTML", source)


def test_the_page_is_accessible(rendered):
    _, html = rendered
    page = Page(html)
    headings = [int(tag[1]) for tag in page.tags if re.fullmatch(r"h[1-6]", tag)]
    assert headings[0] == 1 and headings.count(1) == 1
    assert all(deeper - level <= 1 for level, deeper in itertools.pairwise(headings))
    assert len(re.findall(r'<table(?! class="counts")', html)) == page.tags.count("caption")
    assert page.tags.count("figure") == page.tags.count("figcaption")
    assert all("aria-label=" in tag for tag in re.findall(r"<svg[^>]*>", html))
    assert 'lang="en"' in html and "<th>" not in html
    assert "prefers-color-scheme: dark" in html and "@media print" in html


def test_all_numbers_are_there(rendered):
    study, html = rendered
    text, style = Page(html).text, wording.metric_format(study)
    said = []
    for variant in study.variants:
        for name, spread in variant.last.items():
            said.append(wording.spread_text(spread.mean, spread.deviation, wording.metric_format(study, name)))
        for run in variant.runs:
            said += [style.value(run.last[study.metric]), style.value(run.best[study.metric]), run.folder]
        if variant.cost is not None:
            said += [f"{variant.cost.parameters:,}"]
            said += [] if variant.is_baseline else [wording.ratio(variant.cost.parameters_ratio, exact=True)]
            said += [wording.si(variant.cost.macs), wording.size(variant.cost.peak_memory_bytes)]
        if not variant.is_baseline and variant.cost is not None and variant.cost.train_time_ratio is not None:
            said.append(f"{variant.cost.train_time_ratio.low:.3f} to {variant.cost.train_time_ratio.high:.3f}")
        if variant.difference is not None:
            found = variant.difference
            said += [wording.minus(style.change(found.mean)), wording.minus(style.interval(found.bootstrap))]
            said += [wording.p_value(found.p_holm), wording.p_value(found.p_value), found.verdict]
            said += [wording.minus(style.interval(each)) for each in (found.interval, found.t)]
            said += [str(test.only_variant) for test in found.mcnemar]
    assert [each for each in said if each not in text] == []


def test_other_intervals_and_tests_are_behind_a_fold():
    study = studies.usual()
    html = report_html(study)
    section = html.partition('<section id="differences">')[2].partition("</section>")[0]
    shown, _, folded = section.partition("<details>")
    found = study.variants[1].difference
    style = wording.metric_format(study)
    bootstrap, t, interval = (
        wording.minus(style.interval(each)) for each in (found.bootstrap, found.t, found.interval)
    )
    assert interval in shown and bootstrap not in shown and t not in shown
    assert bootstrap in folded and t in folded and "Exact McNemar tests" in folded
    assert wording.minus(power_sentences(study)) in shown


def test_how_often_intervals_hold_the_truth_is_said(rendered):
    footer = rendered[1].partition("<footer>")[2]
    assert coverage_note(measured_coverage()) in footer
    assert f"<code>{measured_coverage().command}</code>" in footer


def test_what_was_run_is_told(rendered):
    study, html = rendered
    text = Page(html).text
    for each in (study.title, study.command, wording.study_model(study), *study.notes):
        if not each.startswith("One seed:"):
            assert wording.shown(each) in text
    assert study.version in text


def test_the_verdict_comes_before_all_but_the_title():
    html = report_html(studies.usual())
    assert html.index("<h1>") < html.index('class="headline"') < html.index('class="key"') < html.index("<nav")


def test_the_baseline_has_no_ratios_to_itself():
    text = Page(report_html(studies.usual())).text
    assert "1.000 to 1.000" not in text
    assert "–" in text


def test_the_unrounded_results_can_be_downloaded():
    study = studies.usual()
    page = Page(report_html(study))
    assert [value for key, value in page.attributes if key == "data-csv"] == [csv_text(study)]


def test_user_strings_are_inert():
    html = report_html(studies.with_hostile_names())
    page = Page(html)
    assert html.count("<script") == 1 and 'alert("x")</' not in html
    assert page.text.count(wording.shown(studies.HOSTILE)) > 10
    assert "\x00" not in html and "\x1b" not in html and "\x07" not in html
    assert "日本語の名前" in page.text


def test_hostile_metric_names_and_folders_are_inert():
    study = studies.usual()
    variants = [
        replace(
            variant,
            last=variant.last | {studies.HOSTILE: variant.last["loss"]},
            runs=[replace(run, folder=studies.HOSTILE) for run in variant.runs],
        )
        for variant in study.variants
    ]
    html = report_html(replace(study, variants=variants, task=studies.HOSTILE, created=studies.HOSTILE))
    assert html.count("<script") == 1
    assert Page(html).open == []


def test_one_seed_says_that_seed_noise_is_unknown():
    text = Page(report_html(studies.one_seed())).text
    assert text.count("noise between seeds is unknown") == 2
    assert "exact McNemar test over examples" in text
    assert "line with caps" not in text


def test_one_seed_of_scores_that_are_not_right_or_wrong_has_no_p_value():
    study = studies.one_seed()
    variants = [
        replace(v, difference=v.difference and replace(v.difference, p_value=None, p_holm=None, mcnemar=[]))
        for v in study.variants
    ]
    text = Page(report_html(replace(study, variants=variants))).text
    assert "there is none, since the examples’ scores are not binary" in text
    assert "McNemar" not in text


def test_inside_the_noise_is_said_in_words():
    text = Page(report_html(studies.usual())).text
    assert (
        "Of 4 grafts compared, 1 is better, 1 is worse and 2 are inside the noise (no significant difference)." in text
    )
    assert "“Inside the noise” means no significant difference, which is not the same as equal" in text


def test_a_task_without_labels_has_no_talk_of_them():
    text = Page(report_html(studies.translation())).text
    assert "lower is better" in text
    assert not re.search(r"top-1|top-5|McNemar|image", text)


def test_missing_costs_and_runs_are_said():
    assert "not measured" in Page(report_html(studies.without_costs())).text
    text = Page(report_html(studies.with_failed_runs())).text
    assert "No run of this variant is finished." in text and "loss not finite" in text


def test_a_run_without_its_pair_is_said():
    study = studies.usual()
    alone = replace(study.variants[1], difference=None)
    text = Page(report_html(replace(study, variants=[study.variants[0], alone]))).text
    assert "No finished run of the baseline shares a seed" in text


def test_the_recipe_is_yaml_even_with_odd_values():
    study = replace(studies.usual(), recipe={"train": {"when": object}, "betas": (0.9, 0.999)})
    assert "betas: - 0.9 - 0.999" in Page(report_html(study)).text


def test_the_same_study_is_the_same_page():
    assert report_html(studies.usual()) == report_html(studies.usual())
