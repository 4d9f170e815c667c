"""Points on the surface of a mesh, and the mesh files OFF and PLY."""

from __future__ import annotations

import hashlib
import os
import re
import struct
from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from attngraft.errors import DataError
from attngraft.suggest import quoted, repeated, shortened
from attngraft.tasks.points.clouds import cloud_columns, finite, numbered
from attngraft.tasks.points.lines import MOST, Lines, check_end, header_lines, parsed, whole

Raw = tuple[np.ndarray, np.ndarray | None, np.ndarray | None]  #: points, normals, parts

_BLOCK = 2**16  #: triangles of which areas are computed at once
_HEADER = 2**16  #: most bytes of a header
_OFF = re.compile(r"(?:ST)?C?N?OFF|off")
_END = re.compile(rb"^end_header[ \t]*\r?\n", re.MULTILINE)
_ORDERS = {"ascii": "", "binary_little_endian": "<", "binary_big_endian": ">"}
_TYPES = {
    name: kind
    for names, kind in {
        ("char", "int8"): "i1",
        ("uchar", "uint8"): "u1",
        ("short", "int16"): "i2",
        ("ushort", "uint16"): "u2",
        ("int", "int32"): "i4",
        ("uint", "uint32"): "u4",
        ("float", "float32"): "f4",
        ("double", "float64"): "f8",
    }.items()
    for name in names
}
_CORNERS = ("vertex_indices", "vertex_index")


def sample_surface(vertices: np.ndarray, triangles: np.ndarray, count: int, path: Path) -> Raw:
    """Draw points uniformly from the surface of a mesh, with the normals of its triangles.

    The generator is seeded with the name of the file, so the points depend only on the file.

    Args:
        vertices: (V, 3).
        triangles: (T, 3) indices of vertices.
        count: number of points.
        path: the file.

    Raises:
        DataError: the surface has no area.
    """
    random = np.random.default_rng(list(hashlib.sha256(os.fsencode(path.name)).digest()))
    vertices = vertices.astype(np.float64)
    parts = range(0, len(triangles), _BLOCK)  # corners and normals of all triangles would take ten times their memory
    areas = np.concatenate([np.zeros(0), *(_surface(vertices, triangles[at : at + _BLOCK])[2] for at in parts)])
    solid = np.flatnonzero(areas)
    if not len(solid):
        raise DataError(f"{path}: no face has an area; repair the mesh, or remove its faces to use the vertices")
    ends = np.cumsum(areas[solid])
    chosen = solid[np.searchsorted(ends, random.random(count) * ends[-1], side="right").clip(max=len(solid) - 1)]
    root, other = np.sqrt(random.random((count, 1))), random.random((count, 1))
    (first, second, third), normals, found = _surface(vertices, triangles[chosen])
    points = (1 - root) * first + root * (1 - other) * second + root * other * third
    return points.astype(np.float32), (normals / found[:, None]).astype(np.float32), None


def _surface(vertices: np.ndarray, triangles: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return corners (3, T, 3), normals (T, 3) and their lengths (T,), twice the areas, of triangles."""
    corners = vertices[triangles.T]
    normals = np.cross(corners[1] - corners[0], corners[2] - corners[0])
    return corners, normals, np.sqrt((normals**2).sum(axis=1))


def fan(faces: Iterable[Sequence[int]], vertices: int, place: Lines | Path) -> np.ndarray:
    """Return the triangles (T, 3) of convex polygons; polygons of one or two corners have none.

    Raises:
        DataError: a face names a missing vertex, or there are too many triangles.
    """

    def where(index: int) -> str:
        return place.place(index) if isinstance(place, Lines) else f"{place}: face {index}"

    triangles = array("q")
    for index, corners in enumerate(faces):
        missing = next((corner for corner in corners if not 0 <= corner < vertices), None)
        if missing is not None:
            raise DataError(
                f"{where(index)}: names the vertex {missing}, but the {vertices:,} vertices count from 0; repair the mesh"
            )
        if len(triangles) // 3 + len(corners) - 2 > MOST:
            raise DataError(
                f"{where(index)}: the polygons up to here have more than {MOST:,} triangles; simplify the mesh, or remove "
                "its faces to use the vertices"
            )
        for i in range(1, len(corners) - 1):
            triangles.extend((corners[0], corners[i], corners[i + 1]))
    return np.array(triangles, dtype=np.int64).reshape(-1, 3)


def text_triangles(lines: Lines, vertices: int, *, skip: int = 0) -> np.ndarray:
    """Return the triangles of lines with the number of corners, and the corners, after `skip` other columns.

    Raises:
        DataError: a line is not a face, or names a missing vertex.
    """
    try:
        faces = parsed(lines.texts, range(skip, skip + 4)) if len(lines) else np.zeros((0, 4))
    except ValueError:  # other polygons, or a mistake
        faces = np.full((1, 4), np.nan)
    corners = faces[:, 1:]
    if (faces[:, 0] == 3).all() and ((corners >= 0) & (corners < vertices) & (corners == np.floor(corners))).all():
        return corners.astype(np.int64)
    return fan((_corners(lines, index, skip) for index in range(len(lines))), vertices, lines)


def _corners(lines: Lines, index: int, skip: int) -> list[int]:
    try:
        count, *corners = map(int, lines.texts[index].split()[skip:])
    except ValueError:  # colors behind the corners may be fractions
        fields = lines.texts[index].split()[skip:]
        count = whole(fields[0] if fields else "", lines.place(index), "corners")
        corners = [whole(text, lines.place(index), "a vertex") for text in fields[1 : count + 1]]
    if count < 1 or count > len(corners):
        raise DataError(
            f"{lines.place(index)}: a face of {count} corners names {len(corners)} vertices; repair the mesh"
        )
    return corners[:count]


def read_off(data: bytes, path: Path, samples: int) -> Raw:
    """Read an OFF mesh; its counts may be glued to the keyword, as in some files of ModelNet.

    Raises:
        DataError: the file is damaged; names the line.
    """
    lines = Lines(data, path)
    keyword = _OFF.match(lines.texts[0]) if len(lines) else None
    if keyword is None:
        raise DataError(f"{path}: does not start with OFF; save the mesh as OFF in text")
    lines.texts[0] = lines.texts[0][keyword.end() :].strip()
    if not lines.texts[0]:
        lines.take(1, "lines")
    header = lines.take(1, "line of counts")
    counts = header.texts[0].partition("#")[0].split()
    if len(counts) < 2:
        raise DataError(f"{header.place(0)}: expected the numbers of vertices and faces; save the mesh as OFF in text")
    vertices, faces = (
        whole(text, header.place(0), what) for text, what in zip(counts, ("vertices", "faces"), strict=False)
    )
    corners = lines.take(vertices, "vertices")
    points = finite(corners.values(range(3)), corners.place)
    triangles = text_triangles(lines.take(faces, "faces"), vertices)
    lines.check_end()
    return sample_surface(points, triangles, samples, path) if len(triangles) else (points, None, None)


def cloud_roles(names: Sequence[str], path: Path) -> list[int]:
    """Return the indices of x, y, z, of the normal if there is one, and of the part if there is one, in this order.

    Raises:
        DataError: there is no x, y or z.
    """
    lowered = [name.lower() for name in names]
    if not {"x", "y", "z"} <= {*lowered}:
        raise DataError(
            f"{path}: has no x, y and z (found: {shortened(names, 8) or 'nothing'}); save the points with them"
        )
    if (twice := repeated(name for name in lowered if name != "_")) is not None:  # padding of PCD
        raise DataError(f"{path}: has two columns {quoted(twice)}; rename or remove one")
    chosen = ["x", "y", "z"]
    for normal in (["nx", "ny", "nz"], ["normal_x", "normal_y", "normal_z"]):
        if {*normal} <= {*lowered} and len(chosen) == 3:
            chosen += normal
    chosen += [name for name in ("part", "label") if name in lowered][:1]
    return [lowered.index(name) for name in chosen]


def binary_columns(
    data: bytes, path: Path, *, count: int, start: int, row: int, columns: Sequence[tuple[str, int]]
) -> np.ndarray:
    """Return columns of a binary table, (count, columns) float64.

    Args:
        data: the file.
        path: its path, for messages.
        count: number of rows.
        start: offset of the first row.
        row: bytes of a row.
        columns: numpy type and offset in the row of each column.

    Raises:
        DataError: the file is shorter.
    """
    if count * row > len(data) - start:
        raise incomplete(path, count, "points")
    values = np.empty((count, len(columns)))
    for column, (code, offset) in enumerate(columns if count else ()):
        values[:, column] = np.ndarray((count,), dtype=code, buffer=data, offset=start + offset, strides=(row,))
    return values


def incomplete(path: Path, count: int, what: str) -> DataError:
    """Return the error for a file that is shorter than its header says."""
    return DataError(
        f"{path}: declares {count:,} {what}, but is too short for them; the file is incomplete: download or save it again"
    )


@dataclass
class _Element:
    name: str
    count: int
    #: name and numpy type of each property, and the type of its length if it is a list, else ""
    properties: list[tuple[str, str, str]] = field(default_factory=list)

    def smallest(self) -> int:
        """Return the smallest size of a row in bytes."""
        return sum(int((length or kind)[1]) for _, kind, length in self.properties)


def read_ply(data: bytes, path: Path, samples: int) -> Raw:
    """Read the points of a PLY file; if it has faces, and vertices without parts, points on its surface.

    Raises:
        DataError: the file is damaged; names the line of a text.
    """
    end = _END.search(data, 0, _HEADER)
    if not data.startswith(b"ply") or end is None:
        raise DataError(f"{path}: does not start with the header of a PLY file; save it again")
    header = header_lines(data[: end.end()])
    order, elements = _ply_header(header, path)
    vertex = next((element for element in elements if element.name == "vertex"), _Element("vertex", 0))
    if any(length for _, _, length in vertex.properties):
        raise DataError(f"{path}: a property of the vertices is a list; remove this property")
    roles = cloud_roles([name for name, _, _ in vertex.properties], path)
    values, triangles, place = np.zeros((0, 3)), np.zeros((0, 3), dtype=np.int64), numbered(path)
    lines, at = Lines(b"" if order else data[end.end() :], path, first=len(header) + 1), end.end()
    for element in elements:
        lengths = [length for _, _, length in element.properties]
        names = [name if length and element.name == "face" else "" for name, _, length in element.properties]
        corners = next((i for i, name in enumerate(names) if name in _CORNERS), None)
        whole_lists = any(length and kind[0] in "iu" for _, kind, length in element.properties)
        if element.count and whole_lists and corners is None:  # such as strips of triangles
            raise DataError(
                f"{path}: the lists of {quoted(element.name)} are not read, because faces are {_CORNERS[0]} of the element "
                "face; convert the mesh to triangles, or remove these lists to use the vertices"
            )
        if not order:
            block = lines.take(element.count, element.name)
            if element is vertex:
                values, place = block.values(roles, width=len(vertex.properties)), block.place
            elif corners is not None:
                if any(lengths[:corners]):
                    raise DataError(f"{path}: the faces have another list before {_CORNERS[0]}; save them without it")
                triangles = text_triangles(block, vertex.count, skip=corners)
        elif any(lengths):
            faces, at = _binary_lists(data, at, order, element, corners, path)
            if corners is not None:
                triangles = fan(faces, vertex.count, path)
        else:
            sizes, row = [int(kind[1]) for _, kind, _ in element.properties], element.smallest()
            if element is vertex:
                columns = [(order + element.properties[i][1], sum(sizes[:i])) for i in roles]
                values = binary_columns(data, path, count=element.count, start=at, row=row, columns=columns)
            at += element.count * row
    if order:
        check_end(data, at, path)
    lines.check_end()
    if len(triangles) and values.shape[1] not in (4, 7):
        return sample_surface(finite(values[:, :3], place), triangles, samples, path)
    return cloud_columns(values, place)


def _ply_header(lines: Sequence[str], path: Path) -> tuple[str, list[_Element]]:
    """Return the byte order, empty for text, and the elements."""
    order, elements = None, list[_Element]()
    for number, line in enumerate(lines[1:-1], start=2):
        match line.split():
            case [] | ["comment", *_] | ["obj_info", *_]:
                pass
            case ["format", name, _] if name in _ORDERS and order is None:
                order = _ORDERS[name]
            case ["element", name, count]:
                elements.append(_Element(name, whole(count, f"{path}: line {number}", name)))
            case ["property", "list", length, kind, name] if elements and length in _TYPES and kind in _TYPES:
                elements[-1].properties.append((name, _TYPES[kind], _TYPES[length]))
            case ["property", kind, name] if elements and kind in _TYPES:
                elements[-1].properties.append((name, _TYPES[kind], ""))
            case _:
                raise DataError(
                    f"{path}: line {number}: {quoted(line)} is no part of a PLY header; save the file again"
                )
    if (twice := repeated(element.name for element in elements)) is not None:
        raise DataError(f"{path}: the header declares {quoted(twice)} twice; save the file again")
    if order is None or not all(element.properties for element in elements):
        raise DataError(f"{path}: the header has no format, or an element without properties; save the file again")
    return order, elements


def _binary_lists(
    data: bytes, at: int, order: str, element: _Element, corners: int | None, path: Path
) -> tuple[list[Sequence[int]], int]:
    """Return the list `corners` of each row, and the offset behind the element."""
    found, damaged = list[Sequence[int]](), incomplete(path, element.count, element.name)
    if element.count * element.smallest() > len(data) - at:
        raise damaged
    if element.count > MOST:
        raise DataError(
            f"{path}: has {element.count:,} rows of {element.name}, more than {MOST:,}; simplify the mesh, or remove "
            "its faces to use the vertices"
        )
    try:
        for _ in range(element.count):
            for index, (_, kind, length) in enumerate(element.properties):
                count = 1
                if length:
                    (read,) = struct.unpack_from(order + np.dtype(length).char, data, at)
                    count, at = int(read), at + int(length[1])
                if count < 0 or count * int(kind[1]) > len(data) - at:
                    raise damaged
                if index == corners:
                    read = struct.unpack_from(f"{order}{count}{np.dtype(kind).char}", data, at)
                    if any(corner % 1 for corner in read):  # of a fraction, and NaN of what is not finite
                        raise DataError(
                            f"{path}: face {len(found)}: names a vertex that is not a whole number; repair the mesh"
                        )
                    found.append([int(corner) for corner in read])
                at += count * int(kind[1])
    except (struct.error, ValueError, OverflowError):  # cut off, or a fraction that is not finite
        raise damaged from None
    return found, at
