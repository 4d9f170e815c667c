"""Arrow files of Hugging Face data sets, read in place through pyarrow at random positions.

Parquet only allows sequential reads, so it is converted once to an Arrow file in the cache folder.
"""

from __future__ import annotations

import io
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import numpy as np

from attngraft.cache import cache_file
from attngraft.errors import DataError, StorageError
from attngraft.files import atomic_file
from attngraft.tasks.images.sources.base import FileImages, Stamp

if TYPE_CHECKING:  # pyarrow is optional, so functions import it
    import pyarrow

UNPACKED_VERSION = "1"  #: changes with the format of converted parquet files

_ROWS = 1000  #: per batch of a converted file


class ArrowImages(FileImages):
    """Rows of Arrow tables whose `column` holds encoded images: bytes, or a struct of `bytes` and `path`.

    Args:
        files: the files as the user knows them.
        places: (N, 2) int64: file, row.
        root: base folder of images that lie beside the files.
    """

    def __init__(
        self,
        files: Sequence[Path],
        *,
        column: str,
        places: np.ndarray,
        names: Sequence[str],
        labels: np.ndarray,
        root: Path,
    ) -> None:
        self.files, self.column, self.places, self.root = files, column, places, root
        self.names, self.labels = names, labels
        self._tables: dict[int, Any] = {}

    @property
    def shard_index(self) -> np.ndarray:
        return self.places

    def where(self, index: int) -> str:
        file, row = self.places[index]
        return f"{self.files[file]}: row {row}"

    def raw(self, index: int) -> IO[bytes]:
        data, path = self._entry(index)
        if data is not None:
            return io.BytesIO(data)
        if not path:
            raise DataError(f"{self.where(index)}: column {self.column!r} holds no image")
        try:
            return (self.root / path).open("rb")
        except OSError as error:
            raise DataError(f"{self.where(index)}: {self.root / path}: cannot be opened ({error.strerror})") from None

    def stamp(self, index: int) -> Stamp | None:
        data, path = self._entry(index)
        try:
            if data is not None:
                return len(data), os.stat(self.files[self.places[index, 0]]).st_mtime_ns
            stat = os.stat(self.root / (path or ""))
        except OSError:
            return None
        return stat.st_size, stat.st_mtime_ns

    def take(self, indices: np.ndarray, labels: np.ndarray) -> ArrowImages:
        return ArrowImages(
            self.files,
            column=self.column,
            places=self.places[indices],
            names=[self.names[i] for i in indices],
            labels=labels,
            root=self.root,
        )

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_tables": {}}

    def _entry(self, index: int) -> tuple[Any, str | None]:
        """Return an image's bytes (a buffer) and path; None for missing ones."""
        file, row = (int(number) for number in self.places[index])
        if file not in self._tables:
            self._tables[file] = open_table(self.files[file]).column(self.column)
        entry = self._tables[file][row]
        if not entry.is_valid:
            return None, None
        if hasattr(entry, "as_buffer"):
            return entry.as_buffer(), None
        return entry["bytes"].as_buffer(), entry["path"].as_py()


def image_columns(schema: pyarrow.Schema) -> list[str]:
    """Return the columns of encoded images: those declared as such, else structs of bytes and path, else bytes."""
    import pyarrow.types as kinds

    declared = [
        name
        for name, feature in features(schema).items()
        if isinstance(feature, dict) and feature.get("_type") == "Image"
    ]
    pairs = [
        field.name
        for field in schema
        if kinds.is_struct(field.type) and {"bytes", "path"} <= {inner.name for inner in field.type}
    ]
    plain = [field.name for field in schema if kinds.is_binary(field.type) or kinds.is_large_binary(field.type)]
    return declared or pairs or plain


def features(schema: pyarrow.Schema) -> dict[str, Any]:
    """Return the library `datasets`' description of the columns; empty for files by other writers."""
    text = (schema.metadata or {}).get(b"huggingface")
    try:
        found = json.loads(text)["info"]["features"] if text else {}
    except (ValueError, KeyError, TypeError):
        return {}
    return found if isinstance(found, dict) else {}


def open_table(path: Path) -> pyarrow.Table:
    """Open the table of a file, memory-mapped where possible.

    Raises:
        DataError: not readable; pyarrow is not installed.
    """
    pa = _require_pyarrow(path)
    try:
        return _unpacked(path, pa) if path.suffix.lower() == ".parquet" else _mapped(path, pa)
    except (OSError, pa.ArrowException) as error:
        raise DataError(f"{path}: cannot be read as {path.suffix} ({error})") from None


def read_schema(path: Path) -> pyarrow.Schema:
    """Read the columns of a file, without its rows.

    Raises:
        DataError: as `open_table`.
    """
    pa = _require_pyarrow(path)
    try:
        if path.suffix.lower() == ".parquet":
            from pyarrow import parquet

            return parquet.read_schema(path)
        return _mapped(path, pa).schema
    except (OSError, pa.ArrowException) as error:
        raise DataError(f"{path}: cannot be read as {path.suffix} ({error})") from None


def _require_pyarrow(path: Path) -> Any:
    try:
        import pyarrow
        import pyarrow.ipc
    except ImportError:
        raise DataError(f"{path}: needs pyarrow: pip install 'attngraft[data]'") from None
    return pyarrow


def _mapped(path: Path, pa: Any) -> pyarrow.Table:
    source = pa.memory_map(str(path))
    try:
        return pa.ipc.open_stream(source).read_all()
    except pa.ArrowInvalid:
        return pa.ipc.open_file(source).read_all()


def _unpacked(path: Path, pa: Any) -> pyarrow.Table:
    """Open a parquet file as an Arrow file in the cache folder, or in memory if that cannot be written."""
    from pyarrow import parquet

    stat = os.stat(path)
    cached = cache_file("arrow", UNPACKED_VERSION, os.path.realpath(path), str(stat.st_size), str(stat.st_mtime_ns))
    cached = cached.with_suffix(".arrow")
    if not cached.exists():
        try:
            with (
                atomic_file(cached) as file,
                parquet.ParquetFile(path) as packed,
                pa.ipc.new_stream(file, packed.schema_arrow) as writer,
            ):
                for batch in packed.iter_batches(batch_size=_ROWS):
                    writer.write_batch(batch)
        except StorageError:
            return parquet.read_table(path)
    return _mapped(cached, pa)
