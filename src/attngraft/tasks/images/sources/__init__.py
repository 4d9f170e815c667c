"""Where images come from: a file per kind of source, one way in.

`open_source` tells the kind from the name: `digits`; a path to a folder, a .tar or an .npz; a name of timm's
(`timm:hfds/...`, also `hfds/...` and `torch/...` as they are).
"""

from __future__ import annotations

from pathlib import Path

from attngraft.errors import DataError
from attngraft.suggest import did_you_mean
from attngraft.tasks.images.config import DataConfig
from attngraft.tasks.images.sources.array import ArrayImages, decoded
from attngraft.tasks.images.sources.decoding import in_mode
from attngraft.tasks.images.sources.drawing import with_validation
from attngraft.tasks.images.sources.images import Images
from attngraft.tasks.images.sources.parts import Parts, restrict

__all__ = ["ArrayImages", "Images", "Parts", "decoded", "in_mode", "open_source", "restrict", "with_validation"]


def open_source(config: DataConfig) -> Parts:
    """The images of `config.source`.

    Raises:
        DataError: there is nothing of that name, or it cannot be used; each kind's file says what it refuses.
    """
    from attngraft.tasks.images.sources import digits, folder, npz, tar, timm_dataset

    source = config.source.strip()
    path = Path(source).expanduser()
    if source.startswith("timm:"):
        return timm_dataset.open_timm(source.removeprefix("timm:"), config)
    if config.root is not None and not source.startswith(timm_dataset.PREFIXES):
        raise DataError(f"{source}: task.data.root belongs to timm sources; write timm:{source} if it is one")
    if source == "digits":
        return digits.open_digits(config)
    if path.is_dir():
        if tar.tars_in(path):
            return tar.open_tar_pair(path, config)
        return folder.open_folder(path, config)
    if path.is_file():
        if path.suffix == ".npz":
            return npz.open_npz(path, config)
        if ".tar" in path.suffixes or path.suffix == ".tgz":
            return tar.open_tar(path, config)
        raise DataError(f"{path}: a file, but neither .tar nor .npz; give a folder, a .tar, an .npz, or digits")
    if source.startswith(timm_dataset.PREFIXES):
        return timm_dataset.open_timm(source, config)
    near = did_you_mean(source, ["digits", *_neighbors(path)])
    raise DataError(
        f"{source}: there is no such file or folder{near}; give a folder, a .tar, an .npz, digits, or timm:<name>"
    )


def _neighbors(path: Path) -> list[str]:
    """What lies beside a path that is not there, written as the user wrote it."""
    try:
        return [str(path.parent / entry.name) for entry in path.parent.iterdir()]
    except OSError:
        return []
