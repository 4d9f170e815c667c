"""The public interface of the package: lazy and complete."""

from __future__ import annotations

import subprocess
import sys

import pytest

import attngraft


def in_fresh_python(code: str) -> str:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip()


def test_import_is_lazy() -> None:
    code = "import sys, attngraft; print([m for m in ('torch', 'timm', 'numpy', 'typer') if m in sys.modules])"
    assert in_fresh_python(code) == "[]"


def test_every_public_name_is_there() -> None:
    for name in attngraft.__all__:
        assert getattr(attngraft, name) is not None
    assert set(attngraft.__all__) <= set(dir(attngraft))


def test_unknown_names_raise() -> None:
    with pytest.raises(AttributeError, match="no attribute 'grft'"):
        attngraft.grft  # noqa: B018


def test_help_needs_no_torch() -> None:
    code = (
        "import sys; from attngraft.cli import main\n"
        "try: main(['--help'])\n"
        "except SystemExit as stop: assert not stop.code\n"
        "print('torch' in sys.modules, 'timm' in sys.modules)"
    )
    assert in_fresh_python(code).endswith("False False")
