"""Findings as files: `<name>.json` is read back, `<name>.csv` and plots stand beside it, a page shows all of a folder."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

from attngraft.errors import ConfigError
from attngraft.files import write_atomically
from attngraft.results.analysis import FORMAT, Finding
from attngraft.strict import read

FOLDER = "analysis"  #: in a study's or a run's folder


def save_finding(finding: Finding, folder: Path) -> Path:
    """Write `<name>.json`; other files than this are drawn from it.

    Raises:
        StorageError: it cannot be written.
    """
    text = json.dumps(dataclasses.asdict(finding), ensure_ascii=False, allow_nan=False)
    return write_atomically(folder / f"{finding.name}.json", text + "\n")


def load_finding(path: Path) -> Finding:
    """
    Raises:
        ConfigError: the file is damaged, or of a newer format; names it and the remedy.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path}: cannot be read as a finding ({error}); make the analysis again") from None
    if isinstance(content, dict) and isinstance(content.get("format"), int) and content["format"] > FORMAT:
        raise ConfigError(
            f"{path}: has format {content['format']}, this version reads up to {FORMAT}; update attngraft"
        )
    return read(Finding, content, where=str(path))


def load_findings(folder: Path) -> list[Finding]:
    """All findings in a folder, in the order in which analyses are listed; none where there is no such folder."""
    from attngraft.analysis.catalog import ANALYSES

    order = {name: place for place, name in enumerate(ANALYSES)}
    files = [path for path in sorted(folder.glob("*.json")) if not path.name.startswith(".")]
    found = [load_finding(path) for path in files]
    return sorted(found, key=lambda each: (order.get(each.name, len(order)), each.name))
