from __future__ import annotations

from attngraft.results.facts import facts


def test_class_counts_of_splits_stand_side_by_side():
    (fact,) = facts({"counts": {"train": {"a": 4, "b": 2}, "val": {"a": 1, "b": 1}}}, counts=True)
    assert fact.columns == ["train", "val"]
    assert [(row.label, row.counts, row.share) for row in fact.counts] == [("a", [4, 1], 100.0), ("b", [2, 1], 50.0)]


def test_arguments_are_no_counts():
    (fact,) = facts({"args": {"img_size": 32, "depth": 6}})
    assert [(child.label, child.text) for child in fact.children] == [("img size", "32"), ("depth", "6")]


def test_splits_with_other_classes_nest():
    (fact,) = facts({"counts": {"train": {"a": 4, "b": 2}, "val": {"a": 1}}}, counts=True)
    assert [child.label for child in fact.children] == ["train", "val"]


def test_plain_values_and_long_lists():
    found = facts({"flag": True, "nothing": None, "empty": {}, "many": list(range(100)), "deep": [{"a": [1, 2]}]})
    assert [fact.text for fact in found[:3]] == ["yes", "none", "none"]
    assert found[3].text.endswith("11 and 88 more")
    assert found[4].text == "a: 1, 2"


def test_zero_counts_do_not_divide():
    (fact,) = facts({"counts": {"a": 0, "b": 0}}, counts=True)
    assert [row.share for row in fact.counts] == [0.0, 0.0]
