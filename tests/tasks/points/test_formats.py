from __future__ import annotations

import os
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from attngraft.errors import DataError
from attngraft.tasks.points.formats import point_place, read_cloud
from tests.tasks.points.files import CUBE, cube_vertices, drawn, write_npy, write_pcd, write_ply, write_text

WRITERS: dict[str, Any] = {
    "a.txt": write_text,
    "a.csv": lambda path, values: write_text(path, values, delimiter=","),
    "a.xyz": lambda path, values: write_text(path, values, delimiter="\t"),
    "a.pts": lambda path, values: write_text(path, values, delimiter=" , "),
    "a.npy": write_npy,
    "a.ply": write_ply,
    "little.ply": lambda path, values: write_ply(path, values, kind="binary_little_endian"),
    "big.ply": lambda path, values: write_ply(path, values, kind="binary_big_endian"),
    "a.pcd": write_pcd,
    "binary.pcd": lambda path, values: write_pcd(path, values, kind="binary"),
}
TRIANGLE = b"element face 1\nproperty list uchar int vertex_indices\nend_header\n"


def same(found: tuple[np.ndarray | None, ...], values: np.ndarray) -> bool:
    points, normals, parts = found
    expected = [
        values[:, :3],
        values[:, 3:6] if values.shape[1] > 4 else None,
        values[:, -1] if values.shape[1] in (4, 7) else None,
    ]
    return all(
        (each is None) == (other is None)
        and (each is None or other is None or np.array_equal(each, other.astype(each.dtype)))
        for each, other in zip((points, normals, parts), expected, strict=True)
    )


@pytest.mark.parametrize("name", WRITERS)
@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(data=st.data(), columns=st.sampled_from([3, 4, 6, 7]), count=st.integers(1, 9))
def test_every_format_returns_what_was_written(tmp_path: Path, name: str, data: Any, columns: int, count: int) -> None:
    number = st.floats(-(2.0**100), 2.0**100, width=32)
    values = data.draw(arrays.arrays(np.float64, (count, columns), elements=number))
    if columns in (4, 7):
        values[:, -1] = data.draw(arrays.arrays(np.int64, count, elements=st.integers(0, 999)))
    path = tmp_path / name
    WRITERS[name](path, values)
    found = read_cloud(path)
    assert same(found, values)
    assert found[0].dtype == np.float32


@pytest.mark.parametrize("dtype", ["<f4", ">f4", "<f8", "<f2", "<i2", "<u8"])
def test_npy_of_other_types_and_orders(tmp_path: Path, dtype: str) -> None:
    values = np.arange(15).reshape(5, 3)
    assert same(read_cloud(write_npy(tmp_path / "a.npy", values.astype(dtype))), values)
    assert same(read_cloud(write_npy(tmp_path / "b.npy", np.asfortranarray(values.astype(dtype)))), values)


def test_texts_of_other_systems(tmp_path: Path) -> None:
    values = np.array([[0, 1, 2], [3, 4, 5.5]])
    for text in (
        "0 1 2\r\n3 4 5.5\r\n",
        "0 1 2\r3 4 5.5",
        "\ufeff0,1,2\n3,4,5.5",
        "//X Y Z\n0 1 2\n\n3 4 5.5",
        "2\n0 1 2\n3 4 5.5",
    ):
        (tmp_path / "A.TXT").write_bytes(text.encode())
        assert same(read_cloud(tmp_path / "A.TXT"), values)


def test_the_place_of_a_point_is_its_line(tmp_path: Path) -> None:
    path = write_text(tmp_path / "a.txt", drawn(3))
    assert point_place(path, 0) == f"{path}: line 3"  # after a comment and an empty line
    assert point_place(write_npy(tmp_path / "a.npy", drawn(3)), 1) == f"{tmp_path / 'a.npy'}: point 1 (from 0)"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is empty; download"),
        ("\n# nothing\n", "contains no points"),
        ("0 0 0\n\n1 x 1\n", r"line 3: '1 x 1' has an entry that is not a number; correct"),
        ("0 0 0\n1 1_0 1\n", "line 2: .*not a number"),
        ("0 0 0\n1 1\n", "line 2: has 2 columns, expected 3; correct"),
        ("0 0 0\n1 1 1 1\n", "line 2: has 4 columns, expected 3; correct"),
        ("0 0\n1 1\n", "line 1: has 2 columns, expected x y z,"),
        ("1,5 2,5 3,5 0,5\n", "line 1: has 5 columns|not a number"),
        ("x,y,z\n0,0,0\n", "line 1: 'x,y,z' has an entry that is not a number"),
        ("0 0 0\nnan 0 0\n", "line 2: nan, 0, 0 has a number that is not finite"),
        ("0 0 0\n0 -inf 0\n", "line 2: 0, -inf, 0 has a number that is not finite"),
        ("0 0 0 1\n0 0 0 1.5\n", "line 2: the part 1.5 is not a whole number"),
        ("0 0 0 1\n0 0 0 1e6\n", r"line 2: the part 1e\+06 is not a whole number from 0 to 999; number the parts"),
        ("1000000000000\n0 0 0\n", "line 1: declares 1,000,000,000,000 points, but 1 lines follow"),
        ("0 0 0\n0 0\x000 0\n", "line 2: .*not a number"),
    ],
)
def test_texts_that_cannot_be_read(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "a.txt").write_text(text)
    with pytest.raises(DataError, match=f"^{tmp_path}/a.txt: ?.*({message})"):
        read_cloud(tmp_path / "a.txt")


def test_files_that_are_no_clouds(tmp_path: Path) -> None:
    (tmp_path / "a.obj").write_text("v 0 0 0")
    with pytest.raises(DataError, match="a.obj: not a format of point clouds"):
        read_cloud(tmp_path / "a.obj")
    with pytest.raises(DataError, match="b.txt: cannot be read"):
        read_cloud(tmp_path / "b.txt")
    os.mkfifo(tmp_path / "c.txt")
    with pytest.raises(DataError, match="c.txt: cannot be read .is a FIFO"):
        read_cloud(tmp_path / "c.txt")


@pytest.mark.parametrize(
    ("array", "message"),
    [
        (np.zeros((5, 5)), r"is float64 \(5, 5\), expected numbers"),
        (np.zeros(3), "expected numbers"),
        (np.array([["a", "b", "c"]]), "expected numbers"),
        (np.array([[None, None, None]]), r"cannot be read as .npy \(is object"),
        (np.zeros((5, 3), dtype=complex), "expected numbers"),
        (np.full((5, 3), np.nan), "point 0 .*not finite"),
    ],
)
def test_npy_that_cannot_be_used(tmp_path: Path, array: np.ndarray, message: str) -> None:
    np.save(tmp_path / "a.npy", array, allow_pickle=True)
    with pytest.raises(DataError, match=message):
        read_cloud(tmp_path / "a.npy")


def test_a_npy_with_a_long_header_has_an_error_of_one_line(tmp_path: Path) -> None:
    (tmp_path / "a.npy").write_bytes(b"\x93NUMPY\x01\x00" + struct.pack("<H", 60_000) + b" " * 60_000)
    with pytest.raises(DataError, match=r"cannot be read as .npy \(Header[^\n]*\); write it with numpy.save$"):
        read_cloud(tmp_path / "a.npy")


def test_a_npy_is_checked_before_memory_is_allocated(tmp_path: Path) -> None:
    path = tmp_path / "a.npy"
    for shape in ((10**12, 3), (2**63, 3), (-1, 3)):
        with path.open("wb") as file:
            np.lib.format.write_array_header_1_0(file, {"descr": "<f8", "fortran_order": False, "shape": shape})
            file.write(b"\0" * 24)
        with pytest.raises(DataError, match=f"^{path}: (declares|is float64|cannot be read)"):
            read_cloud(path)
    for damaged in (b"\x93NUMPY\x03\x00junk", b"\x93NUMPY\x01\x00\x08\x00{'a': (\0"):  # numpy raises a TokenError there
        path.write_bytes(damaged)
        with pytest.raises(DataError, match="cannot be read as .npy .*numpy.save"):
            read_cloud(path)


@pytest.mark.parametrize("bad", [0, 1, 6, 8191, 9999])
@pytest.mark.parametrize(
    ("text", "message"), [("1 2", "has 2 columns|x y z"), ("1 x 3", "has an entry that is not a number")]
)
def test_a_mistake_in_a_long_text_is_found_by_halving(tmp_path: Path, bad: int, text: str, message: str) -> None:
    lines = 10_000 * ["1 2 3"]
    lines[bad] = text
    (tmp_path / "a.txt").write_text("\n".join(lines))
    with pytest.raises(DataError, match=f"line {bad + 1}: .*({message})"):
        read_cloud(tmp_path / "a.txt")


def test_files_of_too_many_rows_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("attngraft.tasks.points.lines.MOST", 5)
    monkeypatch.setattr("attngraft.tasks.points.meshes.MOST", 5)
    text = tmp_path / "a.txt"
    text.write_text("1 2 3\n4 5 6\n\n\n\n")
    assert len(read_cloud(text)[0]) == 2
    text.write_text("1 2 3\n4 5 6\n\n\n\n\n")
    with pytest.raises(DataError, match="a.txt: has more than 5 lines; save it in a binary format"):
        read_cloud(text)
    faces = TRIANGLE.replace(b"face 1", b"face 6") + 6 * struct.pack("<B3i", 3, 0, 1, 2)
    with pytest.raises(DataError, match="a.ply: has 6 rows of face, more than 5; simplify the mesh"):
        read_cloud(write_ply(tmp_path / "a.ply", drawn(3), kind="binary_little_endian", faces=faces))
    faces = TRIANGLE.replace(b"face 1", b"face 2") + struct.pack("<B4iB6i", 4, 0, 1, 2, 0, 6, *(0, 1, 2) * 2)
    with pytest.raises(DataError, match="a.ply: face 1: the polygons up to here have more than 5 triangles; simplify"):
        read_cloud(write_ply(tmp_path / "a.ply", drawn(3), kind="binary_little_endian", faces=faces))


def on_cube(points: np.ndarray, normals: np.ndarray) -> np.ndarray:
    """Whether each point is on the side of the unit cube to which its normal points."""
    axis = np.abs(normals).argmax(axis=1)
    inside = ((points > -1e-6) & (points < 1 + 1e-6)).all(axis=1)
    at = points[np.arange(len(points)), axis]
    return inside & ((np.abs(at) < 1e-6) | (np.abs(at - 1) < 1e-6)) & np.isclose(np.abs(normals).max(axis=1), 1)


def test_points_of_an_off_mesh_are_uniform_on_its_surface(tmp_path: Path) -> None:
    path = tmp_path / "cube.off"
    path.write_text(CUBE)
    points, normals, parts = read_cloud(path, samples=6000)
    assert points.shape == (6000, 3) and normals is not None and parts is None
    assert on_cube(points, normals).all()
    axes = np.bincount(np.abs(normals).argmax(axis=1), minlength=3)
    assert np.abs(axes - 2000).max() < 200
    quarter = ((points < 0.5).sum(axis=1) == 3).mean()  # of each of three sides
    assert abs(quarter - 1 / 8) < 0.02


def test_points_of_a_mesh_depend_on_the_name_only(tmp_path: Path) -> None:
    for name in ("a/1.off", "b/1.off", "a/2.off"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(CUBE)
    first, moved, other = (read_cloud(tmp_path / name) for name in ("a/1.off", "b/1.off", "a/2.off"))
    assert first[0].shape == (2048, 3)
    assert (first[0] == moved[0]).all() and (first[0] != other[0]).any()
    assert (read_cloud(tmp_path / "a/1.off")[0] == first[0]).all()


@pytest.mark.parametrize(
    "head", ["OFF8 8 0\n", "OFF 8 8 0 # counts\n", "OFF\r\n8 8\r\n", "COFF\n8 8 0\n", "off\n8 8 0\n"]
)
def test_counts_of_off_may_be_glued_to_the_keyword(tmp_path: Path, head: str) -> None:
    (tmp_path / "a.off").write_text(CUBE)
    expected = read_cloud(tmp_path / "a.off")[0]
    (tmp_path / "a.off").write_text(CUBE.replace(CUBE[: CUBE.index("0 0 0\n")], head))
    assert (read_cloud(tmp_path / "a.off")[0] == expected).all()


def test_an_off_file_without_faces_has_its_vertices(tmp_path: Path) -> None:
    (tmp_path / "a.off").write_text("\n".join(CUBE.splitlines()[:11]).replace("8 8 0", "8 0 0"))
    assert same(read_cloud(tmp_path / "a.off"), cube_vertices())


def test_empty_lines_and_comments_may_end_an_off_file(tmp_path: Path) -> None:
    (tmp_path / "a.off").write_text(CUBE)
    expected = read_cloud(tmp_path / "a.off")[0]
    (tmp_path / "a.off").write_text(f"{CUBE}\n \r\n# the end\n\n")
    assert (read_cloud(tmp_path / "a.off")[0] == expected).all()


def test_triangles_are_read_like_the_same_polygons(tmp_path: Path) -> None:
    plain = "OFF\n4 2 0\n0 0 0\n1 0 0\n1 1 0\n0 1 0\n3 0 1 2\n3 0 2 3\n"
    found = []
    for text in (plain, plain.replace("4 2 0", "4 1 0").replace("3 0 1 2\n3 0 2 3", "4 0 1 2 3")):
        (tmp_path / "a.off").write_text(text)
        found.append(read_cloud(tmp_path / "a.off")[0])
    assert (found[0] == found[1]).all()


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("OFF\n", "PLY\n", "does not start with OFF"),
        ("8 8 0", "8", "line 3: expected the numbers of vertices and faces"),
        ("8 8 0", "8 x 0", "line 3: the number of faces is 'x', not a whole number"),
        ("8 8 0", "-8 8 0", "line 3: the number of vertices is '-8'"),
        ("8 8 0", "1000000000000 8 0", "declares 1,000,000,000,000 vertices, but only 16 lines follow"),
        ("8 8 0", "8 1000000000000 0", "declares 1,000,000,000,000 faces, but only 8 lines follow"),
        ("8 8 0", f"{'9' * 5000} 8 0", "line 3: the number of vertices is"),
        ("1 0 1\n", "1 0\n", "line 9: has 2 columns, expected 3"),
        ("1 0 1\n", "1 nan 1\n", "line 9: .*not finite"),
        ("1 0 1\n", "1 zero 1\n", "line 9: .*not a number"),
        ("3 1 6 5", "3 1 6 8", "line 20: names the vertex 8, but the 8 vertices count from 0"),
        ("3 1 6 5", "3 1 6 -1", "line 20: names the vertex -1"),
        ("3 1 6 5", "3 1 6", "line 20: a face of 3 corners names 2 vertices"),
        ("3 1 6 5", "three 1 6 5", "line 20: the number of corners is 'three'"),
        ("3 1 6 5", "3 1.5 6 5", "line 20: the number of a vertex is '1.5'"),
        ("3 1 6 5", "0", "line 20: a face of 0 corners"),
        ("8 8 0", "8 2 0", "line 14: is more than the header declares; correct the header, or remove the line"),
    ],
)
def test_off_files_that_cannot_be_read(tmp_path: Path, old: str, new: str, message: str) -> None:
    assert CUBE.count(old) >= 1
    (tmp_path / "a.off").write_text(CUBE.replace(old, new, 1))
    with pytest.raises(DataError, match=f"^{tmp_path}/a.off: ?.*{message}"):
        read_cloud(tmp_path / "a.off")


def test_meshes_of_triangles_name_the_line_of_a_mistake(tmp_path: Path) -> None:
    (tmp_path / "a.off").write_text("OFF\n3 2 0\n0 0 0\n1 0 0\n0 1 0\n3 0 1 2\n3 0 1 3\n")
    with pytest.raises(DataError, match="line 7: names the vertex 3"):
        read_cloud(tmp_path / "a.off")
    (tmp_path / "a.off").write_text("OFF\n3 1 0\n0 0 0\n1 0 0\n2 0 0\n3 0 1 2\n")
    with pytest.raises(DataError, match="no face has an area"):
        read_cloud(tmp_path / "a.off")


def cube_faces(order: str | None) -> bytes:
    head = b"element face 8\nproperty uchar red\nproperty list uchar int vertex_indices\n"
    head += b"element edge 1\nproperty float z\nend_header\n"
    rows = [line.split() for line in CUBE.splitlines()[11:] if line]
    faces = [[int(field) for field in row[: int(row[0]) + 1]] for row in rows]
    if order is None:
        return head + "".join(f"9 {' '.join(map(str, face))}\n" for face in faces).encode() + b"0.5\n"
    packed = b"".join(struct.pack(f"{order}BB{face[0]}i", 9, *face) for face in faces)
    return head + packed + struct.pack(f"{order}f", 0.5)


@pytest.mark.parametrize(
    ("kind", "order"), [("ascii", None), ("binary_little_endian", "<"), ("binary_big_endian", ">")]
)
def test_points_of_a_ply_mesh(tmp_path: Path, kind: str, order: str | None) -> None:
    (tmp_path / "a.off").write_text(CUBE)
    expected = read_cloud(tmp_path / "a.off", samples=100)
    vertices = cube_vertices()
    path = write_ply(tmp_path / "a.off.ply", vertices, kind=kind, faces=cube_faces(order)).rename(tmp_path / "a.ply")
    points, normals, _ = read_cloud(path, samples=100)
    assert normals is not None and expected[1] is not None
    assert points.shape == (100, 3) and on_cube(points, normals).all()
    labeled = np.concatenate([vertices, np.arange(8)[:, None]], axis=1)  # parts belong to vertices: no surface then
    assert same(read_cloud(write_ply(path, labeled, kind=kind, faces=cube_faces(order))), labeled)


@pytest.mark.parametrize("kind", ["ascii", "binary_little_endian"])
@pytest.mark.parametrize(
    ("old", "new"),
    [(b"face 1", b"tristrips 1"), (b"face 1", b"faces 1"), (b"vertex_indices", b"vertex_indexes")],
)
def test_lists_that_are_no_faces_are_refused(tmp_path: Path, kind: str, old: bytes, new: bytes) -> None:
    row = b"3 0 1 2\n" if kind == "ascii" else struct.pack("<B3i", 3, 0, 1, 2)
    corners = np.array([[0, 0, 0], [1, 0, 0], [0, 1, 0]])
    for name in (b"vertex_indices", b"vertex_index"):
        faces = TRIANGLE.replace(b"vertex_indices", name) + row
        assert read_cloud(write_ply(tmp_path / "a.ply", corners, kind=kind, faces=faces))[0].shape == (2048, 3)
    path = write_ply(tmp_path / "a.ply", corners, kind=kind, faces=TRIANGLE.replace(old, new) + row)
    with pytest.raises(DataError, match="a.ply: the lists of '(tristrips|faces?)' are not read, .*; convert the mesh"):
        read_cloud(path)
    empty = TRIANGLE.replace(old, new).replace(b" 1\n", b" 0\n")
    assert same(read_cloud(write_ply(path, corners, kind=kind, faces=empty)), corners)


@pytest.mark.parametrize("kind", ["ascii", "binary_little_endian"])
def test_other_elements_of_a_ply_are_ignored(tmp_path: Path, kind: str) -> None:
    other = b"element edge 1\nproperty int vertex1\nproperty int vertex2\n"
    other += b"element material 1\nproperty list uchar float color\nend_header\n"
    other += b"0 1\n2 0.5 1\n" if kind == "ascii" else struct.pack("<2iB2f", 0, 1, 2, 0.5, 1)
    values = drawn(3)
    assert same(read_cloud(write_ply(tmp_path / "a.ply", values, kind=kind, faces=other)), values)


@pytest.mark.parametrize("kind", ["binary_little_endian", "binary_big_endian"])
def test_a_ply_that_is_cut_off(tmp_path: Path, kind: str) -> None:
    path = write_ply(tmp_path / "a.ply", cube_vertices(), kind=kind, faces=cube_faces(">" if "big" in kind else "<"))
    whole = path.read_bytes()
    path.write_bytes(whole + b"12")
    with pytest.raises(DataError, match=r"a\.ply: has 2 bytes more than its header declares; save it again"):
        read_cloud(path)
    for size in (len(whole) - 7, len(whole) - 60, len(whole) - 150, whole.index(b"end_header") + 11):
        path.write_bytes(whole[:size])
        with pytest.raises(
            DataError, match="a.ply: declares 8 (points|face), but is too short for them; the file is inc"
        ):
            read_cloud(path)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (b"ply\n", b"plx\n", "does not start with the header of a PLY"),
        (b"end_header", b"end", "does not start with the header of a PLY"),
        (b"format ascii 1.0", b"format text 1.0", "line 2: 'format text 1.0' is no part of a PLY header"),
        (b"format ascii 1.0\n", b"", "has no format"),
        (b"format ascii 1.0", b"format ascii 1.0\nformat ascii 1.0", "line 3: 'format ascii 1.0' is no part"),
        (b"element vertex 3", b"element vertex 1000000000000", "declares 1,000,000,000,000 vertex, but only 4 lines"),
        (b"3 0 1 2\n", b"3 0 1 2\n3 0 1 2\n", "line 15: is more than the header declares"),
        (b"element vertex 3", b"element vertex -3", "line 4: the number of vertex is '-3'"),
        (b"element face 1", b"element face 1000000000000", "declares 1,000,000,000,000 face, but only 1 lines"),
        (b"property double x", b"property double u", r"has no x, y and z \(found: u, y, z\)"),
        (b"property double x", b"property list int double x", "a property of the vertices is a list"),
        (b"element vertex", b"element points", "has no x, y and z"),
        (b"3 0 1 2", b"3 0 1 3", "line 14: names the vertex 3, but the 3 vertices count from 0"),
        (b"3 0 1 2", b"2 0", "line 14: a face of 2 corners names 1 vertices"),
        (b"1.0 0.0 0.0", b"1.0 inf 0.0", "line 12: 1, inf, 0 has a number that is not finite"),
        (b"1.0 0.0 0.0", b"1.0 zero 0.0", "line 12: .*not a number"),
        (b"1.0 0.0 0.0", b"1.0 0.0 0.0 0.0", "line 12: has 4 columns, expected 3; correct this line"),
        (b"1.0 0.0 0.0", b"1.0 0.0", "line 12: has 2 columns, expected 3; correct this line"),
        (b"double z", b"double z\nproperty double w", "line 12: has 3 columns, expected 4; correct this line"),
        (b"property list uchar int vertex_indices\n", b"", "or an element without properties"),
        (b"property double x", b"property double x\nproperty double x", "has two columns 'x'; rename or remove one"),
        (b"element face 1", b"element vertex 1", "the header declares 'vertex' twice"),
    ],
)
def test_ply_files_that_cannot_be_read(tmp_path: Path, old: bytes, new: bytes, message: str) -> None:
    path = write_ply(tmp_path / "a.ply", np.array([[0, 0, 0], [1, 0, 0], [0, 1, 0]]), faces=TRIANGLE + b"3 0 1 2\n")
    assert read_cloud(path)[0].shape == (2048, 3)
    assert path.read_bytes().count(old) == 1
    path.write_bytes(path.read_bytes().replace(old, new))
    with pytest.raises(DataError, match=f"^{path}: ?.*{message}"):
        read_cloud(path)


@pytest.mark.parametrize("faces", [struct.pack("<B3i", 3, 0, 1, 3), struct.pack("<B3i", 3, 0, 1, -1)])
def test_a_face_of_a_binary_ply_names_a_missing_vertex(tmp_path: Path, faces: bytes) -> None:
    corners = np.array([[0, 0, 0], [1, 0, 0], [0, 1, 0]])
    path = write_ply(tmp_path / "a.ply", corners, kind="binary_little_endian", faces=TRIANGLE + faces)
    with pytest.raises(DataError, match="a.ply: face 0: names the vertex (3|-1)"):
        read_cloud(path)


@pytest.mark.parametrize("corner", [0.5, np.nan, np.inf])
def test_a_face_of_a_binary_ply_names_a_fraction(tmp_path: Path, corner: float) -> None:
    corners = np.array([[0, 0, 0], [1, 0, 0], [0, 1, 0]])
    faces = TRIANGLE.replace(b"uchar int", b"uchar float") + struct.pack("<B3f", 3, 0, 1, corner)
    path = write_ply(tmp_path / "a.ply", corners, kind="binary_little_endian", faces=faces)
    with pytest.raises(DataError, match="a.ply: face 0: names a vertex that is not a whole number; repair the mesh"):
        read_cloud(path)


@pytest.mark.parametrize("count", [b"1000000000000", b"999999999999999999"])
@pytest.mark.parametrize("what", [b"vertex 3", b"face 1"])
def test_counts_of_a_binary_ply_are_checked_first(tmp_path: Path, what: bytes, count: bytes) -> None:
    faces = TRIANGLE + struct.pack("<B3i", 3, 0, 1, 2)
    path = write_ply(tmp_path / "a.ply", drawn(3), kind="binary_little_endian", faces=faces)
    path.write_bytes(path.read_bytes().replace(what, what[:-1] + count))
    with pytest.raises(DataError, match="but is too short for them"):
        read_cloud(path)


def test_a_pcd_with_more_fields(tmp_path: Path) -> None:
    rows = np.zeros(2, dtype=[("rgb", "<f4"), ("x", "<f4"), ("_", "u1", (3,)), ("y", "<f8"), ("z", "<i2")])
    rows["x"], rows["y"], rows["z"] = [1, 2], [3, 4], [5, 6]
    head = "FIELDS rgb x _ y z\nSIZE 4 4 1 8 2\nTYPE F F U F I\nCOUNT 1 1 3 1 1\nPOINTS 2\nDATA {}\n"
    (tmp_path / "a.pcd").write_bytes(head.format("binary").encode() + rows.tobytes())
    expected = np.array([[1, 3, 5], [2, 4, 6]])
    assert same(read_cloud(tmp_path / "a.pcd"), expected)
    text = head.format("ascii") + "nan 1 0 0 0 3 5\nnan 2 0 0 0 4 6\n"
    (tmp_path / "a.pcd").write_text(text)
    assert same(read_cloud(tmp_path / "a.pcd"), expected)
    (tmp_path / "a.pcd").write_text(text.replace("nan 2", "nan 9 2"))
    with pytest.raises(DataError, match="line 8: has 8 columns, expected 7; correct this line"):
        read_cloud(tmp_path / "a.pcd")


@pytest.mark.parametrize("kind", ["ascii", "binary"])
@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (b"DATA", b"DUTA", "has no PCD header that ends with DATA"),
        (
            b"DATA ascii",
            b"DATA binary_compressed",
            "DATA binary_compressed cannot be read; convert it with pcl_convert",
        ),
        (
            b"DATA binary",
            b"DATA binary_compressed",
            "DATA binary_compressed cannot be read; convert it with pcl_convert",
        ),
        (b"POINTS 3\n", b"POINTS 1000000000000\n", "declares 1,000,000,000,000 points, but"),
        (b"POINTS 3\n", b"POINTS 4\n", "declares 4 points, but"),
        (b"POINTS 3\n", b"POINTS 2\n", "(line 14: is|has 24 bytes) more than (the|its) header declares"),
        (b"POINTS 3\n", b"POINTS three\n", "line 10: the number of POINTS is 'three'"),
        (b"POINTS 3\n", b"", "has no number of POINTS"),
        (b"FIELDS x", b"FIELDS u", "has no x, y and z"),
        (b"FIELDS x y z", b"FIELDS x y z x", "has two columns 'x'"),
        (b"FIELDS x", b"FIELDS z y x\nFIELDS x", "a second line 'FIELDS'; remove one"),
        (b"COUNT 1 1 1", b"COUNT 1 1", "COUNT does not fit FIELDS"),
        (b"COUNT 1 1 1", b"COUNT 2 1 1", "COUNT does not fit FIELDS"),
        (b"SIZE 8 8 8", b"SIZE 8 8 3", "SIZE and TYPE do not fit FIELDS"),
        (b"TYPE F F F", b"TYPE F F", "SIZE and TYPE do not fit FIELDS"),
    ],
)
def test_pcd_files_that_cannot_be_read(tmp_path: Path, kind: str, old: bytes, new: bytes, message: str) -> None:
    path = write_pcd(tmp_path / "a.pcd", drawn(3), kind=kind)
    if old not in path.read_bytes() or (kind == "ascii" and "SIZE" in message):
        assert kind.encode() not in old
        return
    path.write_bytes(path.read_bytes().replace(old, new))
    with pytest.raises(DataError, match=f"^{path}: ?.*{message}"):
        read_cloud(path)


def test_a_mistake_in_a_pcd_text_has_its_line(tmp_path: Path) -> None:
    path = write_pcd(tmp_path / "a.pcd", np.ones((3, 3)))
    path.write_text(path.read_text().replace("1.0 1.0 1.0\n", "1.0 nan 1.0\n", 1))
    with pytest.raises(DataError, match="a.pcd: line 12: 1, nan, 1 has a number that is not finite"):
        read_cloud(path)


def test_areas_are_computed_in_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.off").write_text(CUBE)
    whole = read_cloud(tmp_path / "a.off", samples=20)
    monkeypatch.setattr("attngraft.tasks.points.meshes._BLOCK", 5)  # areas of a few triangles at once
    for ours, theirs in zip(read_cloud(tmp_path / "a.off", samples=20), whole, strict=True):
        assert np.array_equal(ours, theirs)  # type: ignore[arg-type]
