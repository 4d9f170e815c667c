"""Epochs to the baseline's best mean, as shares of the epochs that the baseline itself needs: a bar per variant."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from attngraft.drawing.sheet import headed
from attngraft.drawing.theme import Look
from attngraft.report.scene import NAME_WIDTH, Scene, ruled
from attngraft.results.study import EpochsToBaseline, StudyResult, VariantResult
from attngraft.results.wording import minus, shorten

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def compared(result: StudyResult) -> list[tuple[int, VariantResult, EpochsToBaseline]]:
    """The variants that were set against the baseline's epochs, each with its place in the study."""
    return list(_compared(result))


def _compared(result: StudyResult) -> Iterator[tuple[int, VariantResult, EpochsToBaseline]]:
    for place, variant in enumerate(result.variants):
        reached = variant.epochs_to_baseline
        if not variant.is_baseline and reached is not None and reached.baseline_epoch is not None:
            yield place, variant, reached


def ratio_text(reached: EpochsToBaseline, epochs: int) -> str:
    """ "0.75, 1.33x as fast", or that the level was not reached."""
    if reached.ratio is None or reached.speed_up is None:
        return f"not within {epochs} epochs"
    return f"{reached.ratio:.2f}, {reached.speed_up:.2f}\N{MULTIPLICATION SIGN} as fast"


def added_parameters(variant: VariantResult) -> str:
    """The variant's parameters beyond the baseline's in percent ("+0.37%"); empty where costs were not measured."""
    if variant.cost is None:
        return ""
    text = f"{100 * (variant.cost.parameters_ratio - 1):+.2f}"
    return f"{text if text.strip('+-0.') else '0'}%"


def epochs_sentence(variant: VariantResult, reached: EpochsToBaseline, epochs: int) -> str:
    """One variant in words: "cb_s: 0.75, 1.33x as fast; seeds 0.67, 0.83, never; parameters +0.01%"."""
    ratios = [reached.ratio_of(seed) for seed in sorted(reached.by_seed)]
    seeds = ", ".join("never" if ratio is None else f"{ratio:.2f}" for ratio in ratios)
    more = added_parameters(variant)
    return f"{variant.name}: {ratio_text(reached, epochs)}; seeds {seeds}" + (f"; parameters {more}" if more else "")


def draw_epochs(axes: Axes, scene: Scene) -> None:
    """A bar per variant from zero to its ratio, a dot per seed, the baseline's own epochs as a line at 1."""
    theme, result = scene.theme, scene.result
    rows = compared(result)
    looks = [look for _, look in scene.dressed]
    ratios = [ratio for _, _, reached in rows for ratio in (reached.ratio, *map(reached.ratio_of, reached.by_seed))]
    axes.set_xlim(0, 1.06 * max([1.0, *(ratio for ratio in ratios if ratio is not None)]))
    axes.set_ylim(len(rows) - 0.4, -0.6)
    axes.grid(axis="y", visible=False)
    axes.grid(axis="x", color=theme.line, linewidth=0.6)
    axes.axvline(1, color=theme.baseline, linewidth=1.2)
    axes.set_yticks([])
    ruled(axes.xaxis, 1)
    for row, (place, variant, reached) in enumerate(rows):
        _row(axes, scene, row, variant, reached, looks[place])
    first = rows[0][2].baseline_epoch
    headed(
        axes,
        theme,
        "epochs to the baseline's best mean",
        below=f"1 = the baseline's own epoch {first}; lower is sooner",
    )


def _row(axes: Axes, scene: Scene, row: int, variant: VariantResult, reached: EpochsToBaseline, look: Look) -> None:
    theme, color, beside = scene.theme, look.color(scene.theme), axes.get_yaxis_transform()
    if reached.ratio is not None:
        axes.barh(row, reached.ratio, height=0.62, color=color, alpha=0.32, linewidth=0)
        axes.plot([reached.ratio] * 2, [row - 0.31, row + 0.31], color=color, linewidth=2.2)
    for seed in reached.by_seed:
        ratio = reached.ratio_of(seed)
        if ratio is not None:
            axes.plot([ratio], [row + 0.17], marker="o", markersize=4, color=color, mec=theme.surface, mew=0.7)
    name = shorten(variant.name, NAME_WIDTH)
    axes.text(-0.015, row, name, transform=beside, ha="right", va="center", color=theme.ink)
    if more := added_parameters(variant):
        text = "no more parameters" if more == "0%" else f"{minus(more)} parameters"
        axes.text(0.015, row - 0.06, text, transform=beside, va="center", color=theme.ink)
    said = ratio_text(reached, scene.result.epochs)
    axes.text(1.02, row, said, transform=beside, va="center", color=theme.ink)
