"""The public interface of the package: lazy and complete."""

from __future__ import annotations

import ast
import importlib.metadata
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import attngraft

UNDECLARED = {"pandas", "triton"}  #: for `to_frame`, which says so; a part of torch on Linux


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


def test_every_imported_package_is_declared() -> None:
    root = Path(__file__).parents[1]
    project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    texts = [*project["dependencies"], *(text for extra in project["optional-dependencies"].values() for text in extra)]
    declared = {canonicalize_name(Requirement(text).name) for text in texts}
    imported = set()
    for path in (root / "src").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                imported |= {alias.name.partition(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module is not None:
                imported.add(node.module.partition(".")[0])
    owners = importlib.metadata.packages_distributions()
    others = imported - set(sys.stdlib_module_names) - UNDECLARED - {"attngraft"}
    assert len(others) > 15
    missing = {
        name for name in others if not declared & {canonicalize_name(owner) for owner in owners.get(name, [name])}
    }
    assert not missing
