"""Tables and plots of sweeps over sizes."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from rich.console import Console

from attngraft.bench.result import current_setting
from attngraft.bench.scaling import Call, Curve, End, Exponent, Limits, Point, ScalingResult
from attngraft.drawing.sheet import settings, sheet
from attngraft.drawing.theme import LIGHT
from attngraft.report.scaling import (
    exponent_lines,
    memory_text,
    scaling_drawings,
    scaling_plots,
    scaling_table,
    seconds_text,
)


def a_curve(layer: str, sizes: tuple[int, ...], **more: object) -> Curve:
    points = tuple(
        Point(tokens=n, seconds=1e-5 * n, low=0.9e-5 * n, high=1.1e-5 * n, samples=3, memory=1000 * n) for n in sizes
    )
    return Curve(layer=layer, title=f"[{layer}] layer", points=points, **more)


def a_result(*curves: Curve) -> ScalingResult:
    return ScalingResult(
        title="[BiXT] forward",
        command="attngraft bench bixt",
        environment=current_setting().environment,
        load=[0.5],
        call=Call(depth=1, backward=False, cpu_time=True, threads=1, repeats=3),
        limits=Limits(seconds=10.0, memory=2_000_000_000),
        curves=curves,
        bars={"bixt": 1.0},
    )


RESULT = a_result(
    a_curve("bixt", (196, 784, 3136), time=Exponent(value=1.02, low=0.97, high=1.07, points=3, bar=1.0)),
    a_curve("vit", (196,), end=End(tokens=784, reason="over 10 s")),
    Curve(layer="none", title="nothing", end=End(tokens=196, reason="out of memory (2 GB)")),
)


def test_the_table_says_where_and_why_curves_end() -> None:
    console = Console(file=io.StringIO(), width=140)
    console.print(scaling_table(RESULT))
    lines = console.file.getvalue().splitlines()  # type: ignore[attr-defined]
    rows = {line.split()[1]: line for line in lines if line.startswith("│")}
    assert list(rows) == ["196", "784", "3,136"]
    assert "1.96 ms" in rows["196"] and "196 kB" in rows["196"] and "out of memory (2 GB)" in rows["196"]
    assert "over 10 s" in rows["784"]
    assert rows["3,136"].count("ms") == 1
    shown = " ".join(" ".join(lines).split())  # the line below the table may be longer than the table is wide
    assert "[BiXT] forward" in shown and "[vit] layer" in shown
    assert "1 thread, load 0.5, torch" in shown and "CPU seconds, limits 10 s and 2 GB" in shown


def test_exponents_in_words() -> None:
    ((line, passed),) = exponent_lines(RESULT)
    assert line == "[bixt] layer: time ~ N^1.02 (0.97 to 1.07), 3 sizes, bar 1 +- 0.1"
    assert passed is True
    free = a_curve("vit", (196,), memory=Exponent(value=1.9, low=1.8, high=2.0, points=4, bar=None))
    assert list(exponent_lines(a_result(free))) == [("[vit] layer: memory ~ N^1.90 (1.80 to 2.00), 4 sizes", None)]


def test_a_curve_with_a_bar_that_is_too_short_for_an_exponent_is_named() -> None:
    assert list(exponent_lines(a_result(a_curve("bixt", (196, 784)), a_curve("vit", (196, 784))))) == [
        ("[bixt] layer: no exponent; it needs three sizes of at least 3,136 tokens", None)
    ]


@pytest.mark.parametrize(
    ("seconds", "text"), [(2e-6, "2 µs"), (9.99e-4, "999 µs"), (0.0123, "12.3 ms"), (1, "1 s"), (123.4, "123 s")]
)
def test_seconds_in_words(seconds: float, text: str) -> None:
    assert seconds_text(seconds) == text


@pytest.mark.parametrize(("size", "text"), [(12, "12 bytes"), (1234, "1.23 kB"), (26.8e6, "26.8 MB"), (1e10, "10 GB")])
def test_memory_in_words(size: float, text: str) -> None:
    assert memory_text(size) == text


def test_plots_are_there_in_both_themes_and_the_same_each_time(tmp_path: Path) -> None:
    files = scaling_plots(RESULT, stem="bixt")
    assert set(files) == {"bixt.png", "bixt.svg", "bixt-dark.png", "bixt-dark.svg"}
    assert files["bixt.png"].startswith(b"\x89PNG")
    assert files["bixt.svg"] != files["bixt-dark.svg"]
    assert scaling_plots(RESULT, stem="bixt") == files


def test_lines_ends_and_exponents_are_drawn() -> None:
    with settings(text_as_paths=True):
        _, (axes, _) = sheet(scaling_drawings(RESULT), LIGHT, opaque=True)
    assert [text.get_text() for text in axes.get_legend().get_texts()] == ["[bixt] layer, ~ N^1.02", "[vit] layer"]
    assert [text.get_text() for text in axes.texts] == ["784: over 10 s"]
    assert axes.get_xscale() == axes.get_yscale() == "log"
    assert [tick.get_text() for tick in axes.get_xticklabels()] == ["196", "784", "3.14k"]


def test_a_sweep_without_any_point_is_drawn_empty() -> None:
    assert len(scaling_plots(a_result(Curve(layer="bixt", title="BiXT layer")), stem="x")) == 4
