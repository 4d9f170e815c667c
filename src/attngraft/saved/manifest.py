"""attngraft.json, the manifest of an exported folder.

The manifest is read strictly and has a format number. Folders written by every past release must load, so a new format
gets a new number, and the readers of old formats are kept.
"""

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from attngraft._version import __version__
from attngraft.checksums import Checksums, folder_checksums
from attngraft.errors import ConfigError, ExportError, FolderError, UsageError
from attngraft.files import write_atomically
from attngraft.opening import parse_json, read_text
from attngraft.strict import FieldError, read
from attngraft.tasks.facts import LARGEST_SIZE
from attngraft.tasks.images.config import LARGEST_SIDE
from attngraft.tasks.task import Serving

FORMAT = 2  #: current format; format 1 has no `around`
MANIFEST = "attngraft.json"
WEIGHTS = "model.safetensors"
GRAFTS = "grafts/grafts.safetensors"  #: in a subfolder, because timm 1.0.26 loads the first .safetensors of a folder


@dataclass(frozen=True, kw_only=True)
class HostEntry:
    """The host, without pretrained weights."""

    name: str  #: as in a recipe, with its scheme
    args: Mapping[str, Any]  #: arguments of its factory, including the number of classes
    fused: bool = False  #: whether batch norms are folded into adjacent linear layers (plain timm cannot load it)


@dataclass(frozen=True, kw_only=True)
class FoldEntry:
    """Result of folding one graft, or of folding layers of the host itself."""

    module: str  #: host path of the grafted module; empty: the host
    instance: str | None = None  #: name of the graft at that module
    graft: str | None = None  #: registered name of the graft
    folded: str | None = None  #: the part that was folded into other weights; None: nothing
    stayed: str | None = None  #: reason why nothing was folded
    removed: bool = False  #: whether nothing of the graft is left


@dataclass(frozen=True, kw_only=True)
class Check:
    """Comparison of a reloaded file with the trained model."""

    file: str
    batches: tuple[int, ...]  #: batch sizes
    difference: float  #: largest difference of outputs, relative to the largest output or to 1
    tolerance: float


@dataclass(frozen=True, kw_only=True)
class Origin:
    """The run, epoch and metrics of the weights."""

    run: str | None = None  #: name of the run's folder
    weights: str | None = None  #: last, best, ema, best-ema
    epoch: int | None = None  #: 1-based; None: unknown
    seed: int | None = None
    metrics: Mapping[str, float] = field(default_factory=dict)  #: on the run's validation split, at that epoch


@dataclass(frozen=True, kw_only=True)
class TaskEntry:
    """Recipe section and data facts from which a task rebuilds its modules around the host, and its codec."""

    section: Mapping[str, Any]  #: the recipe's `task` section
    facts: Mapping[str, Any]  #: data facts returned by `Task.load`


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """Everything needed to use the model."""

    host: HostEntry
    graft: str | None  #: specification used in training; loading uses the graft file instead
    task: str
    serving: Serving
    dtype: Literal["float32", "bfloat16"] = "float32"
    grafted: bool = False  #: whether there is a graft file
    folds: tuple[FoldEntry, ...] = ()
    programs: Mapping[str, str] = field(default_factory=dict)  #: "onnx", "pt2" -> file
    checks: tuple[Check, ...] = ()
    origin: Origin = field(default_factory=Origin)
    packages: Mapping[str, str] = field(default_factory=dict)  #: versions at the time of export
    version: str = __version__
    format: int = 1
    around: TaskEntry | None = None  #: for tasks with modules around the host or a codec of their own (format 2)

    def __post_init__(self) -> None:
        serving, given = self.serving, self.serving.input
        if serving.kind == "other":
            if self.around is None:
                raise FieldError("around", "must describe the task")
            return
        classes = len(serving.classes)
        if not classes or len({*serving.classes}) < classes:
            raise FieldError("serving.classes", "must be different names, at least one")
        if serving.numeric and (len(serving.scale), len(serving.offset)) != (classes, classes):
            raise FieldError("serving.scale", "must have, like serving.offset, a number for each of serving.classes")
        if any(each <= 0 for each in serving.scale):
            raise FieldError("serving.scale", "must be positive")
        if serving.threshold is not None and not 0 < serving.threshold < 1:
            raise FieldError("serving.threshold", "must lie between 0 and 1")
        if serving.kind == "images":
            size = given.get("size")
            if not isinstance(size, list | tuple) or len(size) != 3 or not all(map(_is_size, size)):
                raise FieldError("serving.input.size", f"must be channels, height and width, got {size!r}")
        else:
            file, limit = given.get("tokenizer"), given.get("max_length")
            if not isinstance(file, str) or Path(file).is_absolute() or ".." in Path(file).parts:
                raise FieldError("serving.input.tokenizer", f"must be a file of the model's folder, got {file!r}")
            for name, value in {
                "vocab_size": given.get("vocab_size"),
                "max_length": 1 if limit is None else limit,
            }.items():
                if not _is_size(value, largest=LARGEST_SIZE):
                    raise FieldError(f"serving.input.{name}", f"must be a number of tokens, got {value!r}")

    @property
    def folded(self) -> bool:
        """Return whether anything was folded."""
        return any(entry.folded for entry in self.folds)

    @property
    def input_size(self) -> tuple[int, int, int]:
        """Size of an input image: channels, height, width.

        Raises:
            UsageError: the model takes no images.
        """
        if self.serving.kind != "images":
            raise UsageError(f"this model takes {self.serving.takes}, not images")
        channels, height, width = self.serving.input["size"]
        return int(channels), int(height), int(width)


def _is_size(value: object, *, largest: int = LARGEST_SIDE) -> bool:
    return type(value) is int and 1 <= value <= largest


_OPTIONAL = ("offset", "scale")  #: keys of `serving` that only regression models use


def manifest_text(manifest: Manifest) -> str:
    """Return `manifest` as JSON for `parse_manifest`; also embedded in exported programs."""
    plain = dataclasses.asdict(manifest)
    plain["serving"] = {name: value for name, value in plain["serving"].items() if name not in _OPTIONAL or value}
    if manifest.around is None:
        del plain["around"]  # unknown to readers of format 1
    return json.dumps(plain, indent=2, ensure_ascii=False) + "\n"


def write_manifest(manifest: Manifest, folder: Path) -> None:
    """Write the folder's attngraft.json."""
    write_atomically(folder / MANIFEST, manifest_text(manifest))


def read_manifest(folder: Path | str) -> Manifest:
    """Read the manifest of an exported folder.

    Raises:
        FolderError: no such folder, or no manifest in it.
        ExportError: a damaged or newer manifest; the message names file and remedy.
    """
    path = Path(folder) / MANIFEST
    if not path.is_file():
        remedy = "pass a folder written by attngraft export"
        if (path.parent / "recipe.yaml").is_file():
            remedy = f"this is a run; export it first: attngraft export {folder} --out DIR"
        raise FolderError(f"{folder}: not an exported model, there is no {MANIFEST}; {remedy}")
    check_file(path, path.parent)
    try:
        text = read_text(path)
    except (OSError, ValueError) as error:
        raise ExportError(f"{path}: cannot be read: {error}; export the model again") from None
    return parse_manifest(text, where=str(path))


def checksums_of(folder: Path) -> Checksums:
    """Return the checksums of an exported folder's files; empty for folders of earlier versions.

    Raises:
        ExportError: checksums.json is damaged.
    """
    return folder_checksums(folder, error=ExportError, remedy="restore a good copy, or export the model again")


def check_file(path: Path, folder: Path) -> None:
    """Check a file of an exported folder against its checksum.

    Raises:
        ExportError: the file is damaged.
    """
    if damage := checksums_of(folder).damage(path):
        raise ExportError(
            f"{path}: damaged since the export ({damage}); restore a good copy, or export the model again"
        )


def parse_manifest(text: str, *, where: str) -> Manifest:
    """Parse the text of a manifest.

    Raises:
        ExportError: see `read_manifest`; the message names `where`.
    """
    try:
        content = parse_json(text)
    except ValueError as error:
        raise ExportError(f"{where}: cannot be read: {error}; export the model again") from None
    if not isinstance(content, dict) or not isinstance(content.get("format"), int):
        raise ExportError(f"{where}: has no format number, so attngraft did not write it; export the model again")
    if content["format"] > FORMAT:
        raise ExportError(
            f"{where} has format {content['format']}, written by attngraft {content.get('version', 'unknown')}; version "
            f"{__version__} reads formats up to {FORMAT}. Update attngraft: pip install -U attngraft"
        )
    try:
        return read(Manifest, content, where=where)
    except ConfigError as error:
        raise ExportError(f"{error}; export the model again") from None
