"""Links of the pages that are no part of the site; the site's own are checked by `mkdocs build --strict`."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.docs.pages import ROOT


@pytest.mark.parametrize("name", ["README.md", "CONTRIBUTING.md", "CHANGELOG.md"])
def test_links_lead_somewhere(name: str) -> None:
    text = re.sub(r"(?ms)^```.*?^```", "", (ROOT / name).read_text(encoding="utf-8"))
    targets = re.findall(r"\]\(([^)\s]+)\)", text) + re.findall(r'(?:src|srcset)="([^"]+)"', text)
    inside = [target.partition("#")[0] for target in targets if not re.match(r"https?://|#", target)]
    assert [target for target in inside if not (ROOT / target).exists()] == []


def test_strict_builds_are_not_quiet() -> None:
    """mkdocs counts warnings by the messages that are shown, so a quiet strict build passes with broken links."""
    command = re.search(r"mkdocs build.*", (Path(ROOT) / "Makefile").read_text(encoding="utf-8"))
    assert command is not None
    assert "--strict" in command[0]
    assert "-q" not in command[0]
