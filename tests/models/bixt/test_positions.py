"""Position codes: the formula, grids, and state dicts of other grids."""

from __future__ import annotations

import math

import pytest
import torch

from attngraft.errors import UsageError
from attngraft.models.bixt.positions import DynamicPositions, StaticPositions, fourier_positions, make_positions


@pytest.mark.parametrize("grid", [(3, 5), (1, 1), (4, 2)])
def test_the_formula(grid: tuple[int, int]) -> None:
    rows, columns = grid
    code = fourier_positions(rows, columns, dim=6, temperature=50.0).double()
    assert code.shape == (12, rows, columns)
    for y in range(rows):
        for x in range(columns):
            for j in range(3):
                for place, size, first in ((y, rows, 0), (x, columns, 6)):
                    angle = 2 * math.pi * (place + 1) / (size + 1e-6) / 50 ** (2 * j / 6)
                    assert code[first + 2 * j, y, x] == pytest.approx(math.sin(angle), abs=2e-6)
                    assert code[first + 2 * j + 1, y, x] == pytest.approx(math.cos(angle), abs=2e-6)


def test_a_finer_grid_samples_the_same_interval() -> None:
    """The last row of any grid lies at 2 pi, every second row of a grid twice as fine where a row of the coarse one is."""
    coarse, fine = fourier_positions(4, 4), fourier_positions(8, 8)
    torch.testing.assert_close(fine[:, 1::2, 1::2], coarse, atol=3e-6, rtol=0)


def test_static_and_dynamic_say_the_same() -> None:
    torch.manual_seed(0)
    static = StaticPositions(5, (3, 4), dim=4)
    dynamic = DynamicPositions(5, dim=4)
    dynamic.load_state_dict(static.state_dict())  # `pos` is passed over
    found = static((3, 4))
    assert found.shape == (1, 12, 5)
    assert torch.equal(found, dynamic((3, 4)))
    row, column = 1, 2
    expected = static.token_projection.weight[..., 0, 0] @ static.pos[:, row, column] + static.token_projection.bias
    torch.testing.assert_close(found[0, row * 4 + column], expected)


@pytest.mark.parametrize("assign", [False, True])
def test_a_state_dict_of_another_grid_or_without_a_code(assign: bool) -> None:
    given = StaticPositions(5, (3, 4), dim=4).state_dict()
    for state in (given, {name: value for name, value in given.items() if name != "pos"}):
        names = set(state)
        other = StaticPositions(5, (2, 6), dim=4)
        other.load_state_dict(state, assign=assign)
        assert torch.equal(other.pos, fourier_positions(2, 6, dim=4))
        assert torch.equal(other.token_projection.weight, state["token_projection.weight"])
        assert set(state) == names  # the caller's dictionary is left alone


def test_a_code_of_the_same_grid_is_taken() -> None:
    state = StaticPositions(5, (3, 4), dim=4).state_dict()
    state["pos"] = state["pos"] + 1
    module = StaticPositions(5, (3, 4), dim=4)
    module.load_state_dict(state)
    assert torch.equal(module.pos, state["pos"])


def test_a_module_made_without_memory_gets_its_code_from_a_state_dict() -> None:
    state = StaticPositions(5, (3, 4), dim=4).state_dict()
    del state["pos"]
    with torch.device("meta"):
        module = StaticPositions(5, (3, 4), dim=4)
    assert module.pos.is_meta
    module.load_state_dict(state, assign=True)
    assert torch.equal(module.pos, fourier_positions(3, 4, dim=4))


def test_another_grid_keeps_the_dtype() -> None:
    module = StaticPositions(5, (3, 4), dim=4).bfloat16()
    module.set_grid((2, 2))
    assert (module.pos.shape, module.pos.dtype) == ((8, 2, 2), torch.bfloat16)
    assert module((2, 2)).dtype == torch.bfloat16
    assert DynamicPositions(5, dim=4).bfloat16()((2, 2)).dtype == torch.bfloat16


def test_an_unknown_kind() -> None:
    with pytest.raises(UsageError, match="positions of BiXT must be 'static' or 'dynamic' or 'none', not 'learned'"):
        make_positions("learned", 5, (2, 2), dim=4, temperature=1e4)
