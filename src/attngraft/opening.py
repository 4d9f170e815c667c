"""Open files that users hand in: regular files and archives of limited size.

A FIFO blocks until someone writes to it, and a device may have no end. Links are followed, because data folders often
consist of links.
"""

import errno
import gzip
import io
import json
import lzma
import math
import os
import re
import stat
import struct
import tokenize  # by numpy, for headers of arrays
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, TypeVar

from attngraft.errors import AttngraftError, DataAccessError
from attngraft.files import shown_size
from attngraft.suggest import cut, quoted, repeated

if TYPE_CHECKING:
    import numpy as np

T = TypeVar("T")

JSON_LIMIT = 2**32  #: bytes of annotations: those of COCO's training images have 470 MB
TEXT_LIMIT = 2**28  #: bytes of a text file that is read as a whole
_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")  #: half of a character in JSON
DEPTH_LIMIT = 100  #: objects and lists of JSON inside of each other

# Limits of archives. Masks and one-hot labels compress to a hundredth, but what deflate compresses to a thousandth is empty.
UNPACKED_RATIO = 100  #: largest size of what an archive unpacks to, as a multiple of its own size ...
UNPACKED_FREE = 2**28  #: ... if that is more than this many bytes
_TEXT_RATIO, _TEXT_FREE = 25, 2**24  #: the same for a text, whose lines take more memory than their bytes
_PICKLE = 2**23  #: largest size in bytes of a pickle without its tensors, whose objects may take 70 times the memory
ZIP_DIRECTORY = 2**23  #: bytes of the list of a zip's members: at least 80,000 members
TAR_MEMBERS = 2**25  #: ImageNet-21k has 14 million images

#: what readers of damaged archives raise
DAMAGE = (
    *(ArithmeticError, AttributeError, EOFError, LookupError, MemoryError, OSError, RuntimeError, SyntaxError),
    *(TypeError, ValueError, struct.error, tokenize.TokenError, zipfile.BadZipFile, zlib.error, lzma.LZMAError),
)

_BLOCK = 2**20
_KINDS = {stat.S_IFIFO: "a FIFO", stat.S_IFSOCK: "a socket", stat.S_IFCHR: "a device", stat.S_IFBLK: "a device"}


class _File(io.FileIO):
    """A file that is read without waiting; without data, as for some files of /proc, reading raises `UnsuitableFile`."""

    def __init__(self, descriptor: int, path: Path | str) -> None:
        super().__init__(descriptor)
        self.path = path

    def read(self, size: int | None = -1) -> bytes:
        return self._given(super().read(size))

    def readall(self) -> bytes:
        return self.read()

    def readinto(self, buffer: Any) -> int:
        return self._given(super().readinto(buffer))

    def _given(self, found: T | None) -> T:
        if found is None:  # which readers would take for the end, or for data
            raise UnsuitableFile(self.path, "has no data yet, so it is not a regular file; copy it")
        return found


class UnsuitableFile(OSError):
    """A file that is not regular, or too large; `strerror` says which."""

    def __init__(self, path: Path | str, reason: str) -> None:
        super().__init__(None, reason, str(path))

    def __str__(self) -> str:
        return str(self.strerror)


def open_regular(path: Path | str, *, limit: int | None = None) -> io.BufferedReader:
    """Open a regular file for reading; never blocks.

    Args:
        path: the file, or a link to it.
        limit: largest size in bytes.

    Raises:
        UnsuitableFile: a FIFO, socket or device, a larger file, or one with far fewer bytes on the disk than its size.
        OSError: the file cannot be opened.
    """
    flags = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)
    mode = _stat(path).st_mode
    if stat.S_ISSOCK(mode):  # cannot be opened
        raise UnsuitableFile(path, "is a socket, not a regular file")
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    file: io.BufferedReader = io.BufferedReader(_File(os.open(path, flags), path))
    found = os.fstat(file.fileno())
    kind = _KINDS.get(stat.S_IFMT(found.st_mode))
    stored = 512 * getattr(found, "st_blocks", 0)  # 0 where the file system does not report it
    if kind is not None or (limit is not None and found.st_size > limit):
        file.close()
        reason = f"has {shown_size(found.st_size)}, more than {shown_size(limit or 0)}"
        raise UnsuitableFile(path, reason if kind is None else f"is {kind}, not a regular file")
    if stored and found.st_size > unpacked_limit(stored):
        file.close()
        raise UnsuitableFile(path, f"has {shown_size(found.st_size)}, almost all of them holes")
    return file


def check_regular(path: Path | str) -> None:
    """Check that `path` is not a FIFO, socket or device, before a library opens it by its path.

    Raises:
        OSError: see `open_regular`.
    """
    kind = _KINDS.get(stat.S_IFMT(_stat(path).st_mode))
    if kind is not None:
        raise UnsuitableFile(path, f"is {kind}, not a regular file")


def _stat(path: Path | str) -> os.stat_result:
    try:
        return os.stat(path)
    except ValueError as error:  # a zero byte, or a character that no file name can have
        raise UnsuitableFile(path, f"is not a path: {error}") from None


def check_folder(folder: Path | str) -> None:
    """Check the files directly in a folder, before a library opens some of them; see `check_regular`."""
    for entry in os.scandir(folder):
        try:
            check_regular(entry.path)
        except UnsuitableFile as error:
            raise UnsuitableFile(entry.path, f"{entry.name} {error}") from None
        except OSError:  # a broken link
            pass


def unpacked_limit(packed: int, *, text: bool = False) -> int:
    """Return the largest size in bytes of what an archive, or a text, of `packed` bytes may unpack to."""
    return max(_TEXT_FREE, _TEXT_RATIO * packed) if text else max(UNPACKED_FREE, UNPACKED_RATIO * packed)


def check_unpacked(path: Path | str, unpacked: int, packed: int, *, text: bool = False) -> None:
    """Check what an archive, or a text, unpacks to.

    Raises:
        UnsuitableFile: it is more than `unpacked_limit` of its own size, `packed`.
    """
    if unpacked > unpacked_limit(packed, text=text):
        sizes = [shown_size(size) for size in (packed, unpacked, unpacked_limit(packed, text=text))]
        raise UnsuitableFile(path, "unpacks from {} to {}, more than {}".format(*sizes))


def check_zip(file: IO[bytes], path: Path | str) -> None:
    """Check names, number and sizes of the members of an open zip; other files pass.

    Raises:
        UnsuitableFile: its list of members is damaged; it has too many members, or two of the same name; or they unpack to
            too much, or not with deflate.
    """
    end = zipfile._EndRecData(file)  # type: ignore[attr-defined]
    if end is None:
        file.seek(0)
        return
    directory: int = end[5]
    if directory > ZIP_DIRECTORY:
        reason = f"has too many members: a list of {shown_size(directory)}, more than {shown_size(ZIP_DIRECTORY)}"
        raise UnsuitableFile(path, reason)
    with zipfile.ZipFile(file) as archive:
        members = archive.infolist()
    if len(members) != end[4]:  # a wrong length in the list hides the members behind it
        raise UnsuitableFile(path, f"is damaged: it has {end[4]:,} members, but lists {len(members):,}")
    if any(member.filename.endswith("/data.pkl") and member.file_size > _PICKLE for member in members):
        raise UnsuitableFile(path, f"has a pickle of more than {shown_size(_PICKLE)} besides its tensors")
    if len({member.filename for member in members}) < len(members):
        raise UnsuitableFile(path, "has two members of the same name")
    if any(member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED) for member in members):
        raise UnsuitableFile(path, "is compressed with another method than deflate")
    check_unpacked(path, sum(member.file_size for member in members), file.seek(0, os.SEEK_END))
    file.seek(0)


def open_zip(path: Path | str) -> io.BufferedReader:
    """Open a regular file that may be a zip, such as those of torch and numpy; see `open_regular` and `check_zip`."""
    file = open_regular(path)
    try:
        check_zip(file, path)
    except BaseException:
        file.close()
        raise
    return file


@contextmanager
def open_npz(path: Path | str) -> Iterator["np.lib.npyio.NpzFile"]:
    """Open an .npz file, whose arrays are read on access.

    Raises:
        DAMAGE: the file cannot be read, here or on access.
    """
    import numpy as np

    with open_zip(path) as file:
        found = np.load(file, allow_pickle=False)
        if not isinstance(found, np.lib.npyio.NpzFile):
            raise ValueError("it is not a zip of arrays")
        with found:
            for member in found.zip.infolist():  # type: ignore[union-attr]
                _check_member(found.zip, member)  # type: ignore[arg-type]
            yield found


def array_header(file: IO[bytes], *, size: int | None = None) -> tuple[tuple[int, ...], bool, "np.dtype[Any]"]:
    """Return shape, Fortran order and type of an array in the format .npy, of which only the header is read.

    Args:
        file: the array.
        size: bytes of the file, which an array that is not of objects must fill; None: not checked.

    Raises:
        DAMAGE: the header cannot be read, or the array does not end where the file does.
    """
    import numpy as np

    version = np.lib.format.read_magic(file)
    if version not in ((1, 0), (2, 0), (3, 0)):  # 3.0 has names of columns in UTF-8
        raise ValueError(f"version {version[0]}.{version[1]}")
    read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, fortran, dtype = read(file)
    if size is not None and not dtype.hasobject:
        left = size - file.tell() - math.prod(shape) * dtype.itemsize
        if left < 0:
            raise ValueError(f"declares {shape}, but is too short for it; the file is incomplete: save it again")
        if left > 0:  # another array, or a damaged header
            raise ValueError(f"declares {shape}, but has {left:,} bytes more; save it again")
    return shape, fortran, dtype


def array_of(data: bytes) -> "np.ndarray":
    """Return the array in the content of an .npy file.

    Raises:
        DAMAGE: it cannot be read, such as an array of objects, or one that is larger or smaller than the content.
    """
    import numpy as np

    file = io.BytesIO(data)
    shape, fortran, dtype = array_header(file, size=len(data))
    if dtype.hasobject or min(shape, default=0) < 0:
        raise ValueError(f"is {dtype} {shape}")
    values = np.frombuffer(data, dtype=dtype, count=math.prod(shape), offset=file.tell())
    return values.reshape(shape, order="F" if fortran else "C")


def _check_member(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> None:
    """Check that a member has the name in the list of members, and is an array as long as the member.

    Numpy returns others as bytes, and does not read on behind an array, to where `zipfile` checks the CRC.
    """
    with archive.open(member) as file:
        try:
            if file.read(6) != b"\x93NUMPY":
                raise ValueError("is not an array")
            file.seek(0)
            array_header(file, size=member.file_size)
        except ValueError as error:
            raise ValueError(f"{member.filename} {error}") from None
        except DAMAGE:  # raised again on access
            return


def read_blocks(path: Path | str) -> Iterator[bytes]:
    """Yield the content of a text file of any size, plain or .gz, in blocks.

    Raises:
        OSError: see `open_regular` and `check_unpacked`.
        EOFError, gzip.BadGzipFile, zlib.error: the .gz is damaged.
    """
    with open_regular(path) as file:
        if Path(path).suffix != ".gz":
            yield from iter(lambda: file.read(_BLOCK), b"")
            return
        packed, unpacked = os.fstat(file.fileno()).st_size, 0
        with gzip.open(file) as text:
            while block := text.read(_BLOCK):
                unpacked += len(block)
                check_unpacked(path, unpacked, packed, text=True)
                yield block


def read_data(path: Path | str) -> bytearray:
    """Return the content of a text file of any size.

    A zero byte ends the reading, because a file may have holes, which take no space on the disk.

    Raises:
        OSError: see `open_regular`; or the file contains a zero byte.
    """
    data = bytearray()
    for block in read_blocks(path):
        if b"\0" in block:
            raise UnsuitableFile(path, "contains a zero byte, so it is not UTF-8 text; save it as UTF-8")
        data += block
    return data


@contextmanager
def access_errors() -> Iterator[None]:
    """Convert errors of the system, such as a missing permission or a name that is too long, to `DataAccessError`."""
    try:
        yield
    except AttngraftError:
        raise
    except OSError as error:
        name = "the data" if error.filename is None else cut(str(error.filename))
        reason = error.strerror or error
        raise DataAccessError(f"{name}: cannot be read ({reason}); check this path and its permissions") from None


def read_text(path: Path | str, *, limit: int = TEXT_LIMIT) -> str:
    """Return the content of a text file in UTF-8.

    Raises:
        OSError, UnicodeDecodeError: see `open_regular`.
    """
    with open_regular(path, limit=limit) as file:
        return file.read().decode("utf-8-sig")


def parse_numbers(texts: Sequence[str]) -> list[float]:
    """Convert texts to numbers, without the underscores that `float` accepts (`1_0`).

    Raises:
        ValueError: a text is not a number.
    """
    if "_" in "".join(texts):
        raise ValueError("a number with an underscore")
    return list(map(float, texts))


def read_json(path: Path | str, *, limit: int = TEXT_LIMIT) -> Any:
    """Return the content of a JSON file.

    Raises:
        OSError: see `open_regular`.
        ValueError: the content is not JSON, is nested too deeply, or has an integer of thousands of digits.
    """
    return parse_json(read_text(path, limit=limit))


def parse_json(text: str | bytes, *, errors: str = "surrogateescape") -> Any:
    """Parse JSON; see `read_json`.

    Args:
        text: the JSON.
        errors: handler of halves of characters; by default, those that stand for bytes in names of files are allowed.

    Raises:
        ValueError: `text` is not JSON, is nested too deeply, or has an object with a repeated key; a UnicodeEncodeError
            for half of a character.
    """
    try:
        if isinstance(text, bytes):
            text = text.decode("utf-8")
        value = json.loads(text.removeprefix("\ufeff"), object_pairs_hook=_object)
    except RecursionError:
        raise ValueError("nested too deeply") from None
    except (json.JSONDecodeError, UnicodeDecodeError, _RepeatedKey):
        raise
    except ValueError:  # of `int`
        raise ValueError("an integer has thousands of digits") from None
    if text.count("[") + text.count("{") > DEPTH_LIMIT:
        _check_depth(value)
    if _SURROGATE.search(text):
        json.dumps(value, ensure_ascii=False).encode("utf-8", errors)
    return value


class _RepeatedKey(ValueError):
    """A key occurs twice in an object."""


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return an object of JSON; raises `_RepeatedKey`."""
    found = dict(pairs)
    if len(found) < len(pairs):
        raise _RepeatedKey(f"the key {quoted(repeated(key for key, _ in pairs))} occurs twice")
    return found


def _check_depth(value: Any) -> None:
    level = [value]
    for _ in range(DEPTH_LIMIT + 1):
        level = [
            entry
            for each in level
            for entry in (each.values() if isinstance(each, dict) else each)
            if isinstance(entry, (dict, list))  # twice as fast as a union
        ]
        if not level:
            return
    raise ValueError("nested too deeply")


def read_mapping(path: Path | str, *, limit: int = TEXT_LIMIT) -> dict[str, Any]:
    """Return the object in a JSON file; raises a ValueError also for content of another type, see `read_json`."""
    value = read_json(path, limit=limit)
    if not isinstance(value, dict):
        raise ValueError(f"expected an object ({{...}}), found {quoted(value)}")
    return value
