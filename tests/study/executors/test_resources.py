"""What a run asks of a Ray cluster, for clusters of all sizes; Ray itself is fake."""

from __future__ import annotations

import importlib.util
import logging
from types import SimpleNamespace
from typing import Any

import pytest

from attngraft.study.executors import Ray
from attngraft.study.executors.ray import _slots

from .test_placement import recipe


@pytest.fixture(autouse=True)
def there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: name)


def cluster(*nodes: tuple[float, float], dead: tuple[tuple[float, float], ...] = ()) -> Any:
    """Nodes with so many CPUs and GPUs; as Ray does, a node does not name what it has none of."""

    def node(cpus: float, gpus: float, *, alive: bool) -> dict[str, Any]:
        named = {"CPU": cpus, "GPU": gpus}
        return {"Alive": alive, "Resources": {name: count for name, count in named.items() if count}}

    found = [node(*each, alive=True) for each in nodes] + [node(*each, alive=False) for each in dead]
    return SimpleNamespace(nodes=lambda: found)


def asked(ray: Any, threads: int = 2, **given: float) -> tuple[float, float]:
    resources = Ray(**given)._resources(ray, recipe(threads))  # type: ignore[arg-type]
    return resources["num_cpus"], resources["num_gpus"]


def test_by_default_its_threads_and_one_device_where_there_is_one(caplog: pytest.LogCaptureFixture) -> None:
    assert asked(cluster((8, 0), (4, 0))) == (2, 0)
    assert asked(cluster((8, 0), (4, 4))) == (2, 1)
    assert asked(cluster((8, 0.5))) == (2, 0.5)  # all there is
    assert asked(cluster((4, 0), (4, 0)), threads=16) == (4, 0)  # no more than the largest node has
    assert asked(cluster((0, 0)), threads=4) == (1, 0)  # a head that takes no work: one that may come has a core
    assert asked(cluster(), threads=4) == (1, 0)
    assert asked(cluster((2, 0), dead=((64, 8),)), threads=8) == (2, 0)
    assert caplog.text == ""


def test_what_is_asked_for_is_asked_for(caplog: pytest.LogCaptureFixture) -> None:
    assert asked(cluster((8, 2)), cpus=3, gpus=0.5) == (3, 0.5)
    assert asked(cluster((8, 2)), cpus=0, gpus=0) == (0, 0)
    assert caplog.text == ""


@pytest.mark.parametrize("given", [{"cpus": 9.0}, {"gpus": 3.0}, {"cpus": 9.0, "gpus": 3.0}])
def test_what_no_node_has_is_waited_for_and_told(given: dict[str, float], caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, logger="attngraft"):
        found = asked(cluster((8, 1), (4, 2), dead=((64, 8),)), **given)
    assert found == (given.get("cpus", 2.0), given.get("gpus", 1.0))
    words = f"a run requests {found[0]:g} CPUs and {found[1]:g} GPUs, more than any node has"
    assert words in caplog.text


def test_how_many_runs_fit() -> None:
    ray = cluster((8, 1), (5, 4), (1, 0), dead=((64, 8),))
    assert _slots(ray, {"num_cpus": 2.0, "num_gpus": 0.0}) == 4 + 2
    assert _slots(ray, {"num_cpus": 2.0, "num_gpus": 1.0}) == 1 + 2
    assert _slots(ray, {"num_cpus": 1.0, "num_gpus": 0.5}) == 2 + 5
    assert _slots(ray, {"num_cpus": 0.0, "num_gpus": 0.0}) == 3
