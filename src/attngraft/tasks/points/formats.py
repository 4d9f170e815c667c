"""Files that contain a single point cloud.

.txt .xyz .pts .csv   a point per line, with commas or blanks: x y z [nx ny nz] [part]
.npy                  an array (N, 3), (N, 4), (N, 6) or (N, 7) with the same columns
.off .ply             a mesh, from whose surface points are drawn, or vertices alone
.pcd                  ascii or binary
"""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np

from attngraft.errors import DataError
from attngraft.opening import DAMAGE, TEXT_LIMIT, array_of, open_regular
from attngraft.suggest import first_line, quoted
from attngraft.tasks.points.clouds import cloud_columns, numbered, quiet
from attngraft.tasks.points.lines import Lines, check_end, header_lines, whole
from attngraft.tasks.points.meshes import Raw, binary_columns, cloud_roles, read_off, read_ply

SAMPLES = 2048  #: number of points that are drawn from a mesh

_TEXTS = (".txt", ".xyz", ".pts", ".csv")
EXTENSIONS = (*_TEXTS, ".npy", ".off", ".ply", ".pcd")
_COLUMNS = (3, 4, 6, 7)
_EXPECTED = "x y z, x y z part, x y z nx ny nz, or x y z nx ny nz part"
_HEADER = 2**16  #: most bytes of a header
_DATA = re.compile(rb"^DATA[ \t]+(\w+)[ \t]*\r?\n", re.MULTILINE)
_CODES = {
    f"{kind}{size}" for kind, sizes in {"f": (4, 8), "i": (1, 2, 4, 8), "u": (1, 2, 4, 8)}.items() for size in sizes
}


@quiet
def read_cloud(path: Path, *, samples: int = SAMPLES) -> Raw:
    """Return points (N, 3) float32, normals (N, 3) float32 or None, and parts (N,) int64 or None.

    Args:
        path: the file; its extension tells the format.
        samples: number of points that are drawn from a mesh, uniformly; the same in each call.

    Raises:
        DataError: the file cannot be read, or is damaged; names the line of a text.
    """
    kind = path.suffix.lower()
    try:
        with open_regular(path, limit=TEXT_LIMIT) as file:
            data = file.read()
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror or error}); replace or remove it") from None
    if not data:
        raise DataError(f"{path}: is empty; download or save it again, or remove it")
    if kind in _TEXTS:
        lines, delimiter = _text(data, path)
        return cloud_columns(lines.values(delimiter=delimiter), lines.place)
    if kind == ".npy":
        return cloud_columns(_npy(data, path), numbered(path))
    readers = {".off": read_off, ".ply": read_ply}
    if kind in readers:
        return readers[kind](data, path, samples)
    if kind == ".pcd":
        return _pcd(data, path)
    raise DataError(f"{path}: not a format of point clouds ({', '.join(EXTENSIONS)}); convert it")


def point_place(path: Path, index: int) -> str:
    """Return the location of a point, for messages: the line of a text."""
    if path.suffix.lower() not in _TEXTS:
        return numbered(path)(index)
    with open_regular(path, limit=TEXT_LIMIT) as file:
        return _text(file.read(), path)[0].place(index)


def _text(data: bytes, path: Path) -> tuple[Lines, str | None]:
    """Return the lines with a point each, and the delimiter of their columns."""
    lines = Lines(data, path)
    if (
        len(lines) and len(lines.texts[0].replace(",", " ").split()) == 1
    ):  # the number of points, as in files of scanners
        header = lines.take(1, "line")
        count = whole(header.texts[0], header.place(0), "points")
        if count != len(lines):
            raise DataError(
                f"{header.place(0)}: declares {count:,} points, but {len(lines):,} lines follow; correct it"
            )
    if not len(lines):
        raise DataError(f"{path}: contains no points; download or save it again, or remove it")
    delimiter = "," if "," in lines.texts[0] else None
    columns = len(lines.texts[0].split(delimiter))
    if columns not in _COLUMNS:
        raise DataError(f"{lines.place(0)}: has {columns} columns, expected {_EXPECTED}; save the file with these")
    return lines, delimiter


def _npy(data: bytes, path: Path) -> np.ndarray:
    try:
        values = array_of(data)
    except DAMAGE as error:
        raise DataError(f"{path}: cannot be read as .npy ({first_line(error)}); write it with numpy.save") from None
    if values.dtype.kind not in "fiu" or values.ndim != 2 or values.shape[1] not in _COLUMNS:
        raise DataError(
            f"{path}: is {values.dtype} {values.shape}, expected numbers (N, 3 to 7): {_EXPECTED}; save it like this"
        )
    return values.astype(np.float64)


def _pcd(data: bytes, path: Path) -> Raw:
    end = _DATA.search(data, 0, _HEADER)
    if end is None:
        raise DataError(f"{path}: has no PCD header that ends with DATA; save it again")
    kind = end[1].decode("latin-1").lower()
    if kind not in ("ascii", "binary"):
        raise DataError(
            f"{path}: DATA {kind} cannot be read; convert it with pcl_convert_pcd_ascii_binary FILE.pcd NEW.pcd 1"
        )
    rows = header_lines(data[: end.end()])
    places, fields = dict[str, str](), dict[str, list[str]]()
    for number, line in enumerate(rows, start=1):
        key, *entries = line.split() or [""]
        if key in fields and key and not key.startswith("#"):
            raise DataError(f"{path}: line {number}: a second line {quoted(key)}; remove one")
        fields[key], places[key] = entries, f"{path}: line {number}"
    names = fields.get("FIELDS") or fields.get("COLUMNS") or []
    roles = cloud_roles(names, path)

    def numbers(key: str) -> list[int]:
        return [whole(text, places[key], key) for text in fields[key]]

    if "POINTS" not in fields or len(fields["POINTS"]) != 1:
        raise DataError(f"{path}: the header has no number of POINTS; save it again")
    (count,) = numbers("POINTS")
    counts = numbers("COUNT") if "COUNT" in fields else [1] * len(names)
    if len(counts) != len(names) or any(counts[index] != 1 for index in roles):
        raise DataError(
            f"{path}: COUNT does not fit FIELDS; x, y, z, normals and labels have one number; save it again"
        )
    if kind == "ascii":
        rest = Lines(data[end.end() :], path, first=len(rows) + 1)
        lines = rest.take(count, "points")
        rest.check_end()
        chosen = [sum(counts[:index]) for index in roles]
        return cloud_columns(lines.values(chosen, width=sum(counts)), lines.place)
    codes = [
        f"{kind}{size}".lower() for kind, size in zip(fields.get("TYPE", []), fields.get("SIZE", []), strict=False)
    ]
    if len(codes) != len(names) or not {*codes} <= _CODES:
        raise DataError(f"{path}: SIZE and TYPE do not fit FIELDS; save it again")
    offsets = np.cumsum([0, *(int(code[1]) * each for code, each in zip(codes, counts, strict=True))], dtype=object)
    columns = [(f"<{codes[index]}", int(offsets[index])) for index in roles]
    values = binary_columns(data, path, count=count, start=end.end(), row=int(offsets[-1]), columns=columns)
    check_end(data, end.end() + count * int(offsets[-1]), path)
    return cloud_columns(values, numbered(path))
