"""Costs of grafts are counted once for all sites and hosts of one geometry."""

from __future__ import annotations

from typing import Any

import pytest

import attngraft
from attngraft.dispatch import ENVIRONMENT
from attngraft.grafting import cost
from tests.grafting.test_apply import tiny_swin, tiny_vit


def test_costs_are_counted_once_for_each_geometry_graft_and_backend(monkeypatch: pytest.MonkeyPatch) -> None:
    counted: list[tuple[str, Any]] = []
    count = cost._added_cost

    def noted(host: Any, placement: Any) -> Any:
        counted.append((placement.term.name, placement.site.geometry))
        return count(host, placement)

    monkeypatch.setattr(cost, "_added_cost", noted)
    monkeypatch.setattr(cost, "_costs", {})
    first = attngraft.plan(tiny_vit(), "bisa + cb_s")
    assert [name for name, _ in counted] == ["bisa", "cb_s"], "one geometry each, whatever the number of blocks"
    assert attngraft.plan(tiny_vit(), "bisa + cb_s").to_dict() == first.to_dict()
    assert len(counted) == 2
    attngraft.plan(tiny_vit(), "bisa(order=self_then_inverse)")
    assert len(counted) == 3, "other options"
    attngraft.plan(tiny_swin(), "cb_s")
    assert len({str(geometry) for _, geometry in counted[3:]}) == len(counted) - 3 > 1, "other geometries"
    before = len(counted)
    monkeypatch.setenv(ENVIRONMENT, "reference")
    assert attngraft.plan(tiny_vit(), "cb_s").parameters == attngraft.plan(tiny_vit(), "cb_s").parameters
    assert len(counted) == before + 1, "another backend"
