"""Hooks of `mkdocs build`, which add the generated pages to the site. Nothing is written into docs/."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]


def pages() -> dict[str, Callable[[], str]]:
    """Return the generated pages by their path in the site's sources."""
    from docs.generate.cli_reference import cli_reference
    from docs.generate.coverage_table import coverage_table
    from docs.generate.graft_reference import graft_reference
    from docs.generate.notebook_page import notebook_page
    from docs.generate.paper_tables import paper_tables
    from docs.generate.recipe_reference import recipe_reference

    made: dict[str, Callable[[], str]] = {
        "reference/recipe.md": recipe_reference,
        "reference/cli.md": cli_reference,
        "reference/grafts.md": graft_reference,
        "reference/coverage.md": coverage_table,
        "reference/papers.md": paper_tables,
        "changelog.md": lambda: (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"),
    }
    for path in sorted((ROOT / "notebooks").glob("*.ipynb")):
        executed = ROOT / "build" / "notebooks" / path.name
        made[f"notebooks/{path.stem}.md"] = partial(notebook_page, path, executed=executed)
    return made


def on_files(files: Any, config: Any) -> Any:
    """mkdocs hook: add the generated pages."""
    from mkdocs.structure.files import File

    if str(ROOT) not in sys.path:
        sys.path.insert(0, str(ROOT))  # here, because mkdocs puts the path back after it has imported this file
    for path, make in pages().items():
        files.append(File.generated(config, path, content=make()))
    return files


def on_post_page(output: str, page: Any, config: Any) -> str:
    """mkdocs hook: check that a finished page loads nothing from other servers, so that the site works offline."""
    from mkdocs.exceptions import PluginError

    if found := external(output):
        raise PluginError(f"{page.file.src_path} would load {', '.join(found)}; store a copy under docs/ instead")
    return output


def external(html: str) -> list[str]:
    """Return external addresses that a browser loads with the page; links do not count."""
    loading = re.findall(r"<(?:script|img|iframe|source|video|audio|embed|object)\b[^>]*>", html)
    loading += [
        tag
        for tag in re.findall(r"<link\b[^>]*>", html)
        if re.search(r"rel=\"?(?:[\w-]+ )*(?:stylesheet|icon|preload)", tag)
    ]
    return [
        address
        for tag in loading
        for address in re.findall(r"""(?:src|href|data)=["']?((?:https?:)?//[^"'\s>]+)""", tag)
    ]
