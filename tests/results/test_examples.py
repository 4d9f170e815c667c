from __future__ import annotations

from pathlib import Path

import pytest

from attngraft.results.examples import EXAMPLES_FILE, load_examples, save_examples
from tests.report.test_examples import examples, image


def test_saved_and_loaded(tmp_path: Path):
    assert load_examples(tmp_path) is None
    save_examples(examples(image()), tmp_path)
    assert load_examples(tmp_path) == examples(image())
    save_examples(None, tmp_path)
    assert not (tmp_path / EXAMPLES_FILE).exists()


def test_a_damaged_file_is_as_none(tmp_path: Path):
    for text in ("", "{", "[]", '{"variant": 3}'):
        (tmp_path / EXAMPLES_FILE).write_text(text)
        assert load_examples(tmp_path) is None


@pytest.mark.parametrize("damaged", ["", "AAAA", "/9j/AAA", "/9j/ AAA", "/9j/<b>A"])
def test_thumbnails_are_jpegs_in_base64(tmp_path: Path, damaged: str):
    save_examples(examples(image()), tmp_path)
    text = (tmp_path / EXAMPLES_FILE).read_text()
    (tmp_path / EXAMPLES_FILE).write_text(text.replace("/9j/AAAA", damaged))
    assert load_examples(tmp_path) is None
