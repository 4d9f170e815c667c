"""Odd contents of files, for the fuzzing harness."""

from __future__ import annotations

import csv
import functools
import io
import json
import re
import tarfile
import zipfile
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import safetensors
import safetensors.torch
import torch
import yaml
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from PIL import Image

from attngraft.grafting.io import CHECKSUM, KEY, _checksum
from attngraft.mechanisms.registry import graft_types
from attngraft.tasks.captioning.features import as_attribute
from tests.tasks.images.datasets import picture

Files = Mapping[str, bytes | None]  #: by path in the folder; None: deleted


NUMBERS = [0, 1, -1, 2**31, 2**63, -(2**63), 2**64, 10**400, 0.5, 1e308, float("nan"), float("inf"), -0.0]


TEXTS = [
    "",
    " ",
    ".",
    "..",
    "a/b",
    "a.b",
    "none",
    "null",
    "nan",
    "-",
    "1",
    "1e400",
    "\0",
    "\n",
    "\ud800",
    "é",
    "/",
    "x" * 300,
]


def strings(value: Any) -> set[str]:
    """Return all texts in nested plain data."""
    if isinstance(value, str):
        return {value}
    if isinstance(value, Mapping):
        value = [*value, *value.values()]
    return {text for entry in value for text in strings(entry)} if isinstance(value, list | tuple) else set()


def anything(words: Sequence[str]) -> st.SearchStrategy[Any]:
    """Any plain data, with these words among its texts."""
    word = st.sampled_from([*words, *TEXTS])
    scalars = (
        st.none() | st.booleans() | st.sampled_from(NUMBERS) | st.integers() | st.floats() | st.text(max_size=3) | word
    )
    return st.recursive(
        scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(word, inner, max_size=3), max_leaves=5
    )


@st.composite
def changed(draw: st.DrawFn, valid: Any) -> Any:
    """Plain data like `valid`, but for up to three parts, however deep: they are gone, there twice, or anything."""
    other, value = anything(sorted(strings(valid))), json.loads(json.dumps(valid))
    for _ in range(draw(st.integers(1, 3))):
        value = _changed(value, draw, other)
    return value


def _changed(value: Any, draw: st.DrawFn, other: st.SearchStrategy[Any]) -> Any:
    names = list(range(len(value)) if isinstance(value, list) else value if isinstance(value, dict) else ())
    if not names or draw(st.integers(0, 9)) == 0:
        return draw(other)
    name, what = draw(st.sampled_from(names)), draw(st.sampled_from(["gone", "twice", *["changed"] * 6]))
    if what == "gone":
        del value[name]
    elif what == "twice" and isinstance(value, list):
        value.append(json.loads(json.dumps(value[name])))
    else:
        value[name] = _changed(value[name], draw, other)
    return value


def encoded(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


def odd_json(*names: str, without: Sequence[str] = ()) -> Callable[[Mapping[str, bytes]], st.SearchStrategy[Files]]:
    """One of these JSON files is changed; the files `without` are deleted."""

    def odd(valid: Mapping[str, bytes]) -> st.SearchStrategy[Files]:
        def files(name: str) -> st.SearchStrategy[Files]:
            contents = changed(json.loads(valid[name])).map(lambda value: encoded(json.dumps(value)))
            return contents.map(lambda content: {**dict.fromkeys(without), name: content})

        return st.one_of(*map(files, names))

    return odd


YAML = [
    "",
    " ",
    "  ",
    "\n",
    "\n  ",
    "\t",
    "- ",
    "? ",
    ": ",
    ", ",
    "{",
    "}",
    "[",
    "]",
    "'",
    '"',
    "|\n ",
    ">-\n ",
    "#",
    "%",
    "@",
]


YAML += [
    "&a ",
    "*a",
    "<<: ",
    "!!int ",
    "!!binary ",
    "!!python/object:os.x ",
    "!!set ",
    "!!omap ",
    "!!timestamp ",
    "---\n",
]


YAML += [
    "...",
    "2020-01-01",
    "2020-99-99",
    "1_000",
    "0x",
    "0b2",
    "0o9",
    "12:30:99",
    ".inf",
    ".NaN",
    "~",
    "=",
    "1e400",
    "9" * 5000,
]


YAML += ["\\x", "\0", "\x85", "\u2028", "\ufeff", "\ud800", "a: 1\n", "a: &a [*a]\n", "null", "true"]


def odd_yaml(name: str) -> Callable[[Mapping[str, bytes]], st.SearchStrategy[Files]]:
    def odd(valid: Mapping[str, bytes]) -> st.SearchStrategy[Files]:
        content = yaml.safe_load(valid[name])
        tokens = st.sampled_from([*YAML, *(f"{key}: " for key in strings(content))])
        texts = st.lists(tokens, max_size=12).map("".join) | changed(content).map(lambda value: yaml.dump(value))
        return texts.map(lambda text: {name: encoded(text)})

    return odd


def npy(array: np.ndarray) -> bytes:
    stream = io.BytesIO()
    np.lib.format.write_array(stream, array, allow_pickle=True)
    return stream.getvalue()


TYPES = st.one_of(
    *(arrays.scalar_dtypes(), arrays.unicode_string_dtypes(), arrays.byte_string_dtypes()),
    *(arrays.datetime64_dtypes(), arrays.array_dtypes(), st.just(np.dtype(object)), st.just(np.dtype("V4"))),
)


@st.composite
def odd_member(draw: st.DrawFn, valid: np.ndarray | None) -> bytes:
    """An array of any type and shape, or `valid` with another, or bytes that are no array."""
    kind = draw(st.sampled_from(["new", "words", "bytes", *["valid"] * (3 * (valid is not None))]))
    if kind == "bytes":
        return draw(st.binary(max_size=20))
    if kind == "words":
        return npy(np.array(draw(st.lists(st.sampled_from(TEXTS[:-5]), max_size=8)), dtype=np.str_))
    if kind == "new" or valid is None:
        shape = draw(arrays.array_shapes(min_dims=0, max_dims=5, min_side=0, max_side=4))
        return npy(np.zeros(shape, draw(TYPES)))
    numbers = ["f8", "f2", "i1", "u8", "?"] if valid.dtype.kind in "biuf" else []
    array = valid.astype(draw(st.sampled_from([valid.dtype, *numbers, "U3", "O", "S4"])))
    if array.dtype.kind == "f":
        array = array * draw(st.sampled_from([1, -1, 1e300, np.nan]))
    cut = draw(st.sampled_from(["", "first", "empty", "axis", "flat"]))
    shaped = {"first": array[1:] if array.ndim else array, "empty": array.reshape(-1)[:0], "axis": array[None]}
    return npy(shaped.get(cut, array.reshape(-1) if cut == "flat" else array))


def odd_npz(name: str, *keys: str) -> Callable[[Mapping[str, bytes]], st.SearchStrategy[Files]]:
    """Some arrays of a file are others, missing, or new."""

    @st.composite
    def odd(draw: st.DrawFn, present: Mapping[str, np.ndarray]) -> Files:
        members = {key: npy(array) for key, array in present.items() if draw(st.integers(0, 9)) > 0}
        for key in draw(st.lists(st.sampled_from([*present, *keys, *TEXTS[:-1]]), max_size=3)):
            members[key] = draw(odd_member(present.get(key)))
        return {name: zipped(members)}

    def with_valid(valid: Mapping[str, bytes]) -> st.SearchStrategy[Files]:
        with np.load(io.BytesIO(valid[name])) as archive:
            return odd(dict(archive))

    return with_valid


def odd_features(valid: Mapping[str, bytes]) -> st.SearchStrategy[Files]:
    """An HDF5 file in which some arrays or attributes are others, or missing."""
    import h5py

    with h5py.File(io.BytesIO(valid["x.h5"])) as file:
        present = {name: file[name][()] for name in file}

    @st.composite
    def odd(draw: st.DrawFn) -> Files:
        stream = io.BytesIO()
        with h5py.File(stream, "w") as file:
            for name in draw(
                st.lists(st.sampled_from(["host", "args", "pretrained", "weights", "digest"]), max_size=5, unique=True)
            ):
                texts = st.sampled_from(["vit", "", "{}", "[]", '{"a": 1}'])
                others = st.sampled_from(["variable", True, 3, b"x", 0.5, [1, 2], [b"x"], np.nan])
                file.attrs[name] = draw(texts.map(as_attribute) | others)
            for name, array in present.items():
                kind = draw(st.sampled_from(["same"] * 12 + ["gone", "new", "link", "group"]))
                if kind == "same":
                    file[name] = array
                elif kind == "new":
                    shape = draw(arrays.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=6))
                    file[name] = np.zeros(shape, draw(st.sampled_from(["f2", "f4", "f8", "i4", "?", "S3", "c8"])))
                elif kind == "link":
                    file[name] = h5py.SoftLink(draw(st.sampled_from(["/", "/x", f"/{name}"])))
                elif kind == "group":
                    file.create_group(name)
        return {"x.h5": stream.getvalue()}

    return odd()


def zipped(members: Mapping[str, bytes], ending: str = ".npy") -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        for key, content in members.items():
            archive.writestr(zipfile.ZipInfo(key.encode("utf-8", "replace").decode() + ending), content)
    return stream.getvalue()


TREE = {"a": 4, "b": 4}


PATHS = [f"{label}/{number}.png" for label in TREE for number in range(4)]


COLUMNS = ["path", "label", "split", "labels", "a", "b", "name", "part", "image"]


def odd_text(name: str, separator: str) -> Callable[[Mapping[str, bytes]], st.SearchStrategy[Files]]:
    """Tables of odd cells, quoted rightly or not."""
    cells = st.sampled_from([*PATHS, "a", "b", "a|b", "['a']", "[", "[1]", "train", "val", "0", "1", "=1", *TEXTS])
    texts = cells | st.text("\"'\r\n\t\0\x1a\x85\u2028\ufeff,;|\\ ab1", max_size=5)
    headers = st.lists(st.sampled_from(COLUMNS), min_size=1, max_size=4, unique=True) | st.lists(texts, max_size=4)

    def quoted(table: list[list[str]]) -> str:
        stream = io.StringIO()
        csv.writer(stream, delimiter=separator, lineterminator="\n").writerows(table)
        return stream.getvalue()

    def table(header: list[str]) -> st.SearchStrategy[str]:
        plain = st.lists(st.lists(texts, min_size=len(header), max_size=len(header)), max_size=6)
        found = (plain | st.lists(st.lists(texts, max_size=4), max_size=4)).map(lambda below: [header, *below])
        raw = found.map(lambda each: "\n".join(separator.join(row) for row in each))
        return found.map(quoted) | raw

    @st.composite
    def near(draw: st.DrawFn, valid: bytes) -> str:
        found = [line.split(separator) for line in valid.decode().splitlines()]
        for _ in range(draw(st.integers(1, 4))):
            found[draw(st.integers(0, len(found) - 1))][draw(st.integers(0, 1))] = draw(texts)
        return quoted(found)

    return lambda valid: (headers.flatmap(table) | near(valid[name])).map(lambda text: {name: encoded(text)})


def odd_json_lines(valid: Mapping[str, bytes]) -> st.SearchStrategy[Files]:
    content = [json.loads(line) for line in valid["x.jsonl"].splitlines()]
    found = changed(content).filter(lambda value: isinstance(value, list))
    return found.map(lambda value: {"x.jsonl": b"\n".join(encoded(json.dumps(row)) for row in value)})


def odd_parquet(valid: Mapping[str, bytes]) -> st.SearchStrategy[Files]:
    import pyarrow as pa
    from pyarrow import parquet as files

    size = len(PATHS)
    kinds: dict[Any, st.SearchStrategy[Any]] = {
        pa.string(): st.sampled_from([*PATHS, "a", "b", "", "nan", "a|b"]),
        pa.binary(): st.binary(max_size=4),
        pa.int64(): st.integers(-3, 3) | st.just(2**62),
        pa.float64(): st.floats(),
        pa.bool_(): st.booleans(),
        pa.list_(pa.string()): st.lists(st.sampled_from(["a", "b"]) | st.none(), max_size=2),
        pa.struct([("bytes", pa.binary())]): st.fixed_dictionaries({"bytes": st.binary(max_size=4)}),
        pa.timestamp("ns"): st.integers(-(2**62), 2**62),
        pa.date32(): st.integers(-(2**31), 2**31 - 1),
        pa.duration("s"): st.integers(-(2**40), 2**62),
        pa.decimal128(5, 2): st.decimals(-9, 9, places=2),
        pa.map_(pa.string(), pa.int64()): st.just([("a", 1)]),
        pa.null(): st.none(),
    }
    entries = st.sampled_from(list(kinds)).flatmap(
        lambda kind: st.lists(kinds[kind] | st.none(), min_size=size, max_size=size).map(
            lambda found: pa.array(found, type=kind)
        )
    )
    usual = {"path": st.just(pa.array(PATHS)) | entries, "label": entries}
    tables = st.fixed_dictionaries(usual, optional=dict.fromkeys(COLUMNS[2:6], entries))

    def content(columns: Mapping[str, Any]) -> Files:
        stream = io.BytesIO()
        files.write_table(pa.table(dict(columns)), stream)
        return {"x.parquet": stream.getvalue()}

    return tables.map(content)


WORDS = (
    *(b"-1", b"-0", b"0", b"1", b"3", b"4", b"0.5", b"1e38", b"1e400", b"nan", b"inf", b"1000000000000", b"9" * 20),
    *(b"x", b"list", b"double", b"\0", b"\xff", b"\n", b",", b"#"),
)


def odd_clouds(valid: Mapping[str, bytes]) -> st.SearchStrategy[Files]:
    """A file in which some words are others."""

    @st.composite
    def odd(draw: st.DrawFn) -> Files:
        name = draw(st.sampled_from(sorted(valid)))
        found = valid[name].split(b" ")
        for _ in range(draw(st.integers(1, 4))):
            found[draw(st.integers(0, len(found) - 1))] = draw(st.sampled_from(WORDS))
        return {name: b" ".join(found)}

    return odd()


def odd_words(valid: Mapping[str, bytes]) -> st.SearchStrategy[Files]:
    """A file of text or XML in which some words, tags or signs are others."""

    @st.composite
    def odd(draw: st.DrawFn) -> Files:
        name = draw(st.sampled_from(sorted(valid)))
        found = re.split(rb"([ <>\n])", valid[name])
        for _ in range(draw(st.integers(1, 4))):
            other = draw(st.sampled_from([*WORDS, b"-5", b"1.5", b"<!DOCTYPE a>", b"&a;", b"<", b"object", b""]))
            found[draw(st.integers(0, len(found) - 1))] = other
        return {name: b"".join(found)}

    return odd()


def odd_pictures(valid: Mapping[str, bytes]) -> st.SearchStrategy[Files]:
    """A picture of another size, mode or format, with any values."""
    sides = st.integers(1, 40)

    def encoded_picture(mode: str, size: tuple[int, int], value: int, form: str) -> bytes:
        stream = io.BytesIO()
        picture = Image.new(mode, size, value)
        picture.putpixel((0, 0), 0)
        picture.save(stream, form)
        return stream.getvalue()

    modes = st.sampled_from([("L", "png"), ("P", "png"), ("1", "png"), ("I;16", "png"), ("I", "tiff"), ("F", "tiff")])
    sizes = st.tuples(sides, sides) | st.just((48, 36))
    pictures = st.builds(
        lambda kind, size, value: encoded_picture(kind[0], size, value, kind[1]), modes, sizes, st.integers(0, 255)
    )
    return st.builds(lambda name, content: {name: content}, st.sampled_from(sorted(valid)), pictures)


@functools.cache
def png(number: int) -> bytes:
    stream = io.BytesIO()
    picture(number, size=(4, 4)).save(stream, "png")
    return stream.getvalue()


def odd_tar(valid: Mapping[str, bytes]) -> st.SearchStrategy[Files]:
    kinds = [tarfile.REGTYPE, tarfile.AREGTYPE, tarfile.LNKTYPE, tarfile.SYMTYPE, tarfile.CHRTYPE, tarfile.DIRTYPE]
    kinds += [
        tarfile.FIFOTYPE,
        tarfile.CONTTYPE,
        tarfile.GNUTYPE_LONGNAME,
        tarfile.GNUTYPE_SPARSE,
        tarfile.XHDTYPE,
        b"Z",
    ]
    stems = st.sampled_from(
        ["a/1", "a/2", "b/1", "b/2", "train/a/1", "../a/1", "/a/1", "./a/1", "a/b/c/1", "1", "", "é"]
    )
    endings = st.sampled_from([".png", ".PNG", ".cls", ".json", ".mask.png", ".txt", "", "/"])
    labels = [b"a", b"b", b"", b"\xff", b"{", b"[]", b'{"label": "a"}', b'{"labels": ["a", {}]}', b'{"label": 1e999}']
    contents = st.sampled_from([png(0), png(1), png(2), *labels]) | st.binary(max_size=4)
    headers = st.dictionaries(
        st.sampled_from(["path", "size", "mtime", "GNU.sparse.map", "GNU.sparse.major", "linkpath", "hdrcharset", "x"]),
        st.sampled_from(["", "-1", "1", "a/9.png", "99999999999999999999", "1,2,3", "nan", "BINARY", "é"]),
        max_size=2,
    )
    member = st.tuples(
        st.tuples(stems, endings).map("".join),
        contents,
        st.sampled_from([tarfile.REGTYPE] * 12 + kinds),
        st.just({}) | headers,
        st.just(None) | st.integers(0, 2**40),
    )

    def packed(members: list[Any]) -> Files:
        stream = io.BytesIO()
        for name, content, kind, pax, size in members:
            info = tarfile.TarInfo(name)
            info.type, info.size, info.pax_headers = kind, len(content) if size is None else size, dict(pax)
            stream.write(info.tobuf(tarfile.PAX_FORMAT) + content + bytes(-len(content) % 512))
        return {"x.tar": stream.getvalue() + bytes(1024)}

    return st.lists(member, max_size=8).map(packed)


def odd_specification(valid: Mapping[str, bytes]) -> st.SearchStrategy[Files]:
    tokens = [
        "@",
        " + ",
        "(",
        ")",
        ", ",
        "=",
        "none",
        "all",
        "first:2",
        "last:50%",
        "blocks.6-11",
        "blocks.*",
        "'",
        '"',
    ]
    tokens += [
        "\\",
        "init=0.5",
        "true",
        "-1",
        "1e400",
        "9" * 5000,
        "\0",
        "\n",
        "²",
        "٣",
        "\ud800",
        *sorted(graft_types()),
    ]
    texts = st.lists(st.sampled_from(tokens), max_size=12).map("".join) | st.text(
        "cb_s+@(),=:%.-*'\\\" 0159²\n", max_size=40
    )
    return (texts | st.text()).map(lambda text: {"spec.txt": encoded(text)})


def odd_grafts(valid: Mapping[str, bytes]) -> st.SearchStrategy[Files]:
    tensors = safetensors.torch.load(valid["x.safetensors"])
    size = int.from_bytes(valid["x.safetensors"][:8], "little")
    manifest = json.loads(json.loads(valid["x.safetensors"][8 : 8 + size])["__metadata__"][KEY])
    kinds = [torch.float16, torch.float64, torch.int8, torch.bool, torch.complex64, torch.float8_e4m3fn, torch.uint16]
    others = [
        lambda t: t[:0],
        lambda t: t[None],
        lambda t: t * torch.nan,
        *(functools.partial(torch.Tensor.to, dtype=k) for k in kinds),
    ]
    names = st.sampled_from([*tensors, "x", "host.x", "host.", ""])
    replaced = st.dictionaries(names, st.sampled_from(others), max_size=2)

    def content(found: Any, changes: Mapping[str, Any], checked: bool) -> Files:
        given = tensors | {
            name: change(tensors.get(name, torch.ones(2))).contiguous() for name, change in changes.items()
        }
        text = found if isinstance(found, str) else json.dumps(found)
        metadata = {KEY: text} | ({CHECKSUM: _checksum(text, given)} if checked else {})
        return {"x.safetensors": safetensors.torch.save(given, metadata)}

    manifests = st.just(manifest) | changed(manifest) | st.text(st.characters(codec="utf-8"), max_size=9)
    return st.builds(content, manifests, replaced, st.booleans())


def odd_weights(valid: Mapping[str, bytes]) -> st.SearchStrategy[Files]:
    """A file of torch in which some entries and tensors are others."""
    whole = torch.load(io.BytesIO(valid["x.pth"]), weights_only=True)
    state = whole["model"]
    others = [
        lambda t: t[:0],
        lambda t: t[None],
        lambda t: t * torch.nan,
        lambda t: t.to(torch.int8),
        lambda t: t.to_sparse(),
        lambda t: t.to("meta"),
        lambda t: t.reshape(-1)[:1].expand(10**6),
        lambda t: 3,
        lambda t: "x",
        lambda t: {"x": t},
    ]
    names = st.sampled_from([*state, *(f"module.{name}" for name in state), "x", "", "host.x"])
    replaced = st.dictionaries(names, st.sampled_from(others), max_size=3)
    keys = st.sampled_from(["model", "state_dict", "model_ema", "arch", "args", "epoch", "x", 3])

    def content(changes: Mapping[str, Any], key: Any, others: Mapping[Any, Any]) -> Files:
        found = state | {name: change(state.get(name, torch.ones(2))) for name, change in changes.items()}
        stream = io.BytesIO()
        torch.save({**others, key: found}, stream)
        return {"x.pth": stream.getvalue()}

    return st.builds(content, replaced, keys, st.dictionaries(keys, anything(["vit_tiny_patch16_224"]), max_size=3))


def odd_run(valid: Mapping[str, bytes]) -> st.SearchStrategy[Files]:
    """A run of an earlier version, which has no checksums, with other contents."""
    facts = {key: value for key, value in json.loads(valid["finished.json"]).items() if key not in ("files", "sha256")}
    judged = {"weights": "best", "epoch": 1, "split": "val", "metrics": {"val/top1": 0.5, "val/loss": 1.0}}
    metrics = [json.loads(line) for line in valid["metrics.jsonl"].splitlines()]
    names = ("data.json", "environment.json")
    changes: list[st.SearchStrategy[Files]] = [
        *(
            changed(json.loads(valid[name])).map(lambda each, name=name: {name: encoded(json.dumps(each))})
            for name in names
        ),
        changed({**facts, "judged": judged}).map(lambda each: {"finished.json": encoded(json.dumps(each))}),
        changed(metrics).map(
            lambda each: (
                {"metrics.jsonl": b"".join(encoded(json.dumps(row)) + b"\n" for row in each)}
                if isinstance(each, list)
                else {"metrics.jsonl": encoded(json.dumps(each))}
            )
        ),
        odd_yaml("recipe.yaml")(valid),
        odd_npz("predictions.npz")(valid),
    ]
    earlier = {"finished.json": encoded(json.dumps(facts))}
    return st.one_of(*changes).map(lambda files: {**earlier, **files})


def parquet(*, invalid: str = "", duration: str = "", **columns: list[Any]) -> bytes:
    """A table with bytes in the column `invalid`, as if they were text, and seconds in the column `duration`."""
    import pyarrow as pa
    from pyarrow import parquet as files

    kinds = {invalid: pa.binary(), duration: pa.duration("s")}
    table = pa.table({name: pa.array(entries, type=kinds.get(name)) for name, entries in columns.items()})
    if invalid:
        position = table.column_names.index(invalid)
        text = pa.StringArray.from_buffers(len(table), *table[invalid].chunk(0).buffers()[1:])
        table = table.set_column(position, invalid, text)
    stream = io.BytesIO()
    files.write_table(table, stream)
    return stream.getvalue()


def hiding(archive: bytes, last: bytes) -> bytes:
    """Return a zip in whose list the length of the comment of the member `last` includes the members behind it."""
    entry = archive.rindex(b"PK\x01\x02", 0, archive.rindex(last))
    hidden = archive.rindex(b"PK\x05\x06") - archive.rindex(last) - len(last)
    return archive[: entry + 32] + hidden.to_bytes(2, "little") + archive[entry + 34 :]
