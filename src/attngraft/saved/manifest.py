"""attngraft.json: what an exported folder says of itself.

It is read strictly, and carries a format number. Folders of every past release must load: a new format is a new number,
and readers of the old ones stay.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from attngraft._version import __version__
from attngraft.errors import ConfigError, ExportError
from attngraft.files import write_atomically
from attngraft.strict import FieldError, read
from attngraft.tasks.task import Serving

FORMAT = 1
MANIFEST = "attngraft.json"
WEIGHTS = "model.safetensors"
GRAFTS = "grafts/grafts.safetensors"  #: apart, because timm 1.0.26 takes the first .safetensors of a folder


@dataclass(frozen=True, kw_only=True)
class HostEntry:
    """The host: a model that timm makes, without its pretrained weights."""

    name: str
    args: Mapping[str, Any]  #: of timm's factory, the number of classes among them
    fused: bool = False  #: whether its batch norms stand in the linear maps next to them; timm makes no such model


@dataclass(frozen=True, kw_only=True)
class FoldEntry:
    """What folding did to one graft, or to the host itself."""

    module: str  #: host path of the module that carries it; empty: the host
    instance: str | None = None  #: its name there
    graft: str | None = None  #: registered name, as it was trained
    folded: str | None = None  #: what of it stands in other weights now; None: it stays whole
    stayed: str | None = None  #: why it stays whole
    removed: bool = False  #: whether nothing of the graft is left


@dataclass(frozen=True, kw_only=True)
class Check:
    """A file that was loaded again, run, and compared with the model that it was made from."""

    file: str
    batches: tuple[int, ...]  #: sizes of the batches that were run
    difference: float  #: the largest over all outputs, relative to the largest output or to 1
    tolerance: float


@dataclass(frozen=True, kw_only=True)
class Origin:
    """Where the weights come from."""

    run: str | None = None  #: name of the run's folder
    weights: str | None = None  #: last, best, ema, best-ema
    epoch: int | None = None  #: 1-based; None where it is not known
    seed: int | None = None
    metrics: Mapping[str, float] = field(default_factory=dict)  #: on the run's validation part, at that epoch


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """Everything that is needed to use the model."""

    host: HostEntry
    graft: str | None  #: the specification as trained; what is loaded stands in the graft file
    task: str
    serving: Serving
    dtype: Literal["float32", "bfloat16"] = "float32"
    grafted: bool = False  #: whether there is a graft file
    folds: tuple[FoldEntry, ...] = ()
    programs: Mapping[str, str] = field(default_factory=dict)  #: "onnx", "pt2" -> file
    checks: tuple[Check, ...] = ()
    origin: Origin = field(default_factory=Origin)
    packages: Mapping[str, str] = field(default_factory=dict)  #: versions that made the folder
    version: str = __version__
    format: int = FORMAT

    def __post_init__(self) -> None:
        if not self.serving.classes:
            raise FieldError("serving.classes", "must name at least one class")
        size = self.serving.input.get("size")
        if not isinstance(size, list | tuple) or len(size) != 3:
            raise FieldError("serving.input.size", f"must be channels, height and width, is {size!r}")

    @property
    def folded(self) -> bool:
        """Whether weights of the host hold what stood elsewhere in training."""
        return any(entry.folded for entry in self.folds)

    @property
    def input_size(self) -> tuple[int, int, int]:
        """Channels, height, width."""
        channels, height, width = self.serving.input["size"]
        return int(channels), int(height), int(width)


def manifest_text(manifest: Manifest) -> str:
    """`manifest` as JSON; `parse_manifest` reads it back. Programs carry it too, so that they can be used alone."""
    return json.dumps(dataclasses.asdict(manifest), indent=2, ensure_ascii=False) + "\n"


def write_manifest(manifest: Manifest, folder: Path) -> None:
    """`manifest` as the folder's attngraft.json."""
    write_atomically(folder / MANIFEST, manifest_text(manifest))


def read_manifest(folder: Path | str) -> Manifest:
    """What the exported folder says of itself.

    Raises:
        ExportError: no such folder or manifest, a damaged one, or one of a newer format; names the file and the remedy.
    """
    path = Path(folder) / MANIFEST
    if not path.is_file():
        hint = (
            " (it holds a run: attngraft export makes a folder of it)"
            if (path.parent / "recipe.yaml").is_file()
            else ""
        )
        raise ExportError(f"{folder}: no exported model is here, there is no {MANIFEST}{hint}")
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise ExportError(f"{path}: cannot be read: {error}; export the model again") from None
    return parse_manifest(text, where=str(path))


def parse_manifest(text: str, *, where: str) -> Manifest:
    """The manifest that `text` is.

    Raises:
        ExportError: as `read_manifest`; names `where`.
    """
    try:
        content = json.loads(text)
    except ValueError as error:
        raise ExportError(f"{where}: cannot be read: {error}; export the model again") from None
    if not isinstance(content, dict) or not isinstance(content.get("format"), int):
        raise ExportError(f"{where}: has no format number, so it is none of attngraft's; export the model again")
    if content["format"] > FORMAT:
        raise ExportError(
            f"{where} has format {content['format']}, written by attngraft {content.get('version', 'unknown')}; this is "
            f"{__version__}, which reads formats up to {FORMAT}. Update attngraft: pip install -U attngraft"
        )
    try:
        return read(Manifest, content, where=where)
    except ConfigError as error:
        raise ExportError(f"{error}; export the model again") from None
