"""What the guides say was measured is what the committed results of the studies say."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest
from scipy import stats

ROOT = Path(__file__).parents[2]
#: top-1 of the same variants in the paper, CIFAR-100: Swin-T (Tables 1 and 3), LeViT-128S with a teacher (Table 4)
PAPER = {
    "swin": {
        "baseline": 80.09,
        "bisa@first:2": 81.68,
        "bisa(norm=true)@first:2": 80.75,
        "bisa(learned=true, norm=true)@first:2": 80.34,
        "bisa(order=inverse_then_self)@first:2": 78.74,
        "bisa(order=self_then_inverse)@first:2": 80.80,
        "bisa@last:2": 80.66,
    },
    "levit": {
        "baseline": 76.91,
        "misa@first:1": 77.00,
        "misa@first:2": 79.98,
        "bisa@first:1": 79.15,
        "bisa@first:2": 81.27,
        "bisa(norm=true)@first:2": 80.04,
        "bisa(learned=true, norm=true)@first:2": 79.51,
    },
}


def results(study: str) -> dict[str, dict[str, str]]:
    with (ROOT / f"benchmarks/studies/{study}.csv").open(newline="") as file:
        return {row["variant"]: row for row in csv.DictReader(file)}


def points(share: str) -> str:
    """A difference in points, no negative zero."""
    return f"{round(100 * float(share), 2) + 0.0:+.2f}"


def cells(row: dict[str, str]) -> list[str]:
    """Top-1, difference with its bootstrap interval, verdict, time of a training step."""
    mean, deviation = (f"{100 * float(row[f'last_top1_{what}']):.2f}" for what in ("mean", "deviation"))
    if row["baseline"] == "True":
        return [f"{mean} ± {deviation}", "", "", ""]
    gain, low, high = (points(row[name]) for name in ("difference", "bootstrap_low", "bootstrap_high"))
    cost = f"{float(row['train_time_ratio']):.2f}"
    return [f"{mean} ± {deviation}", f"{gain}, {low} to {high}", row["verdict"], cost]


def table(host: str) -> list[str]:
    """The lines of the guide's table, as it must stand there."""
    found = results(f"cifar10-bisa-{host}")
    lines = [[f"`{name}`" if name != "baseline" else name, *cells(row)] for name, row in found.items()]
    return ["| " + " | ".join(f"{cell} " if cell else "" for cell in line).replace("  |", " |") + "|" for line in lines]


def agreement(host: str) -> float:
    """Spearman's rank correlation of the paper's order and ours, over the variants that the paper has."""
    found, paper = results(f"cifar10-bisa-{host}"), PAPER[host]
    ours = [float(found[name]["last_top1_mean"]) for name in paper]
    return float(stats.spearmanr(list(paper.values()), ours).statistic)


@pytest.mark.parametrize("host", ["swin", "levit"])
def test_the_guide_of_bisa_prints_the_studies(host: str) -> None:
    page = (ROOT / "docs/guide/bisa.md").read_text(encoding="utf-8")
    for line in table(host):
        assert line in page
    assert f"{agreement(host):+.2f}" in page


#: host as the guide calls it, and the end of its studies' names
SHAPES = {"PiT": "pit", "MLP-Mixer": "mixer", "T2T-ViT": "t2t", "ViT of transformers": "hf-vit"}
GRAFTS = ("cb", "cb_s", "horizontal", "vertical")


def line_of_differences(host: str, data: str) -> str:
    """One study as a line of the guide: the baseline's top-1, and every graft's difference with its bootstrap interval."""
    found = results(f"{data}-{SHAPES[host]}")
    shown = [cells(found[graft])[1] if graft in found else "no attention" for graft in GRAFTS]
    return f"| {host} | {' | '.join([cells(found['baseline'])[0], *shown])} |"


@pytest.mark.parametrize("host", SHAPES)
@pytest.mark.parametrize("data", ["cifar10", "flowers5"])
def test_the_guide_of_grafts_prints_the_studies(data: str, host: str) -> None:
    assert line_of_differences(host, data) in (ROOT / "docs/guide/which-graft.md").read_text(encoding="utf-8")


def test_the_guide_of_grafts_calls_better_or_worse_what_the_studies_do() -> None:
    page = (ROOT / "docs/guide/which-graft.md").read_text(encoding="utf-8")
    studies = [f"{data}-{shape}" for data in ("cifar10", "flowers5") for shape in SHAPES.values()]
    verdicts = [row["verdict"] for study in studies for row in results(study).values() if row["verdict"]]
    inside = verdicts.count("inside the noise")
    assert f"{inside} of {len(verdicts)} differences are inside the noise" in page


BISA, README = "docs/guide/bisa.md", "README.md"
#: page, file of measurements, beginning of the measurement's name, digits
RATIOS = [
    *(
        (BISA, "bisa_layer", f"{shape}: over the {what}", 2)
        for shape in ("Swin-T, stage 1", "LeViT-128S, stage 1", "ViT-S", "1024 tokens")
        for what in ("host's layer", "naive layer")
    ),
    *((page, "bisa_models", host, 3) for host in ("swin_tiny", "levit_128s") for page in (BISA, README)),
    *((README, "graft_cost", graft, 3) for graft in ("richer", "cb", "cb_s", "horizontal", "vertical", "horizontal +")),
    *((README, "graft_cost", f"{graft}, matrix products", 3) for graft in ("horizontal", "vertical")),
    (README, "data_loading", "time per image over timm's loader's", 3),
    (README, "data_loading", "time per image over timm's loader without", 3),
    (README, "jobs", "", 3),
    (README, "loop_overhead", "", 3),
]


def measured(file: str, name: str) -> dict[str, float]:
    """The first measurement in a file of `benchmarks/` whose name begins so."""
    found = json.loads((ROOT / f"benchmarks/{file}.json").read_text(encoding="utf-8"))["measurements"]
    return next(each for each in found if each["name"].startswith(name))


@pytest.mark.parametrize(("page", "file", "name", "digits"), RATIOS)
def test_pages_print_the_ratios_that_were_measured(page: str, file: str, name: str, digits: int) -> None:
    found = measured(file, name)
    value, low, high = (f"{found[what]:.{digits}f}" for what in ("value", "low", "high"))
    assert f"{value} ({low} to {high})" in (ROOT / page).read_text(encoding="utf-8")
