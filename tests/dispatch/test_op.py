"""Choice of a backend: order, reasons, names, environment."""

from __future__ import annotations

import copy
import inspect
import os
import pickle
import re

import pytest
import torch
from torch import Tensor, nn

from attngraft.dispatch import (
    BACKENDS,
    ENVIRONMENT,
    Backend,
    Op,
    Shapes,
    op,
    reference_backend,
    registered_ops,
    triton_obstacle,
)
from attngraft.errors import BackendError, UsageError
from attngraft.mechanisms.registry import graft_types


def only_short(x: Tensor) -> str | None:
    return None if x.numel() < 4 else "it takes fewer than 4 numbers"


@pytest.fixture
def doubling(monkeypatch: pytest.MonkeyPatch) -> Op:
    """Op whose results name the backend; unregistered afterwards."""
    monkeypatch.delenv(ENVIRONMENT, raising=False)
    monkeypatch.setattr(op, "_registered", dict(op._registered))

    def doubling(x: Tensor) -> tuple[str, Tensor]:
        """Double x."""
        return "reference", 2 * x

    return Op(doubling, "2 x", shapes=Shapes(x="N"), eager=Backend(lambda x: ("eager", x + x), only_short))


def test_auto_takes_the_first_that_can(doubling: Op) -> None:
    assert doubling(torch.ones(2))[0] == "eager"
    assert doubling(torch.ones(9))[0] == "reference"


def test_a_name_takes_that_one_or_says_why_not(doubling: Op) -> None:
    assert doubling(torch.ones(2), backend="reference")[0] == "reference"
    with pytest.raises(BackendError, match=r"doubling: backend 'eager' cannot be used here: it takes fewer than 4"):
        doubling(torch.ones(9), backend="eager")
    with pytest.raises(BackendError, match="doubling has no backend 'triton'; it has eager, reference and auto"):
        doubling(torch.ones(2), backend="triton")


def test_the_environment_stands_for_the_argument(doubling: Op, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ENVIRONMENT, "reference")
    assert doubling(torch.ones(2))[0] == "reference"
    assert doubling(torch.ones(2), backend="eager")[0] == "eager"
    monkeypatch.setenv(ENVIRONMENT, "eager")
    with pytest.raises(BackendError, match="fewer than 4"):
        doubling(torch.ones(9))
    monkeypatch.setenv(ENVIRONMENT, "triton")  # this op has none, so the choice is as under auto
    assert doubling(torch.ones(9))[0] == "reference"
    monkeypatch.setenv(ENVIRONMENT, "fast")
    with pytest.raises(BackendError, match="ATTNGRAFT_BACKEND=fast is not a backend; use auto, triton"):
        doubling(torch.ones(2))


def test_explain_lists_every_backend(doubling: Op) -> None:
    explained = doubling.explain(torch.ones(9))
    assert explained.chosen == "reference"
    assert explained.verdicts == {"eager": "it takes fewer than 4 numbers", "reference": "chosen"}
    assert str(explained) == "doubling\n  eager: it takes fewer than 4 numbers\n  reference: chosen"
    assert doubling.explain(torch.ones(2), backend="reference").verdicts["eager"] == "could be used"
    with pytest.raises(BackendError, match="cannot be used here"):
        doubling.explain(torch.ones(9), backend="eager")


def test_a_name_is_registered_once(doubling: Op) -> None:
    def another(x: Tensor) -> Tensor:
        return 2 * x

    another.__name__ = "doubling"
    with pytest.raises(ValueError, match="already registered"):
        Op(another, "2 x")


def test_copies_are_the_op_itself(doubling: Op) -> None:
    assert copy.deepcopy(doubling) is doubling
    assert pickle.loads(pickle.dumps(doubling)) is doubling


def test_it_has_the_signature_and_docstring_of_the_reference(doubling: Op) -> None:
    assert str(inspect.signature(doubling)) == "(x: 'Tensor', *, backend: str = 'auto') -> 'tuple[str, Tensor]'"
    assert doubling.__doc__ == "Double x."


def test_operands_are_checked_before_a_call_unless_they_are_known_to_fit(doubling: Op) -> None:
    with pytest.raises(UsageError, match=re.escape("x must have shape (N), not (1, 2)")):
        doubling(x=torch.ones(1, 2))
    assert doubling.unchecked(torch.ones(1, 2))[0] == "eager"


def test_shapes() -> None:
    shapes = Shapes(x="B, N, c", y="b, N", weight="2 c, N")
    x, weight = torch.ones(2, 3, 4), torch.ones(8, 3)
    shapes.check({"x": x, "y": torch.ones(1, 3), "weight": weight})
    shapes.check({"x": x, "y": None, "weight": weight})
    for name, tensor, expected in (
        ("y", torch.ones(3, 3), "y must have shape (b, N) with B=2, N=3 as in the operands before it, not (3, 3)"),
        (
            "weight",
            torch.ones(7, 3),
            "weight must have shape (2 c, N) with c=4, N=3 as in the operands before it, not (7, 3)",
        ),
    ):
        with pytest.raises(UsageError, match=re.escape(expected)):
            shapes.check({"x": x, name: tensor})


class Doubled(nn.Module):
    def __init__(self, doubling: Op) -> None:
        super().__init__()
        self.doubling = doubling

    def forward(self, x: Tensor) -> Tensor:
        return self.doubling(x)[1]


def test_the_choice_vanishes_in_an_exported_graph(doubling: Op) -> None:
    exported = torch.export.export(Doubled(doubling), (torch.ones(2),))
    calls = [str(node.target) for node in exported.graph.nodes if node.op == "call_function"]
    assert calls == ["aten.add.Tensor"]


@pytest.mark.slow
def test_the_choice_compiles_whole(doubling: Op, monkeypatch: pytest.MonkeyPatch) -> None:
    compiled = torch.compile(Doubled(doubling), fullgraph=True)
    assert torch.equal(compiled(torch.ones(2)), torch.full((2,), 2.0))
    monkeypatch.setenv(ENVIRONMENT, "reference")
    torch._dynamo.reset()
    assert torch.equal(compiled(torch.ones(3)), torch.full((3,), 2.0))


def test_built_in_ops_are_known_and_can_be_explained() -> None:
    graft_types()
    known = registered_ops()
    assert {"context_broadcast", "scaled_context_broadcast", "horizontal_attention", "vertical_attention"} <= set(known)
    for one in known.values():
        assert set(one.backends) <= set(BACKENDS)
        assert one.summary
    assert known["context_broadcast"].explain(torch.ones(1, 2, 3)).chosen == "eager"
    x = torch.ones(1, 2, 3, 4)
    verdicts = known["two_way_attention"].explain(x, x, x, x).verdicts
    assert verdicts["eager"] == "chosen"
    assert "cuda" in verdicts["triton"]


def test_reasons_against_triton(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("attngraft.dispatch.triton.INTERPRETING", False)
    assert triton_obstacle(torch.ones(1)) == "the tensors are on cpu, and Triton kernels need cuda"
    monkeypatch.setattr("attngraft.dispatch.triton.INTERPRETING", True)
    monkeypatch.setattr("attngraft.dispatch.triton.INSTALLED", True)
    monkeypatch.setattr("attngraft.dispatch.triton.RECENT", False)
    assert "require torch 2.10 or later" in str(triton_obstacle(torch.ones(1)))
    monkeypatch.setattr("attngraft.dispatch.triton.RECENT", True)
    assert triton_obstacle(torch.ones(1)) is None
    assert "not float64" in str(triton_obstacle(torch.ones(1, dtype=torch.float64)))
    reasons: list[str | None] = []
    torch.func.vmap(lambda one: reasons.append(triton_obstacle(one)) or one)(torch.ones(2))
    assert "a function transform" in str(reasons)
    monkeypatch.setattr("attngraft.dispatch.triton.INSTALLED", False)
    assert "not installed" in str(triton_obstacle(torch.ones(1)))


@pytest.mark.parametrize("before", [None, "eager"])
def test_reference_backend_restores_the_environment(monkeypatch: pytest.MonkeyPatch, before: str | None) -> None:
    if before is None:
        monkeypatch.delenv(ENVIRONMENT, raising=False)
    else:
        monkeypatch.setenv(ENVIRONMENT, before)
    with reference_backend():
        assert os.environ[ENVIRONMENT] == "reference"
    assert os.environ.get(ENVIRONMENT) == before
