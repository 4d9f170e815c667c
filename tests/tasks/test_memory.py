"""Warnings about memory."""

from __future__ import annotations

from attngraft.tasks.memory import InferenceMemory


def test_the_first_settings_that_fit_are_the_remedy() -> None:
    found = InferenceMemory(
        what="evaluating the largest image, 40 x 30,",
        bytes=3 * 2**30,
        smaller={"task.test.mode=slide": lambda: 2 * 2**30, "task.test.size=512": lambda: 2**30},
    )
    assert found.warning(None) == found.warning(3 * 2**30) == ""
    assert found.warning(2**31) == (
        "evaluating the largest image, 40 x 30, takes about 3.00 GiB of memory, but 2.00 GiB are free; use --set "
        "task.test.mode=slide"
    )
    assert found.warning(2**30).endswith("use --set task.test.size=512")
    assert found.warning(2**20).endswith("1.0 MiB are free; use smaller images")
