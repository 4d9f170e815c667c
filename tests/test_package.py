"""The public interface of the package: lazy and complete."""

from __future__ import annotations

import ast
import importlib.metadata
import inspect
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import torch
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from torch import nn

import attngraft
from attngraft.errors import UsageError
from attngraft.hosts import HostAdapter

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


ONE = nn.Linear(1, 1)
#: calls of public functions with one argument of a wrong type, and its name
WRONG: list[tuple[str, str, tuple[Any, ...], dict[str, Any]]] = [
    ("create_model", "name", (3,), {}),
    ("create_model", "graft", ("vit_tiny_patch16_224", 3), {}),
    ("create_model", "weights", ("vit_tiny_patch16_224",), {"weights": 3}),
    ("from_pretrained", "path", (3,), {}),
    ("from_pretrained", "model_class", ("folder",), {"model_class": "ViTModel"}),
    ("graft", "model", ("x", "cb_s"), {}),
    ("graft", "model", (nn.Linear, "cb_s"), {}),
    ("graft", "spec", (ONE, 3), {}),
    ("graft_set", "model", (None, "all"), {}),
    ("graft_set", "name", (ONE, 3), {}),
    ("load", "path", (None,), {}),
    ("load", "device", ("folder",), {"device": 0.5}),
    ("load_grafts", "model", ("x", "file"), {}),
    ("load_grafts", "path", (ONE, None), {}),
    ("pin_unused", "optimizer", (ONE, ONE), {}),
    ("pin_unused", "model", (torch.optim.SGD(ONE.parameters()), None), {}),
    ("plan", "model", (3, "cb_s"), {}),
    ("push_to_hub", "folder", (3, "user/name"), {}),
    ("push_to_hub", "repo_id", ("folder", 3), {}),
    ("push_to_hub", "token", ("folder", "user/name"), {"token": 3}),
    ("read_study", "path", (5,), {}),
    ("record", "model", ("x",), {}),
    ("record", "what", (ONE, 3), {}),
    ("record", "sites", (ONE,), {"sites": 3}),
    ("register_graft", "graft_type", ("cb",), {}),
    ("register_host", "adapter", (HostAdapter,), {}),
    ("save_grafts", "model", (None, "file"), {}),
    ("save_grafts", "path", (ONE, None), {}),
    ("save_grafts", "include", (ONE, "file"), {"include": 3}),
    ("save_pretrained", "model", (3, "folder"), {}),
    ("save_pretrained", "folder", (ONE, None), {}),
    ("ungraft", "model", ("x",), {}),
    ("ungraft", "names", (ONE, 3), {}),
]
#: without arguments that are checked: classes, and functions that take none
UNCHECKED = {"list_grafts", "list_hosts"}


@pytest.mark.parametrize(("function", "argument", "given", "named"), WRONG)
def test_arguments_of_wrong_types_are_named(
    function: str, argument: str, given: tuple[Any, ...], named: dict[str, Any]
) -> None:
    def call() -> None:
        found = getattr(attngraft, function)(*given, **named)
        found.__enter__()  # of `record`, which checks on entry

    with pytest.raises(TypeError, match=rf"^argument '{argument}' must be .*, not ") as caught:
        call()
    assert isinstance(caught.value, UsageError)


def test_the_arguments_of_every_public_function_are_checked() -> None:
    functions = {name for name in attngraft.__all__ if inspect.isfunction(getattr(attngraft, name))}
    assert functions - UNCHECKED == {function for function, *_ in WRONG}


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
