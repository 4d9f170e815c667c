"""Differences of other metrics than the primary one: on the page, on the terminal, and in metrics.csv."""

from __future__ import annotations

import csv
import io

from rich.console import Console

from attngraft.report.metrics import NOT_CORRECTED, metric_views, other_metrics_table
from attngraft.report.page import report_html
from attngraft.results import wording
from attngraft.results.storage import load_result, metrics_csv, save_result
from tests.report import studies
from tests.report.test_page import Page


def printed(study) -> str:
    console = Console(width=80, record=True)
    table = other_metrics_table(study)
    assert table is not None
    console.print(table)
    return console.export_text()


def test_every_compared_metric_of_every_variant_is_on_the_page() -> None:
    study = studies.with_other_metrics()
    html = report_html(study)
    section = Page(html.partition('<section id="metrics">')[2].partition("</section>")[0]).text
    assert NOT_CORRECTED in section
    assert section.count("macro F1 (points)") == 4
    assert section.count("loss (lower is better)") == 3
    for row in metric_views(study):
        found, style = row["difference"], row["style"]
        values = [style.change(found.mean), style.interval(found.interval)]
        assert " ".join(map(wording.minus, values)) in section
    assert html.index('id="differences"') < html.index('id="metrics"') < html.index('id="curves"')
    assert 'href="#metrics"' in html
    assert study.notes[0] in html
    assert 'id="metrics"' not in report_html(studies.usual())


def test_the_terminal_shows_changes_and_verdicts() -> None:
    study = studies.with_other_metrics()
    lines = printed(study).splitlines()
    assert max(map(len, lines)) <= 80
    rows = {line.split()[0]: line.split()[1:] for line in lines if line.strip()}
    assert rows["vertical"] == ["-1.89", "worse", "+0.758", "worse"]
    assert rows["horizontal"] == ["+0.10", "-0.039"]  # inside the noise
    assert rows["cb"] == ["+0.36"]
    assert "lower is better" in printed(study)
    assert other_metrics_table(studies.usual()) is None


def test_metrics_csv(tmp_path) -> None:
    study = studies.with_other_metrics()
    rows = list(csv.DictReader(io.StringIO(metrics_csv(study))))
    assert len(rows) == 5 * len(wording.metric_names(study))
    found = {(row["metric"], row["variant"]): row for row in rows}
    difference = study.variants[2].difference
    assert difference is not None
    for metric, expected in (("top1", difference), ("loss", study.variants[2].other_differences["loss"])):
        assert float(found[metric, "cb_s"]["difference"]) == expected.mean
        assert float(found[metric, "cb_s"]["t_high"]) == expected.t.high
        assert float(found[metric, "cb_s"]["p_holm"]) == expected.p_holm
        assert float(found[metric, "cb_s"]["mean"]) == study.variants[2].last[metric].mean
    assert (found["top1", "cb_s"]["primary"], found["loss", "cb_s"]["primary"]) == ("True", "False")
    assert (found["top1", "cb_s"]["higher_is_better"], found["loss", "cb_s"]["higher_is_better"]) == ("True", "False")
    assert (found["top1", "cb_s"]["resamples"], found["loss", "cb_s"]["resamples"]) == ("2000", "640")
    assert found["loss", "cb"]["difference"] == found["top5", "cb_s"]["verdict"] == ""
    save_result(study, tmp_path)
    assert (tmp_path / "metrics.csv").read_text() == metrics_csv(study)
    assert load_result(tmp_path) == study
