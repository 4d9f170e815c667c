"""Every study under examples/: it is read, its recipes are made, and its variants fit its host."""

from __future__ import annotations

from pathlib import Path

import pytest

from attngraft.errors import ConfigError
from attngraft.study.config import StudyConfig, read_study, study_from_dict
from attngraft.study.schedule import check_variants

EXAMPLES = sorted((Path(__file__).parents[2] / "examples").glob("*.yaml"))


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_fits_its_host(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # no study of before, no teacher
    config = study_from_dict(read_study(path), source=str(path))
    for variant in config.variants:
        for seed in config.seeds:
            assert config.recipe_of(variant, seed).graft == (None if variant.is_baseline else variant.spec)
    if taught(config):  # its own comment says how to make one
        with pytest.raises(ConfigError, match="teacher-cifar10 is neither"):
            check_variants(config)
    else:
        check_variants(config)
    assert not list(tmp_path.iterdir())


def taught(config: StudyConfig) -> bool:
    return config.recipe_of(config.baseline, config.seeds[0]).distill is not None


def test_there_are_examples_of_both_kinds() -> None:
    studies = [study_from_dict(read_study(path)) for path in EXAMPLES]
    assert sum(map(taught, studies)) == 1
    assert len(studies) >= 7
