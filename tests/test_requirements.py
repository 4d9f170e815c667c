"""The lower bounds of pyproject.toml are the versions that the tests were run with."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
CORE = PROJECT["project"]["dependencies"]
EXTRAS = PROJECT["project"]["optional-dependencies"]


def versions(requirements: Iterable[str], operator: str) -> Iterator[tuple[str, Version]]:
    """Names of packages, with the version behind `operator` where there is one."""
    for text in requirements:
        requirement = Requirement(text)
        for each in requirement.specifier:
            if each.operator == operator:
                yield canonicalize_name(requirement.name), Version(each.version)


def pins() -> dict[str, Version]:
    lines = (ROOT / "requirements" / "oldest.txt").read_text(encoding="utf-8").splitlines()
    return dict(versions((line for line in lines if line and not line.startswith("#")), "=="))


@pytest.mark.parametrize(("where", "requirements"), [("core", CORE), *EXTRAS.items()])
def test_a_lower_bound_is_the_oldest_version_that_is_tested(where: str, requirements: list[str]) -> None:
    pinned = pins()
    wrong = {name: str(bound) for name, bound in versions(requirements, ">=") if pinned.get(name, bound) != bound}
    assert not wrong, f"{where}: requirements/oldest.txt has { ({name: str(pinned[name]) for name in wrong}) }"


def test_what_builds_the_package_is_tested_too() -> None:
    (hatchling,) = versions(PROJECT["build-system"]["requires"], ">=")
    assert hatchling == ("hatchling", pins()["hatchling"])


def test_every_package_that_is_always_installed_is_pinned_and_every_pin_is_asked_for() -> None:
    core = dict(versions(CORE, ">="))
    extras = {name for requirements in EXTRAS.values() for name, _ in versions(requirements, ">=")}
    assert len(core) == len(CORE)
    assert set(core) <= set(pins())
    assert set(pins()) <= set(core) | extras


def test_the_image_contains_what_the_package_is_built_from() -> None:
    lines = (ROOT / "Dockerfile").read_text(encoding="utf-8").splitlines()
    copied = [source for line in lines if line.startswith("COPY ") for source in line.split()[1:-1]]
    assert {"pyproject.toml", "src", PROJECT["project"]["readme"], *PROJECT["project"]["license-files"]} <= set(copied)
    kept = {line[1:] for line in (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines() if line[0] == "!"}
    assert set(copied) == kept
    (extras,) = re.findall(r'"\.\[([\w,]+)\]"', "\n".join(lines))
    assert set(extras.split(",")) <= set(EXTRAS)


def test_the_citation_names_the_licence_of_the_package() -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert citation["license"] == PROJECT["project"]["license"]
    assert citation["authors"] == PROJECT["project"]["authors"]
    assert {"cff-version", "message", "title"} <= set(citation)
