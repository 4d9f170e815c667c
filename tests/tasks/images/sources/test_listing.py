from __future__ import annotations

from attngraft.tasks.images.sources.listing import natural


def test_natural_order() -> None:
    long = 5000 * "9"  # more digits than int takes
    names = ["class 10", long, "b", "class 2", "2"]
    assert sorted(names, key=natural) == ["2", long, "b", "class 2", "class 10"]
