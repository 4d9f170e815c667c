"""Tables and pages in notebooks."""

from __future__ import annotations

import sys
import webbrowser
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from attngraft.errors import UsageError
from attngraft.notebook import MOST_ROWS, html_table, show_page


def test_a_table_is_escaped_and_short() -> None:
    rows = [("<script>alert(1)</script>", number) for number in range(MOST_ROWS + 3)]
    table = html_table("a & <b>", ("x<", "y"), rows, notes=["<i>"], rest="; see all()")
    assert "<script" not in table and "<i>" not in table
    assert "a &amp; &lt;b&gt;" in table and '<th style="text-align:left">x&lt;</th>' in table
    assert table.count("<tr>") == MOST_ROWS + 1
    assert "and 3 more rows; see all()<br>&lt;i&gt;" in table
    assert "more rows" not in html_table("t", ("x", "y"), rows[:MOST_ROWS])


def test_a_page_opens_in_the_browser(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[str] = []
    monkeypatch.delitem(sys.modules, "IPython", raising=False)
    monkeypatch.setattr(webbrowser, "open", lambda url: opened.append(url) or True)
    page = tmp_path / "a page.html"
    show_page(page)
    assert opened == [page.as_uri()]
    monkeypatch.setattr(webbrowser, "open", lambda url: False)
    with pytest.raises(UsageError, match=r"no web browser was found; open .*a page\.html"):
        show_page(page)


def test_a_page_is_shown_below_the_cell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[dict[str, Any]] = []
    shell = SimpleNamespace(kernel=object(), display_pub=SimpleNamespace(publish=shown.append))
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: shell))
    (tmp_path / "report.html").write_text('<p class="x">a & b</p>', encoding="utf-8")
    show_page(tmp_path / "report.html")
    (output,) = shown
    assert 'srcdoc="&lt;p class=&quot;x&quot;&gt;a &amp; b&lt;/p&gt;"' in output["text/html"]
    assert output["text/plain"] == str(tmp_path / "report.html")
