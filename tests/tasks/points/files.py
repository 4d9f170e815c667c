"""Small point clouds in every format."""

from __future__ import annotations

from pathlib import Path

import numpy as np

CUBE = """OFF
# a cube: 4 squares, and 4 triangles for the other two sides
8 8 0
0 0 0
1 0 0
1 1 0
0 1 0
0 0 1
1 0 1
1 1 1
0 1 1
4 0 1 2 3
4 4 5 6 7
4 0 1 5 4

4 2 3 7 6 255 0 0.5
3 0 3 7
3 0 7 4
3 1 2 6
3 1 6 5
"""

NAMES = {3: "x y z", 4: "x y z label", 6: "x y z nx ny nz", 7: "x y z nx ny nz label"}


def cube_vertices() -> np.ndarray:
    return np.array([[float(n) for n in line.split()] for line in CUBE.splitlines()[3:11]])


def write_text(path: Path, values: np.ndarray, *, delimiter: str = " ") -> Path:
    lines = [delimiter.join(repr(float(value)) for value in row) for row in values]
    path.write_text("# points\n\n" + "\n".join(lines) + "\n")
    return path


def write_npy(path: Path, values: np.ndarray) -> Path:
    np.save(path, values)
    return path


def write_ply(path: Path, values: np.ndarray, *, kind: str = "ascii", faces: bytes = b"") -> Path:
    """`faces` are the header's lines, `end_header`, and the rows."""
    names = NAMES[values.shape[1]].split()
    properties = [f"property {'int' if name == 'label' else 'double'} {name}" for name in names]
    lines = ["ply", f"format {kind} 1.0", "comment drawn", f"element vertex {len(values)}", *properties]
    head, end, rows = faces.partition(b"end_header\n")
    if kind == "ascii":
        body = "".join(" ".join(numbers(row, names)) + "\n" for row in values).encode()
    else:
        body = packed(values, names, "<" if "little" in kind else ">")
    path.write_bytes("\n".join(lines).encode() + b"\n" + head + b"end_header\n" + body + (rows if end else b""))
    return path


def write_pcd(path: Path, values: np.ndarray, *, kind: str = "ascii") -> Path:
    names = NAMES[values.shape[1]].split()
    sizes = ["4" if name == "label" else "8" for name in names]
    types = ["I" if name == "label" else "F" for name in names]
    shown = [{"nx": "normal_x", "ny": "normal_y", "nz": "normal_z"}.get(name, name) for name in names]
    lines = [
        *(
            "# .PCD v0.7",
            "VERSION 0.7",
            f"FIELDS {' '.join(shown)}",
            f"SIZE {' '.join(sizes)}",
            f"TYPE {' '.join(types)}",
        ),
        *(f"COUNT {' '.join('1' for _ in names)}", f"WIDTH {len(values)}", "HEIGHT 1", "VIEWPOINT 0 0 0 1 0 0 0"),
        *(f"POINTS {len(values)}", f"DATA {kind}"),
    ]
    if kind == "ascii":
        body = "".join(" ".join(numbers(row, names)) + "\n" for row in values).encode()
    else:
        body = packed(values, names, "<")
    path.write_bytes("\n".join(lines).encode() + b"\n" + body)
    return path


def numbers(row: np.ndarray, names: list[str]) -> list[str]:
    return [str(int(v)) if name == "label" else repr(float(v)) for v, name in zip(row, names, strict=True)]


def packed(values: np.ndarray, names: list[str], order: str) -> bytes:
    rows = np.zeros(len(values), dtype=[(name, f"{order}{'i4' if name == 'label' else 'f8'}") for name in names])
    for column, name in enumerate(names):
        rows[name] = values[:, column]
    return rows.tobytes()


def drawn(count: int, *, columns: int = 3, seed: int = 0) -> np.ndarray:
    """Random points, and parts 0 and 1 in the last of 4 or 7 columns."""
    values = np.random.default_rng(seed).normal(size=(count, columns))
    if columns in (4, 7):
        values[:, -1] = np.arange(count) % 2
    return values
