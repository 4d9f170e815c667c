"""Light and dark color themes of figures and pages, and the styles of variants.

Series colors are distinguishable with protanopia, deuteranopia and tritanopia and contrast with the background (both are
tested). Markers and direct labels convey the same information.
"""

from dataclasses import dataclass

from attngraft.results.study import StudyResult
from attngraft.results.wording import TOO_SHORT

VERDICT_SIGNS = {"better": "▲", "worse": "▼", "inside the noise": "≈", TOO_SHORT: "?"}
MARKERS = ("o", "s", "^", "D", "v", "P", "X")


@dataclass(frozen=True, kw_only=True)
class Theme:
    """Colors by role, in hexadecimal sRGB; the keys of `colors` are the names of CSS variables in pages."""

    name: str
    surface: str
    ink: str
    muted: str
    line: str
    better: str
    worse: str
    noise: str
    baseline: str
    series: tuple[str, ...]

    @property
    def colors(self) -> dict[str, str]:
        roles = ("surface", "ink", "muted", "line", "better", "worse", "noise", "baseline")
        named = {role: str(getattr(self, role)) for role in roles}
        return named | {f"series-{index}": color for index, color in enumerate(self.series)}


LIGHT = Theme(
    name="light",
    surface="#ffffff",
    ink="#1b1f27",
    muted="#5c6472",
    line="#dfe2e8",
    better="#0b6e4f",
    worse="#b0370f",
    noise="#626a78",
    baseline="#4b5260",
    series=("#1f5fc4", "#d9541e", "#14924f", "#b75fb5", "#7d5200", "#3a8ff0"),
)
DARK = Theme(
    name="dark",
    surface="#15171c",
    ink="#e8eaee",
    muted="#a0a7b4",
    line="#31353e",
    better="#4cc79a",
    worse="#ff8d63",
    noise="#a3aab6",
    baseline="#858c99",
    series=("#5f90ff", "#ff8e40", "#2bbd82", "#d695d6", "#ecd672", "#6fd6f5"),
)
THEMES = (LIGHT, DARK)


@dataclass(frozen=True, kw_only=True)
class VariantStyle:
    """Color, marker and dashes of one variant, the same in all figures."""

    role: str  #: the color's name in `Theme.colors`
    marker: str
    dashed: bool

    def color(self, theme: Theme) -> str:
        return theme.colors[self.role]


def variant_styles(result: StudyResult) -> list[VariantStyle]:
    """Return one style per variant: gray for the baseline, dashes where colors repeat."""
    styles, count = [], 0
    for variant in result.variants:
        if variant.is_baseline:
            styles.append(VariantStyle(role="baseline", marker="o", dashed=False))
            continue
        turn, index = divmod(count, len(LIGHT.series))
        marker = MARKERS[(1 + count) % len(MARKERS)]
        styles.append(VariantStyle(role=f"series-{index}", marker=marker, dashed=turn % 2 == 1))
        count += 1
    return styles


def css_themes() -> dict[str, str]:
    """Return the colors of each theme as declarations of CSS variables, by theme name."""
    return {theme.name: " ".join(f"--{role}: {color};" for role, color in theme.colors.items()) for theme in THEMES}
