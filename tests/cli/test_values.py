"""Names that the shell does not expand: patterns with `**` do not follow links."""

from __future__ import annotations

from pathlib import Path

import pytest

from attngraft.cli.values import find_images
from attngraft.errors import UsageError
from tests.tasks.images.datasets import picture


def test_patterns_match_at_any_depth_and_not_behind_links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "t/a/b").mkdir(parents=True)
    (tmp_path / "t/.hidden").mkdir()
    for number in range(3):
        (tmp_path / f"t/a/loop{number}").symlink_to(tmp_path / "t")
    for name in ("1.png", "a/10.png", "a/b/2.png", ".hidden/3.png"):
        picture(0).save(tmp_path / "t" / name)
    (tmp_path / "t/a/notes.txt").write_text("no image")
    monkeypatch.chdir(tmp_path)
    expected = ["t/1.png", "t/a/10.png", "t/a/b/2.png"]
    assert find_images(["t/**/*.png"]) == find_images(["t/**"]) == expected
    assert find_images([f"{tmp_path}/t/**/*.png"]) == [str(tmp_path / name) for name in expected]
    assert find_images(["**/b/*.png"]) == find_images(["?/**/b/?.png"]) == ["t/a/b/2.png"]
    assert find_images(["t/*/*.png"]) == ["t/a/10.png"]
    with pytest.raises(UsageError, match=r"\*\* is supported once in a pattern; remove the others"):
        find_images(["t/**/x/**/*.png"])
