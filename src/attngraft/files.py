"""Atomic file writes: no reader or crash leaves a partial file."""

import errno
import functools
import io
import operator
import os
import re
import secrets
import shutil
import stat
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any, TypeVar

from attngraft.errors import FolderError, StorageError
from attngraft.suggest import quoted

T = TypeVar("T")

_OURS = re.compile(r"\..+\.\d+-[0-9a-f]{8}\.tmp")  #: names of unfinished files
_FORMULA = re.compile(r"'*[=+\-@\t\r]")  #: also with quotes, so that no two texts give the same cell
_SURROGATES = re.compile(r"[\ud800-\udfff]")
_NO_ROOM = (errno.ENOSPC, errno.EFBIG, errno.EDQUOT)


def write_atomically(path: Path, content: bytes | str) -> Path:
    """Write `content` to `path` atomically: a temporary file in the same folder is flushed, then renamed.

    Raises:
        StorageError: the folder cannot be created or written; an existing file at `path` is unchanged. The message gives
            the file, the free space, and the remedy.
    """
    with atomic_file(path) as file:
        file.write(content.encode() if isinstance(content, str) else content)
    return path


@contextmanager
def atomic_file(path: Path) -> Iterator[IO[bytes]]:
    """Open a file for writing that replaces `path` when the block ends without an error.

    Raises:
        StorageError: see `write_atomically`. Errors of the block itself are raised unchanged.
    """
    if reason := _unsuitable(path):
        raise StorageError(f"{quoted(str(path))}: cannot be written: {reason}; choose another path")
    temporary = path.with_name(f".{path.name}.{os.getpid()}-{secrets.token_hex(4)}.tmp")
    raw, in_block = None, False
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        raw = _Recorder(temporary, "xb")
        with io.BufferedWriter(raw) as file:
            in_block = True
            yield file
            in_block = False
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException as error:
        size = _remove(temporary)
        failed = raw.failed if raw is not None else None
        if failed is None and isinstance(error, OSError) and not in_block:
            failed = error
        if failed is None:
            raise
        raise StorageError(_write_error(path, failed, size)) from failed
    if hasattr(os, "O_DIRECTORY"):  # make the rename itself durable, if the system can open folders
        descriptor = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _unsuitable(path: Path) -> str:
    """Return why no file is written at `path`, or an empty string; root could replace a device."""
    try:
        os.fsencode(path)
        mode = path.lstat().st_mode
    except UnicodeEncodeError:
        return "contains half of a character"
    except ValueError:
        return "contains a zero byte"
    except OSError:  # there is nothing, or what is there cannot be seen
        mode = stat.S_IFREG
    if not path.name:
        return "is a folder"
    ordinary = stat.S_ISREG(mode) or stat.S_ISDIR(mode) or stat.S_ISLNK(mode)  # a link is replaced, not its target
    return "" if ordinary else "is a device, FIFO or socket, not a regular file"


def open_in_place(path: Path, flags: int) -> io.FileIO:
    """Open a file that is not replaced as a whole, with the flags of `os.open`; never through a link.

    Raises:
        OSError: the file cannot be opened, or is a link, FIFO, socket or device.
    """
    safe = (getattr(os, name, 0) for name in ("O_NOFOLLOW", "O_NONBLOCK", "O_CLOEXEC", "O_BINARY"))
    descriptor = os.open(path, functools.reduce(operator.or_, safe, flags & ~os.O_TRUNC), 0o644)
    mode = {os.O_RDONLY: "rb", os.O_WRONLY: "wb", os.O_RDWR: "r+b"}[flags & (os.O_RDONLY | os.O_WRONLY | os.O_RDWR)]
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "not a regular file", str(path))
    if flags & os.O_TRUNC:
        os.ftruncate(descriptor, 0)
    return io.FileIO(descriptor, mode)


def refuse_links(folder: Path) -> None:
    """Check that no file of a folder is a link, before another library writes to files there in place.

    Raises:
        FolderError: a file is a link.
    """
    for path in sorted(folder.iterdir()) if folder.is_dir() else ():
        if path.is_symlink() and not path.is_dir():
            raise FolderError(
                f"{path}: is a link, through which nothing is written; delete it, or choose another folder"
            )


def share(path: Path, at: Path) -> None:
    """Hard-link the file `path` to `at`, or copy it if the disk does not support links.

    Sharing is safe because writers replace files and never change them in place.

    Raises:
        StorageError: see `write_atomically`.
    """
    temporary = at.with_name(f".{at.name}.{os.getpid()}-{secrets.token_hex(4)}.tmp")
    try:
        at.parent.mkdir(parents=True, exist_ok=True)
        os.link(path, temporary)
        os.replace(temporary, at)
    except OSError:
        with suppress(OSError):
            temporary.unlink()
        write_atomically(at, path.read_bytes())


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Convert the block's OSError to a StorageError, for writes that are not atomic (appending, creating folders)."""
    try:
        yield
    except StorageError:
        raise
    except OSError as error:
        raise StorageError(_write_error(path, error, 0)) from error


@contextmanager
def created(folder: Path) -> Iterator[None]:
    """Create `folder` with its parents; if the block raises, remove the new folders that are still empty.

    Raises:
        FolderError: the folder cannot be created or written.
        StorageError: the disk is full.
    """
    new = _create(folder)
    try:
        yield
    except BaseException:
        _remove_empty(new)
        raise


def check_output(path: Path | None, *, folder: bool = False, inputs: Iterable[str | Path] = ()) -> None:
    """Check that a file or a folder can be created at `path`, before computing its content; creates nothing.

    Raises:
        FolderError: it cannot, or would replace one of the `inputs`.
    """
    if path is None:
        return
    if path.exists() and os.path.realpath(path) in {os.path.realpath(each) for each in inputs}:
        raise FolderError(f"{path}: is read, and would be replaced; choose another path for the output")
    if path.is_dir() and not folder:
        raise FolderError(f"{path}: is a folder; give the name of a file")
    if not folder and (reason := _unsuitable(path)):
        raise FolderError(f"{quoted(str(path))}: cannot be written: {reason}; choose another path")
    _remove_empty(_create(path if folder else path.parent))


def _create(folder: Path) -> list[Path]:
    """Create `folder`, and return the folders that did not exist, from the lowest up."""
    new = [path for path in (folder, *folder.parents) if not path.exists()]
    with writing(folder):
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            _remove_empty(new)
            if error.errno in _NO_ROOM:
                raise
            file = next((path for path in (folder, *folder.parents) if path.is_file()), None)
            reason = error.strerror if file is None else "it is a file" if file == folder else f"{file} is a file"
            raise FolderError(f"{folder}: cannot be used as a folder: {reason}; choose another folder") from None
    if not os.access(folder, os.W_OK):
        raise FolderError(f"{folder}: cannot be written; make it writable, or choose another folder")
    return new


def _remove_empty(folders: Iterable[Path]) -> None:
    for folder in folders:
        with suppress(OSError):  # not empty, or not created
            folder.rmdir()


class _Recorder(io.FileIO):
    """A file that stores the error of a failed write, because `torch.save` raises a different one."""

    failed: OSError | None = None

    def write(self, data: Any, /) -> int:
        try:
            return super().write(data)
        except OSError as error:
            self.failed = error
            raise


def _remove(temporary: Path) -> int:
    """Delete the unfinished file to free its space, and return its size."""
    try:
        size = temporary.stat().st_size
        temporary.unlink(missing_ok=True)
    except OSError:
        return 0
    return size


def _write_error(path: Path, failed: OSError, size: int) -> str:
    intact = "everything saved before is intact"
    if failed.errno not in _NO_ROOM:
        remedy = f"make {path.parent} writable and rerun the same command"
        if failed.errno == errno.ENAMETOOLONG:
            remedy = "choose a shorter name"
        elif failed.errno == errno.EISDIR:
            remedy = "choose another name"
        return f"{path}: cannot be written: {failed.strerror}; {remedy}; {intact}"
    if failed.errno == errno.EFBIG:
        reason = f"the file would exceed this process's size limit ({shown_size(size)} were written)"
        remedy = "raise the limit (ulimit -f)"
    else:
        reason = f"the disk is full ({_free_space(path.parent)}; {shown_size(size)} were written)"
        if failed.errno == errno.EDQUOT:
            reason = f"your disk quota is used up ({shown_size(size)} were written)"
        remedy = "free some space"
    return f"{path}: cannot be written: {reason}; {remedy} and rerun the same command to resume; {intact}"


def _free_space(folder: Path) -> str:
    """Describe the free space on the disk of `folder`, after the unfinished file was deleted."""
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    try:
        free = shutil.disk_usage(folder).free
        inodes = os.statvfs(folder).f_favail if hasattr(os, "statvfs") else 1
    except OSError:
        return "free space unknown"
    return f"{shown_size(free)} free on the disk of {folder}" + ("" if inodes else ", and no inode for another file")


def user_path(path: str | os.PathLike[str]) -> Path:
    """Return a path with `~` as the home folder; unlike `Path.expanduser`, an unknown user's stays as it is."""
    return Path(os.path.expanduser(path))


def shown_size(size: float) -> str:
    """Format a number of bytes: `1.3 MB`."""
    for unit in ("bytes", "kB", "MB", "GB"):
        if size < 1000:
            return f"{size:.0f} {unit}" if unit == "bytes" else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.1f} TB"


def printable(value: T) -> T:
    """Replace bytes that are not UTF-8 in names (`caf\ufffd.png`), for JSON, tables and pages.

    Python represents such bytes in file names as lone surrogates, which encoders reject. `value` is nested plain data.
    """
    result: object = value
    if isinstance(value, str):
        try:
            result = value.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
        except UnicodeEncodeError:  # other surrogates, of JSON
            result = _SURROGATES.sub("\ufffd", value)
    elif isinstance(value, Mapping):
        result = {printable(key): printable(entry) for key, entry in value.items()}
    elif isinstance(value, list | tuple):
        result = type(value)(map(printable, value))
    return result  # type: ignore[return-value]


def csv_cell(value: T) -> T | str:
    """Return a cell of a CSV file, with `'` before a text that spreadsheets would evaluate as a formula."""
    if not isinstance(value, str) or _FORMULA.match(value) is None:
        return value
    try:
        float(value)
    except ValueError:
        return f"'{value}"
    return value


def remove_leftovers(folder: Path, *, below: bool = True) -> None:
    """Delete temporary files of killed processes in `folder` and, with `below`, in its subfolders.

    Only safe while no other process writes there. Files with merely similar names are not deleted.
    """
    for path in folder.glob("**/.*.tmp" if below else ".*.tmp"):
        if _OURS.fullmatch(path.name):
            path.unlink(missing_ok=True)
