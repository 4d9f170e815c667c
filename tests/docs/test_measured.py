"""What the guides say was measured is what the committed results of the studies say."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import numpy as np
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


def points(share: str | float) -> str:
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


def test_the_guide_of_grafts_prints_both_grafts_on_a_t2t_vit() -> None:
    page = (ROOT / "docs/guide/which-graft.md").read_text(encoding="utf-8")
    assert f"on the T2T-ViT only: {cells(results('cifar10-t2t')['horizontal + vertical'])[1]}." in page


def test_the_guide_of_grafts_calls_better_or_worse_what_the_studies_do() -> None:
    page = (ROOT / "docs/guide/which-graft.md").read_text(encoding="utf-8")
    studies = [f"{data}-{shape}" for data in ("cifar10", "flowers5") for shape in SHAPES.values()]
    verdicts = [row["verdict"] for study in studies for row in results(study).values() if row["verdict"]]
    inside = verdicts.count("inside the noise")
    assert f"{inside} of {len(verdicts)} differences are inside the noise" in page


def test_the_guide_of_translation_prints_its_study() -> None:
    page = (ROOT / "docs/guide/translation.md").read_text(encoding="utf-8")
    for name, row in results("multi30k").items():
        scores = [
            f"{float(row[f'last_{metric}_mean']):.2f} ± {float(row[f'last_{metric}_deviation']):.2f}"
            for metric in ("bleu", "perplexity")
        ]
        assert f"{' | '.join([name if name == 'baseline' else f'`{name}`', *scores])} |" in page
        if name != "baseline":
            gain, low, high = (f"{float(row[key]):+.2f}" for key in ("difference", "interval_low", "interval_high"))
            cost = f"{float(row['train_time_ratio']):.2f}"
            assert f"| {gain}, {low} to {high} | {row['verdict']} | {cost} |" in page
    found = results("multi30k-lr")
    for name in ("baseline", "horizontal", "vertical", "horizontal + vertical"):
        rates = {rate: found[f"{name} {rate}"] for rate in ("5e-4", "1e-3", "2e-3") if f"{name} {rate}" in found}
        rates |= {"1e-3": found["baseline"]} if name == "baseline" else {}
        assert min(rates, key=lambda rate: float(rates[rate]["last_perplexity_mean"])) == "2e-3"


def test_the_guide_of_captioning_prints_its_study() -> None:
    page = (ROOT / "docs/guide/captioning.md").read_text(encoding="utf-8")
    for name, row in results("flickr8k").items():
        cells = [name if name == "baseline" else f"`{name}`"]
        for metric in ("cider", "bleu1", "bleu4", "rouge_l"):
            cells.append(f"{float(row[f'last_{metric}_mean']):.1f} ± {float(row[f'last_{metric}_deviation']):.1f}")
        gain = [] if name == "baseline" else [row[key] for key in ("difference", "interval_low", "interval_high")]
        cells.append("{:+.1f}, {:+.1f} to {:+.1f}, {}".format(*map(float, gain), row["verdict"]) if gain else "")
        assert f"| {' | '.join(cells)} |" in page
    said = " ".join(page.split())
    plain, vertical = results("flickr8k-untrained").values()
    numbers = [f"{float(row[f'last_{name}_mean']):.1f}" for row in (plain, vertical) for name in ("cider", "bleu1")]
    assert "a CIDEr-D of {} and a BLEU-1 of {}, and `vertical` {} and {}".format(*numbers) in said


def test_the_guide_of_point_clouds_prints_its_study() -> None:
    page = (ROOT / "docs/guide/points.md").read_text(encoding="utf-8")
    for name, row in results("modelnet10").items():
        plain = name == "baseline"
        # a step of the other models has 16 clouds, PointNet's has 32
        time = (1 if plain else 2 * float(row["train_time_ratio"])) * int(row["epochs"]) / 25
        cells = ["PointNet" if plain else name, f"{float(row['parameters']):,.0f}", row["epochs"], f"{time:.2f}"]
        for metric in ("top1", "balanced_accuracy"):
            mean, deviation = (f"{100 * float(row[f'last_{metric}_{what}']):.2f}" for what in ("mean", "deviation"))
            cells.append(f"{mean} ± {deviation}")
        gain, low, high = ("" if plain else points(row[key]) for key in ("difference", "interval_low", "interval_high"))
        cells.append("" if plain else f"{gain}, {low} to {high}, {row['verdict']}")
        assert f"| {' | '.join(cells)} |" in page


@pytest.mark.parametrize("study", ["camvid-swin", "camvid-vit"])
def test_the_guide_of_segmentation_prints_its_studies(study: str) -> None:
    page = (ROOT / "docs/guide/segmentation.md").read_text(encoding="utf-8")
    for name, row in results(study).items():
        scores = [
            f"{100 * float(row[f'last_{metric}_mean']):.2f} ± {100 * float(row[f'last_{metric}_deviation']):.2f}"
            for metric in ("miou", "boundary_miou")
        ]
        line = " | ".join([name if name == "baseline" else f"`{name}`", *scores])
        if name != "baseline":
            gain, low, high = (points(row[key]) for key in ("difference", "interval_low", "interval_high"))
            line += f" | {gain}, {low} to {high} | {row['verdict']}"
        assert f"| {line} |" in page


def test_the_guide_of_segmentation_prints_its_quality() -> None:
    page = (ROOT / "docs/guide/segmentation.md").read_text(encoding="utf-8")
    ours, theirs = (
        measured("camvid", f"{name}: mean test")["value"] for name in ("attngraft", "segmentation_models_pytorch")
    )
    assert f"scores {ours:.1f}% mIoU" in page
    assert f"class weights, {theirs:.1f}%" in page


def test_the_guide_of_detection_prints_its_quality() -> None:
    page = " ".join((ROOT / "docs/guide/detection.md").read_text(encoding="utf-8").split())
    ours, theirs, floor = (
        measured("nuclei", name)["value"]
        for name in ("attngraft: mean test mask AP", "torchvision: mean test mask AP", "Otsu's threshold: test mask AP")
    )
    assert f"the first scores {ours:.1f}% mask AP, the second {theirs:.1f}%, and Otsu's threshold {floor:.1f}%" in page
    long, at75 = (
        measured("nuclei", f"attngraft, three times as long: mean test mask {name}")["value"] for name in ("AP", "AP75")
    )
    floor75 = measured("nuclei", "Otsu's threshold: test mask AP75")["value"]
    assert f"24 epochs scores {long:.1f}%, with an AP75 of {at75:.1f}% against {floor75:.1f}%" in page


def table_lines(variant: str, page: str) -> str:
    """What the table of the page on comparisons says of a variant."""
    (block,) = (each for each in page.split("\n\n") if each.lstrip("` \n").startswith(f"{variant}   "))
    return block


def test_the_guide_of_comparisons_shows_the_table_of_its_study() -> None:
    page = (ROOT / "docs/guide/compare.md").read_text(encoding="utf-8").split("![")[0].replace("─\n", "─\n\n")
    base, *others = (row for row in results("cifar10-vit").values())
    assert cells(base)[0] in table_lines("baseline", page)
    for row in others:
        found = table_lines(row["variant"], page)
        assert cells(row)[0] in found
        assert f"{points(row['difference'])} {row['verdict']}" in found
        assert f"[{points(row['bootstrap_low'])}, {points(row['bootstrap_high'])}] bootstrap" in found
        assert f"p {float(row['p_holm']):.2f}" in found
        for cost, column in {"train": "train_time", "infer": "inference_time", "memory": "memory"}.items():
            assert f"{float(row[f'{column}_ratio']):.2f}×" in found.split(cost)[1].splitlines()[0]
        for cost in ("parameters", "macs"):
            shown = found.split({"parameters": "params", "macs": "MACs"}[cost])[1].split()[0].removesuffix("×")
            assert float(shown) == pytest.approx(float(row[f"{cost}_ratio"]), abs=0.005)


def test_the_guide_of_grafts_prints_the_studies_of_a_vit_and_a_swin() -> None:
    page = " ".join((ROOT / "docs/guide/which-graft.md").read_text(encoding="utf-8").split())
    base, *others = results("cifar10-vit").values()
    assert f"| baseline | {cells(base)[0]} | | |" in page
    for row in others:
        top1, difference, verdict, _ = cells(row)
        assert f"| `{row['variant']}` | {top1} | {difference} | {verdict} |" in page
    base, *others = results("cifar10-swin").values()
    shown = "; ".join(f"`{row['variant']}` {cells(row)[1]}" for row in others)
    assert f"baseline {cells(base)[0]}; {shown}: all inside the noise." in page
    assert {row["verdict"] for row in others} == {"inside the noise"}


#: data as the guides of BiXT and ELSA call it, and the beginning of its study's name
DATA = {"digits": "digits", "CIFAR-10": "cifar10", "Tiny ImageNet": "tiny_imagenet20"}


@pytest.mark.parametrize("data", DATA)
def test_the_guide_of_bixt_prints_the_studies(data: str) -> None:
    page = (ROOT / "docs/guide/bixt.md").read_text(encoding="utf-8")
    found = results(f"{DATA[data]}-bixt")
    others = [f"{cells(row)[1]}, {row['verdict']}" for row in found.values() if row["baseline"] != "True"]
    assert f"| {data} | {cells(found['BiXT'])[0]} | {' | '.join(others)} |" in page
    assert all(row["seeds_finished"] == "3" and 0.97 < float(row["macs_ratio"]) < 1.03 for row in found.values())


@pytest.mark.parametrize("data", ["CIFAR-10", "Tiny ImageNet"])
def test_the_guide_of_elsa_prints_the_studies(data: str) -> None:
    page = (ROOT / "docs/guide/elsa.md").read_text(encoding="utf-8")
    base, *others = results(f"{DATA[data]}-elsa").values()
    shown = [f"{cells(row)[1]}, {row['verdict']}" for row in others]
    assert f"| {data} | {cells(base)[0]} | {' | '.join(shown)} |" in page
    assert all(row["seeds_finished"] == "3" for row in (base, *others))


def test_the_guide_of_bixt_prints_how_layers_grow() -> None:
    page = (ROOT / "docs/guide/bixt.md").read_text(encoding="utf-8")
    found = json.loads((ROOT / "benchmarks/bixt_scaling.json").read_text(encoding="utf-8"))
    curves = {curve["layer"]: curve for curve in found["curves"]}
    for fit in (curves["bixt"]["time"], curves["bixt"]["memory"], curves["vit"]["time"]):
        assert f"N^{fit['value']:.2f} ({fit['low']:.2f} to {fit['high']:.2f})" in page
    assert (
        f"exceeds {curves['vit']['end']['reason'].removeprefix('over ')} at {curves['vit']['end']['tokens']:,}" in page
    )
    assert curves["vit-explicit"]["end"]["reason"] in " ".join(page.split())
    assert f"at {curves['vit-explicit']['end']['tokens']:,}" in page
    longest = curves["bixt"]["points"][-1]
    assert longest["tokens"] == 2**20
    assert f"{longest['seconds']:.1f} s" in page


BISA, BIXT, ELSA, SPEED = "docs/guide/bisa.md", "docs/guide/bixt.md", "docs/guide/elsa.md", "docs/guide/speed.md"
WHICH = "docs/guide/which-graft.md"
#: page, file of measurements, beginning of the measurement's name, digits
RATIOS = [
    *(
        (BISA, "bisa_layer", f"{shape}: over the {what}", 2)
        for shape in ("Swin-T, stage 1", "LeViT-128S, stage 1", "ViT-S", "1024 tokens")
        for what in ("host's layer", "naive layer")
    ),
    *((page, "bisa_models", host, 3) for host in ("swin_tiny", "levit_128s") for page in (BISA, SPEED)),
    *((SPEED, "graft_cost", graft, 3) for graft in ("richer", "cb", "cb_s", "horizontal", "vertical", "horizontal +")),
    *((WHICH, "graft_cost", graft, 3) for graft in ("cb", "cb_s", "horizontal", "vertical", "horizontal +")),
    *((SPEED, "graft_cost", f"{graft}, matrix products", 3) for graft in ("horizontal", "vertical")),
    (SPEED, "data_loading", "time per image over timm's loader's", 3),
    (SPEED, "data_loading", "time per image over timm's loader without", 3),
    (SPEED, "report_size", "report of 100 runs", 1),
    (SPEED, "jobs", "", 3),
    (SPEED, "loop_overhead", "", 3),
    *(
        (BIXT, "bixt_op", f"{size} tokens, {work}: over explicit maps", 2)
        for size in ("1x196", "1x784", "8x784", "1x12544", "8x12544")
        for work in ("forward", "forward and backward")
    ),
    *((SPEED, "bixt_op", f"8x12544 tokens, {work}: over", 2) for work in ("forward", "forward and backward")),
    (BIXT, "bixt_op", "8x12544 tokens, forward: memory", 2),
    (BIXT, "bixt_op", "8x12544 tokens, forward and backward: memory", 2),
    *(
        (ELSA, "local_filter", f"ghost {ghost}, channels {layout}, {work}: over", 3)
        for ghost in ("add", "mul and add")
        for layout in ("last", "first")
        for work in ("forward", "forward and backward")
    ),
    *((ELSA, "local_filter", f"ghost add, {work}: memory", 3) for work in ("forward", "forward and backward")),
    *(
        ("docs/guide/looking.md", "recording", f"vit_{model}", 2)
        for model in (
            "base_patch16_384, entropy and distance: memory",
            "small_patch16_224, weights of all blocks",
            "small_patch16_224, entropy and distance",
            "small_patch16_224, recorded once before",
        )
    ),
    *((page, "elsa_models", "elsa_swin_tiny, training step", 2) for page in (ELSA, SPEED)),
    *((ELSA, "elsa_models", f"elsa_swin_tiny, forward, an image of {side}", 2) for side in (512, 1024)),
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


def test_the_guide_of_local_attention_says_which_bars_are_missed() -> None:
    page = (ROOT / ELSA).read_text(encoding="utf-8")
    found = json.loads((ROOT / "benchmarks/local_filter.json").read_text(encoding="utf-8"))["measurements"]
    for each in (each for each in found if "over the plain form" in each["name"]):
        shown = f"{each['value']:.3f} ({each['low']:.3f} to {each['high']:.3f})"
        said = f"| {shown}, missed | 1/{1 / each['bar']:.0f} |" in page
        assert said != each["passed"]


FIGURES = ROOT / "docs/guide/figures.md"


def rows(file: str) -> list[dict[str, str]]:
    with (ROOT / f"benchmarks/{file}.csv").open(newline="") as opened:
        return list(csv.DictReader(opened))


def mean(values: list[str]) -> float:
    return sum(map(float, values)) / len(values)


def test_the_page_of_figures_prints_what_the_suites_measured() -> None:
    page = FIGURES.read_text(encoding="utf-8")
    conditions: dict[tuple[str, str], dict[str, dict[str, str]]] = {}
    for row in rows("studies/cifar10-vit-suites"):
        if row["suite"] in {"occlusion", "fgsm", "noise", "calibration"}:
            conditions.setdefault((row["suite"], row["condition"]), {})[row["variant"]] = row
    assert len(conditions) == 11
    for found in conditions.values():
        shown = [f"{100 * float(found['baseline']['mean']):.2f}"]
        for row in (found["cb"], found["cb_s"]):
            gain, low, high = (points(row[name]) for name in ("difference", "bootstrap_low", "bootstrap_high"))
            shown.append(f"{100 * float(row['mean']):.2f} ({gain}, {low} to {high})")
        assert f" | {' | '.join(shown)} |" in page


@pytest.mark.parametrize(
    ("study", "baseline", "others"),
    [
        ("vit", "baseline", ("cb", "cb_s")),
        ("vit", "baseline", ("horizontal", "vertical")),
        ("bisa-swin", "baseline", ("bisa@first:2",)),
        ("bixt", "BiXT", ("ViT", "iterative", "sequential")),
        ("elsa", "baseline", ("Hadamard and ghost head",)),
    ],
)
def test_the_page_of_figures_prints_what_all_suites_measured(
    study: str, baseline: str, others: tuple[str, ...]
) -> None:
    page = FIGURES.read_text(encoding="utf-8")
    conditions: dict[tuple[str, str], dict[str, dict[str, str]]] = {}
    for row in rows(f"studies/cifar10-{study}-suites"):
        conditions.setdefault((row["suite"], row["condition"]), {})[row["variant"]] = row
    printed = 0
    for (suite, condition), found in conditions.items():
        if not found[baseline]["mean"] or (suite == "corruptions" and condition != "mean"):
            continue
        shown = [f"{100 * float(found[baseline]['mean']):.2f}"]
        for row in (found[other] for other in others):
            gain, low, high = (points(row[name]) for name in ("difference", "bootstrap_low", "bootstrap_high"))
            shown.append(f"{100 * float(row['mean']):.2f} ({gain}, {low} to {high})")
        label = "nine corruptions, five severities, mean" if suite == "corruptions" else found[baseline]["label"]
        printed += f"| {label} | {' | '.join(shown)} |" in page
    tables = [line for line in page.splitlines() if line.startswith("| condition |")]
    assert len(tables) == 6
    assert printed >= (10 if study != "bixt" else 9), "a row of the page is not what was measured"


def test_the_page_of_figures_prints_curves_layers_and_fields() -> None:
    page = " ".join(FIGURES.read_text(encoding="utf-8").split())
    epochs = {row["model"]: row["epochs to baseline's best"] for row in rows("analysis/curves")}
    assert f"best after {epochs['baseline']} of 12 epochs; `cb` is as good after {epochs['cb']}, `cb_s` after" in page
    assert f"`cb_s` after {epochs['cb_s']}, `horizontal` and `vertical` never" in page
    assert not epochs["horizontal"] and not epochs["vertical"]
    alike = [row["CKA"] for row in rows("analysis/cka") if row["layer of baseline"] == row["layer of cb"]]
    first, second, third = (f"{float(each):.2f}" for each in alike)
    assert f"({first} on the diagonal, then {second} and {third})" in page
    areas = {(row["model"], row["share"]): row["area"] for row in rows("analysis/receptive-field")}
    ours, windows = "Hadamard and ghost head", "baseline"
    assert (
        f"holds half of it is {float(areas[ours, '0.5']):.0%} of the map with Hadamard attention and the ghost head, "
        f"and {float(areas[windows, '0.5']):.0%} with windows; the area that holds nine tenths is "
        f"{float(areas[ours, '0.9']):.0%} against {float(areas[windows, '0.9']):.0%}" in page
    )


def test_the_page_of_figures_prints_what_the_analyses_found() -> None:
    page = " ".join(FIGURES.read_text(encoding="utf-8").split())
    entropy, scaling, gates = (rows(f"analysis/{name}") for name in ("entropy", "scaling", "gates"))
    distance, symmetry = (
        [row for row in rows(f"analysis/{name}") if row["head"] == "mean"] for name in ("distance", "symmetry")
    )
    models = ("baseline", "cb", "cb_s")
    for found, name, digits in ((entropy, "entropy", 2), (distance, "distance", 3)):
        shown = [f"{mean([row[name] for row in found if row['model'] == model]):.{digits}f}" for model in models]
        assert f"| {' | '.join(shown)} |" in page
    assert ", ".join(f"{float(row['mean']):.3f}" for row in scaling) in page
    for model in ("BiXT", "sequential"):
        of = [row for row in symmetry if row["model"] == model]
        shown = [
            ", ".join(
                "{:.2f} ({:.2f} to {:.2f})".format(*(float(row[what + end]) for end in ("", " low", " high")))
                for row in of
            )
            for what in ("correlation", "agreement")
        ]
        assert f"| {model} | {' | '.join(shown)} |" in page
    spread = [float(row["95%"]) - float(row["5%"]) for row in gates if row["model"] == "horizontal"]
    assert "those of heads less in the first layer than later" in page
    assert spread[0] < min(spread[1:])


def test_the_page_of_figures_prints_what_bisa_and_elsa_do() -> None:
    page = " ".join(FIGURES.read_text(encoding="utf-8").split())
    branches: dict[str, dict[str, float]] = {}
    for row in (row for row in rows("analysis/importance") if row["what"].startswith("mean |")):
        branches.setdefault(row["layer"], {})[row["what"]] = float(row["value"])
    over = [each["mean |inverse|"] / each["mean |self|"] for each in branches.values()]
    assert f"{over[0]:.1f} and {over[1]:.1f} times as large" in page
    edges = {
        model: mean(
            [
                row["correlation with edges"]
                for row in rows("analysis/structure")
                if (row["model"], row["component"]) == (model, "own")
            ]
        )
        for model in ("baseline", "bisa@first:2")
    }
    assert f"(correlation {edges['bisa@first:2']:.2f}) than the baseline's ({edges['baseline']:.2f})" in page
    filters = [row for row in rows("analysis/filters") if row["head"] == "mean"]
    itself = [row["weight"] for row in filters if row["down"] == row["right"] == "0"]
    assert f"give the position itself {mean(itself):.1%} on average" in page


def test_the_page_of_figures_prints_the_study_of_half_a_block_more() -> None:
    page = FIGURES.read_text(encoding="utf-8")
    for name, row in results("cifar10-cb-extra-block").items():
        assert row["seeds_finished"] == "3"
        top1 = " ± ".join(f"{100 * float(row[f'last_top1_{what}']):.2f}" for what in ("mean", "deviation"))
        parts = [points(row[part]) for part in ("difference", "interval_low", "interval_high") if row[part]]
        difference = f" {parts[0]}, {parts[1]} to {parts[2]} | {row['verdict']} " if parts else " | "
        assert f"| {name} | {top1} |{difference}| {int(row['parameters']):,} |" in page


def test_the_page_of_figures_prints_the_study_of_heads() -> None:
    page = FIGURES.read_text(encoding="utf-8")
    found = results("cifar10-cb-heads")
    top1 = {name: [100 * float(row[f"last_top1_seed{seed}"]) for seed in range(3)] for name, row in found.items()}
    heads = ("1 head", "3 heads", "6 heads", "12 heads")
    without = [top1["baseline"], *(top1[name] for name in heads[1:])]
    broadcast = [top1[f"{name} + cb"] for name in heads]
    gains = []
    for old, new in zip(without, broadcast, strict=True):
        gain = np.subtract(new, old)
        half = stats.t.ppf(0.975, 2) * stats.sem(gain)
        middle, low, high = (points(value / 100) for value in (gain.mean(), gain.mean() - half, gain.mean() + half))
        gains.append(f"{middle}, {low} to {high}")
    assert f"| without `cb` | {' | '.join(f'{np.mean(each):.2f}' for each in without)} |" in page
    assert f"| with `cb` | {' | '.join(f'{np.mean(each):.2f}' for each in broadcast)} |" in page
    assert f"| gain, t-interval over seeds | {' | '.join(gains)} |" in page
