"""Readers of all formats return a value or raise an `AttngraftError` that names the file, whatever the file contains.

Formats with checksums (.npz, graft files, the folders of runs, studies and exported models) give the same bits, or the
error, for any damage. A digit that changed in a table, in JSON or in YAML makes another valid file, so these give a valid
value, or the error.

`make slow` spends `SECONDS` on each format, with the same examples each time; `make fuzz` an hour on all of them, with
others each time. A time is no setting of Hypothesis, so its rounds of `ROUND` examples are repeated, each with its own
seed, until the time is over. What was found is in `FINDINGS`, which `make test` reads.
"""

from __future__ import annotations

import itertools
import os
import random
import re
import shutil
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, seed, settings
from hypothesis import strategies as st

from attngraft.errors import AttngraftError
from tests.fuzzing.odd import Files, hiding, npy, parquet, zipped
from tests.fuzzing.readers import READERS, Reader, bits, contents, put

GIVEN = os.environ.get("ATTNGRAFT_FUZZ_SECONDS")  #: for all formats
SECONDS = float(GIVEN) / len(READERS) if GIVEN else 5  #: for each format, half of it for each of two properties
ROUND = 50
LONGEST = 10  #: seconds for an example

PIXELS = {"x": npy(np.zeros((8, 4, 4), np.uint8)), "y": npy(np.arange(8) % 2)}
NAMED = zipped({**PIXELS, "classes": npy(np.array(["a", "b"]))})
COCO = b'{"images": [{"id": 0, "file_name": "0.png"}], "categories": [], "annotations": [%s]}'
HOST = b"{img_size: 8, patch_size: 4, depth: 2, embed_dim: 24, num_heads: 3, in_chans: 1}"
RECIPE = b"host: {name: vit_tiny_patch16_224, args: %s}\ntask: {data: {source: digits}}\n" % HOST
STUDY = b"out: out\ngrafts: [cb]\n"

#: contents that were read wrongly, or raised another error or one without the file
FINDINGS: list[tuple[str, Files]] = [
    ("predictions", {"predictions.npz": zipped({"name": npy(np.array(["a"])), "binary": npy(np.zeros((0, 2)))})}),
    ("csv", {"x.csv": b"path,label\n" + b"x" * 300 + b",a\ny.png,b\n"}),
    ("npz", {"x.npz": hiding(NAMED, b"y.npy")}),
    ("npz", {"x.npz": b"classe_.npy".join(NAMED.rsplit(b"classes.npy", 1))}),
    ("npz", {"x.npz": zipped({**PIXELS, "y": b""})}),
    ("npz", {"x.npz": zipped({**PIXELS, "y": b"\x93NUMPY\x01\x00\x08\x00{'a': (\0"})}),
    (
        "npz",
        {
            "x.npz": zipped(
                {"x": npy(np.zeros((2, 4, 4), np.uint8)), "y": npy(np.arange(2)), "classes": npy(np.ones(()))}
            )
        },
    ),
    ("jsonl", {"x.jsonl": b'{"path": "a/0.png", "label": ["a"]}\n{"path": "b/0.png", "label": true}\n'}),
    ("parquet", {"x.parquet": parquet(path=[b"\xe1"] * 4, label=list("abab"), invalid="path")}),
    ("parquet", {"x.parquet": parquet(path=list("1234"), label=[10**14] * 4, duration="label")}),
    ("coco", {"x.json": COCO % b'{"image_id": [], "category_id": 0}'}),
    ("coco", {"x.json": COCO % b'{"image_id": 0, "category_id": {}}'}),
    ("tokenizer", {"translation.json": b'{"kind": "bpe", "pad": 0, "start": 2, "end": null}'}),
    ("tokenizer", {"translation.json": b'{"kind": "bpe", "pad": 0, "start": 2, "end": 1000000}'}),
    ("study file", {"study.yaml": STUDY + b"seeds: null\n"}),
    ("study file", {"study.yaml": STUDY + b"until: yes\n"}),
    ("study file", {"study.yaml": b"out: out\ngrafts: [none, none]\n"}),
    ("run", {"recipe.yaml": b"", "finished.json": b"{}"}),
    ("run", {"recipe.yaml": RECIPE + b"graft: '0'\n", "finished.json": b"{}"}),
    ("run", {"metrics.jsonl": b"", "finished.json": b"{}"}),
    ("run", {"metrics.jsonl": b'{"epoch": 1, "seconds": 1, "val/top1": "x"}\n', "finished.json": b"{}"}),
    (
        "run",
        {"predictions.npz": zipped({"name": npy(np.array(["a"])), "target": npy(np.ones(1))}), "finished.json": b"{}"},
    ),
    ("run", {"data.json": b'{"model_args": {}, "facts": {"classes": ["a", "b"]}}', "finished.json": b"{}"}),
]


class Hangs(AssertionError):
    """An example takes too long."""


@contextmanager
def limited() -> Iterator[None]:
    def stop(*_: Any) -> None:
        raise Hangs(f"takes more than {LONGEST} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(LONGEST)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


class Bench:
    """A valid folder of a format, in which files are replaced."""

    def __init__(self, reader: Reader, folder: Path) -> None:
        self.reader, self.folder = reader, folder
        folder.mkdir()
        reader.write(folder)
        self.valid = contents(folder, reader.files)
        self._times = itertools.count(10**18, 10**9)
        self.value = bits(reader.read(folder))

    def check(self, files: Files, *, same: bool) -> None:
        """Read the folder with these files; `same`: the value must not differ."""
        put(self.folder, files, time=next(self._times))
        try:
            with limited():
                found = bits(self.reader.read(self.folder))
        except AttngraftError as error:
            (name,) = [Path(name).name for name in files] if same else [str(self.folder)]
            assert not self.reader.named or name in str(error), f"{name} is not in the message: {error}"
        else:
            assert not same or found == self.value, "another value, without an error"
        finally:
            put(self.folder, {name: self.valid[name] for name in files}, time=next(self._times))


@st.composite
def damaged(draw: st.DrawFn, valid: Mapping[str, bytes]) -> Files:
    """A file with a changed byte, cut off, or with a part deleted, inserted or repeated."""
    name = draw(st.sampled_from(sorted(valid)))
    whole = valid[name]
    at = draw(st.integers(0, len(whole) - 1))
    length = draw(st.sampled_from([1, 2, 4, 8, 16, 512]) | st.integers(1, len(whole)))
    kind = draw(st.sampled_from(["changed", "changed", "cut", "deleted", "inserted", "repeated"]))
    before, part, behind = whole[:at], whole[at : at + length], whole[at + length :]
    if kind == "changed":
        return {name: before + bytes([whole[at] ^ draw(st.integers(1, 255))]) + whole[at + 1 :]}
    if kind == "inserted":
        return {name: before + draw(st.binary(min_size=1, max_size=8)) + part + behind}
    return {name: {"cut": before, "deleted": before + behind, "repeated": before + part + part + behind}[kind]}


class Shown(dict[str, bytes | None]):
    """Files whose printed form is short; those of a failing example are saved, see `fuzz`."""

    def __repr__(self) -> str:
        return f"{{{', '.join(f'{name!r}: {str(content)[:500]}' for name, content in self.items())}}}"


def fuzz(examples: st.SearchStrategy[Files], bench: Bench, *, same: bool) -> int:
    """Check examples until the time is over; return their number.

    The files of a failing example, made small by Hypothesis, are written beside the folder.
    """
    end, first, count = time.monotonic() + SECONDS / 2, random.SystemRandom().randrange(2**32) if GIVEN else 0, 0
    failing = bench.folder.with_name("failing")

    def attempt(files: Files) -> None:
        nonlocal count
        if time.monotonic() > end and not failing.exists():
            return
        count += 1
        try:
            bench.check(files, same=same)
        except BaseException as error:
            shutil.rmtree(failing, ignore_errors=True)
            for name, content in files.items():
                (failing / name).parent.mkdir(parents=True, exist_ok=True)
                (failing / name).write_bytes(content or b"")
            error.add_note(f"The files are in {failing}; add them to FINDINGS.")
            raise

    rounds = settings(
        max_examples=ROUND,
        deadline=None,
        database=None,
        print_blob=True,
        report_multiple_bugs=False,
        suppress_health_check=list(HealthCheck),
    )
    examples = examples.map(Shown)
    for number in itertools.count(first):
        seed(number)(rounds(given(examples)(attempt)))()
        shutil.rmtree(os.environ["ATTNGRAFT_CACHE"], ignore_errors=True)
        if time.monotonic() >= end:
            return count


@pytest.fixture
def bench(request: pytest.FixtureRequest, tmp_path: Path) -> Bench:
    return Bench(READERS[request.param], tmp_path / "fuzzed")


@pytest.mark.slow
@pytest.mark.parametrize("bench", READERS, indirect=True)
def test_damage_changes_nothing_or_is_named(bench: Bench, record_property: Callable[[str, object], None]) -> None:
    count = fuzz(damaged(bench.valid), bench, same=bench.reader.strict)
    record_property("examples", count)
    assert count


@pytest.mark.slow
@pytest.mark.parametrize("bench", READERS, indirect=True)
def test_odd_contents_are_read_or_refused(bench: Bench, record_property: Callable[[str, object], None]) -> None:
    count = fuzz(bench.reader.odd(bench.valid), bench, same=False)
    record_property("examples", count)
    assert count


@pytest.mark.parametrize(
    ("bench", "files"),
    [pytest.param(*found, marks=[pytest.mark.slow] * (found[0] == "run")) for found in FINDINGS],
    indirect=["bench"],
)
def test_findings_stay_fixed(bench: Bench, files: Files) -> None:
    put(bench.folder, files, time=10**18)
    with pytest.raises(AttngraftError, match=re.escape(str(bench.folder))):
        bench.reader.read(bench.folder)
