"""What a graft file says of itself: which grafts it holds, and what host they fit.

The manifest is JSON in the file's metadata:

    {"format": 1, "version": "0.1.0", "host": {"adapter", "architecture", "fingerprint"}, "spec": "...",
     "entries": [{"site", "stage", "instance", "graft", "options"}], "include": ["head"]}

It is read strictly. Files of every past release must load: a new format is a new number, and readers of the old ones stay.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import nn

from attngraft._version import __version__
from attngraft.errors import ConfigError, GraftFileError
from attngraft.strict import FieldError, read

FORMAT = 1
#: of an option; text goes before float, for a text is no number here, whatever it looks like
Plain = bool | int | str | float | None
_TAKEN = frozenset(dir(nn.ModuleDict()))  #: of what holds the grafts of a module


@dataclass(frozen=True, kw_only=True)
class StoredHost:
    """The host that the grafts were taken from."""

    adapter: str
    architecture: Mapping[str, Any]  #: what its adapter says must be the same
    fingerprint: str | None  #: of its weights, where the file is tied to them

    def __post_init__(self) -> None:
        sites = self.architecture.get("sites")
        if not isinstance(sites, list | tuple) or not all(isinstance(site, list | tuple) for site in sites):
            raise FieldError("architecture.sites", "must be a list of lists: path, kind and widths of every site")


@dataclass(frozen=True, kw_only=True)
class StoredGraft:
    """One graft of the file."""

    site: str  #: host path
    stage: str
    instance: str  #: its name there
    graft: str  #: registered name
    options: Mapping[str, Plain]

    def __post_init__(self) -> None:
        if not self.instance.isidentifier() or self.instance in _TAKEN:
            raise FieldError("instance", f"must be a name that a module can have, is {self.instance!r}")


@dataclass(frozen=True, kw_only=True)
class GraftManifest:
    """Everything in a graft file but its tensors."""

    format: int
    version: str  #: of attngraft, which wrote it
    host: StoredHost
    spec: str  #: what a reader would type to graft a host the same way
    entries: tuple[StoredGraft, ...]
    include: tuple[str, ...]  #: parts of the host that are in the file too

    def __post_init__(self) -> None:
        if self.format < 1:
            raise FieldError("format", f"must be 1 or more, is {self.format}")


def manifest_text(manifest: GraftManifest) -> str:
    """`manifest` as JSON; `parse_manifest` reads it back."""
    return json.dumps(dataclasses.asdict(manifest))


def parse_manifest(text: str, *, file: Path) -> GraftManifest:
    """The manifest that `text`, in the metadata of `file`, is.

    Raises:
        GraftFileError: it is damaged, or of a newer format; names the file, the field and the remedy.
    """
    try:
        content = json.loads(text)
        if not isinstance(content, dict) or not isinstance(content.get("format"), int):
            raise ValueError("it has no format number")
        if content["format"] <= FORMAT:
            return read(GraftManifest, content, where=f"{file}: manifest")
    except ConfigError as error:
        raise GraftFileError(f"{error}; save the grafts again") from None
    except (ValueError, RecursionError) as error:
        raise GraftFileError(f"{file}: its manifest cannot be read ({error}); save the grafts again") from None
    raise GraftFileError(
        f"{file} has format {content['format']}, written by attngraft {content.get('version', 'unknown')}; this is "
        f"{__version__}, which reads formats up to {FORMAT}. Update attngraft: pip install -U attngraft"
    )
