"""The package as a user installs it: built, put into an environment of its own, used from an empty folder."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
import zipfile
from dataclasses import dataclass
from pathlib import Path

import pytest

import attngraft

SOURCE = Path(attngraft.__file__).parent
ROOT = SOURCE.parent.parent

pytestmark = pytest.mark.slow


@dataclass(frozen=True)
class Installed:
    """An environment that holds the built package, and an empty folder to use it from."""

    binaries: Path
    wheel: Path
    folder: Path

    def run(self, *command: str) -> str:
        """What the command writes; it must succeed."""
        environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
        done = subprocess.run(
            [str(self.binaries / command[0]), *command[1:]],
            cwd=self.folder,
            env=environment | {"COLUMNS": "200"},
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, f"{' '.join(command)}\n{done.stdout}\n{done.stderr}"
        return done.stdout

    def python(self, code: str) -> str:
        """What a program prints."""
        return self.run("python", "-c", code).strip()


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Installed:
    pytest.importorskip("hatchling", reason="the package is built with hatchling (extra: dev)")
    if not (ROOT / "pyproject.toml").exists():
        pytest.skip("the tests run beside an installed package; there is no source to build")
    folder = tmp_path_factory.mktemp("installed")
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet"]
    build = [*pip, "wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", str(folder), str(ROOT)]
    subprocess.run(build, check=True)
    (wheel,) = folder.glob("attngraft-*.whl")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder / "venv")], check=True)
    paths = {"base": str(folder / "venv"), "platbase": str(folder / "venv")}
    scripts = Path(sysconfig.get_path("scripts", "venv", paths))
    packages = Path(sysconfig.get_path("purelib", "venv", paths))
    into = [*pip, "--python", str(scripts / "python"), "install", "--no-deps", "--no-index", str(wheel)]
    subprocess.run(into, check=True)
    # What it depends on comes from the environment of the tests, behind its own; .pth files there are not followed, so
    # that an editable installation stays out of sight.
    around = {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}
    (packages / "around.pth").write_text("\n".join(sorted(around)) + "\n")
    (folder / "empty").mkdir()
    return Installed(binaries=scripts, wheel=wheel, folder=folder / "empty")


def test_everything_is_in_the_wheel(installed: Installed) -> None:
    ours = {
        path.relative_to(SOURCE.parent).as_posix()
        for path in SOURCE.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    with zipfile.ZipFile(installed.wheel) as wheel:
        names = set(wheel.namelist())
        (metadata,) = (wheel.read(name).decode() for name in names if name.endswith(".dist-info/METADATA"))
    assert {name for name in names if ".dist-info/" not in name} == ours
    assert {f"attngraft/{name}" for name in ("py.typed", "results/coverage.json", "papers/cb.yaml")} <= names
    assert "License-Expression: Apache-2.0" in metadata
    assert any(name.endswith("LICENSE") for name in names)


def test_it_is_loaded_from_there(installed: Installed) -> None:
    found = Path(installed.python("import attngraft; print(attngraft.__file__)"))
    assert found.is_relative_to(installed.binaries.parent)
    assert not found.is_relative_to(ROOT)
    path = json.loads(installed.python("import json, sys; print(json.dumps(sys.path))"))
    assert str(SOURCE.parent) not in path
    assert installed.run("attngraft", "--version").startswith(f"attngraft {attngraft.__version__} (torch ")


#: commands that one process answers one after the other, which spares the imports
ASKED = {
    "recipes": ["list", "recipes", "--json"],
    "papers": ["list", "papers", "--json"],
    "grafts": ["list"],
    "table": ["paper", "bisa", "table4"],
    "doctor": ["doctor", "--json"],
    "hosts": ["list", "hosts", "--json"],
    "t2t_vit": ["doctor", "--host", "t2t_vit_14", "--host-arg", "depth=2", "--json"],
    "local": ["plan", "swin_tiny_patch4_window7_224", "elsa@layers.0", "--json"],
}
ASKING = """
import contextlib, io, json, sys
from attngraft.cli import main
from attngraft.results.coverage import measured_coverage

def answer(command):
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        try:
            main(command)
        except SystemExit as ended:
            assert not ended.code, (command, ended.code)
    return said.getvalue()

answers = {name: answer(command) for name, command in json.loads(sys.argv[1]).items()}
print(json.dumps(answers | {"coverage": len(measured_coverage().measured)}))
"""


def test_it_answers(installed: Installed) -> None:
    """About its data, its hosts, and the environment that it is in."""
    said = json.loads(installed.run("python", "-c", ASKING, json.dumps(ASKED)))
    for what, folder in (("recipes", "training/recipes"), ("papers", "papers")):
        listed = {entry["name"] for entry in json.loads(said[what])}
        assert listed == {path.stem for path in (SOURCE / folder).glob("*.yaml")}
        assert listed
    assert "bisa" in said["grafts"]
    assert "7.777" in said["table"]
    assert said["coverage"] > 0
    found = json.loads(said["doctor"])
    assert found["versions"]["attngraft"] == attngraft.__version__
    assert found["backends"]
    listed = {entry["name"] for entry in json.loads(said["hosts"])}
    assert {"timm.vit", "timm.xcit", "t2t_vit", "torch.nn", "torchvision.vit", "hf.vit", "hf.t5"} <= listed
    found = json.loads(said["t2t_vit"])
    assert found["adapter"] == "t2t_vit"
    assert found["sites"]
    found = json.loads(said["local"])
    assert [entry["site"] for entry in found["entries"]] == ["layers.0.blocks.0.attn", "layers.0.blocks.1.attn"]
    assert {entry["stage"] for entry in found["entries"]} == {"space"}


def test_a_comparison_to_its_report(installed: Installed) -> None:
    sizes = {"img_size": 8, "patch_size": 4, "depth": 1, "embed_dim": 24, "num_heads": 3, "in_chans": 1}
    host = [part for name, value in sizes.items() for part in ("--host-arg", f"{name}={value}")]
    installed.run(
        *("attngraft", "compare", "--recipe", "digits", "--data", "digits", "--out", "study"),
        *("--host", "vit_tiny_patch16_224", *host, "--graft", "bisa@first:1"),
        *("--seeds", "1", "--epochs", "1"),
    )
    results = json.loads((installed.folder / "study" / "results.json").read_text())
    assert [variant["spec"] for variant in results["variants"]] == ["none", "bisa@first:1"]
    report = (installed.folder / "study" / "report.html").read_text()
    assert "bisa@first:1" in report
    assert "<style>" in report
    assert report.rstrip().endswith("</html>")
    assert [path.name for path in installed.folder.iterdir()] == ["study"], "nothing else was written"
