"""The axis of layers that models share."""

from __future__ import annotations

from attngraft.analysis.layers import LayerAxis
from attngraft.analysis.panels import mean


def sites(*numbers: int) -> list[str]:
    return [f"blocks.{number}.attn" for number in numbers]


def test_models_share_places_by_name() -> None:
    axis = LayerAxis.of([sites(2, 3), sites(0, 1, 2, 3)])
    assert axis.ticks == ["0", "1", "2", "3"]
    line = axis.line("late", 0, dict(zip(sites(2, 3), (0.5, 0.7), strict=True)))
    assert (line.x, line.y) == ([2.0, 3.0], [0.5, 0.7])


def test_a_layer_that_a_model_lacks_is_a_gap() -> None:
    axis = LayerAxis.of([sites(0, 1, 2), sites(0, 2)])
    values = dict(zip(sites(0, 2), (1.0, 3.0), strict=True))
    line = axis.line("a", 0, values, band={sites(2)[0]: (2.0, 4.0)})
    assert (line.x, line.y) == ([0.0, 1.0, 2.0], [1.0, None, 3.0])
    assert (line.low, line.high) == ([None, None, 2.0], [None, None, 4.0])


def test_layers_that_no_model_has_in_common_keep_their_order() -> None:
    for models in ([sites(10, 11), sites(2, 9)], [sites(2, 9), sites(10, 11)]):
        assert list(LayerAxis.of(models).positions) == sites(2, 9, 10, 11)
    other = ["blocks.0.attn", "norm.attn", "blocks.1.attn"]
    assert list(LayerAxis.of([sites(0, 1, 2), other]).positions) == [*other[:2], *sites(1, 2)]


def test_models_of_unlike_names_lie_over_one_another() -> None:
    swin = ["layers.0.blocks.0.attn", "layers.0.blocks.1.attn", "layers.1.blocks.0.attn"]
    axis = LayerAxis.of([sites(0, 1), swin])
    assert axis.line("ViT", 0, dict.fromkeys(sites(0, 1), 1.0)).x == [0.0, 1.0]
    assert axis.line("Swin", 1, dict.fromkeys(swin, 1.0)).x == [0.0, 1.0, 2.0]
    assert axis.ticks == ["0.0", "0.1", "1.0"]


def test_bounds_that_run_alike_are_one_line() -> None:
    axis = LayerAxis.of([sites(0, 1), sites(0, 1), sites(1)])
    ways = [dict.fromkeys(sites(0, 1), 2.0), dict.fromkeys(sites(0, 1), 2.0), dict.fromkeys(sites(1), 2.0)]
    assert [(line.subject, line.x) for line in axis.bounds("most", ways)] == [(None, [0.0, 1.0]), (None, [1.0])]


def test_the_mean_of_what_is_there() -> None:
    assert mean([1.0, None, 3.0]) == 2
    assert mean([None]) is None
