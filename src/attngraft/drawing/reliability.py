"""One model's reliability diagram as files: stated to the right, come true upwards, and how many predictions below."""

from __future__ import annotations

from attngraft.drawing.sheet import Panel, drawing, headed, png, sheet, svg
from attngraft.drawing.theme import LIGHT
from attngraft.results.sections import Reliability
from attngraft.results.wording import plural, shown


def reliability_files(found: Reliability, *, title: str) -> dict[str, bytes]:
    """`reliability.svg` and `reliability.png`; the same result gives the same bytes."""
    with drawing(text_as_paths=True):
        figure, (axes, bars) = sheet(
            [Panel(width=3.6, height=3.6, bottom=0.55, top=0.5), Panel(width=3.0, height=3.6, bottom=0.55, top=0.5)],
            LIGHT,
            opaque=True,
        )
        color = LIGHT.colors["series-0"]
        known = [
            (100 * stated, 100 * observed, count)
            for stated, observed, count in zip(found.stated, found.observed, found.counts, strict=True)
            if stated is not None and observed is not None
        ]
        most = max((count for _, _, count in known), default=1)
        axes.plot([0, 100], [0, 100], color=LIGHT.muted, linewidth=1, linestyle=(0, (3, 3)))
        stated, observed = [x for x, _, _ in known], [y for _, y, _ in known]
        sizes = [8 + 40 * count / most for *_, count in known]
        axes.plot(stated, observed, color=color, linewidth=1.5, clip_on=False)
        axes.scatter(stated, observed, s=sizes, color=color, clip_on=False, zorder=3)
        axes.set_xlim(0, 100)
        axes.set_ylim(0, 100)
        error = 100 * sum(found.error_by_seed) / (len(found.error_by_seed) or 1)
        headed(axes, LIGHT, f"{shown(title)}: ECE {error:.2f} %", below="stated probability, %")
        axes.set_ylabel("come true, %", color=LIGHT.muted)
        width = 100 / (len(found.counts) or 1)
        bars.bar([width * (i + 0.5) for i in range(len(found.counts))], found.counts, width=0.9 * width, color=color)
        bars.set_xlim(0, 100)
        headed(bars, LIGHT, f"of {plural(sum(found.counts), 'prediction')}", below="stated probability, %")
        return {"reliability.svg": svg(figure).encode(), "reliability.png": png(figure)}
