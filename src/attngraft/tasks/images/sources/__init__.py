"""Where images come from: a file per kind of source, one way in.

`open_source` tells the kind from the name: `digits`; a path to a folder or a file; a pattern of shards (`x-{000..009}.tar`);
`hf:` and the path of a Hugging Face data set; a name of timm's (`timm:hfds/...`, also `hfds/...` and `torch/...` as they
are).
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from attngraft.errors import DataError
from attngraft.suggest import did_you_mean
from attngraft.tasks.images.config import SOURCES, DataConfig
from attngraft.tasks.images.printable import printable
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
    parts = _open(config, config.source.strip())
    if config.root is not None and parts.kind not in ("table", "timm", "coco"):
        raise DataError(f"{config.source}: task.data.root is for tables, COCO and timm sources; leave it out")
    return replace(parts, classes=printable(parts.classes))


def is_missing(source: str) -> bool:
    """Whether only a file or folder can be meant, and there is none: told without opening anything."""
    from attngraft.tasks.images.sources import shard_names, timm_dataset

    known = source == "digits" or shard_names.is_pattern(source) or source.startswith(("timm:", *timm_dataset.PREFIXES))
    return not known and not Path(source.removeprefix("hf:")).expanduser().exists()


def _open(config: DataConfig, source: str) -> Parts:
    from attngraft.tasks.images.sources import digits, shard_names, tar, timm_dataset

    if source.startswith("timm:"):
        return timm_dataset.open_timm(source.removeprefix("timm:"), config)
    if source == "digits":
        return digits.open_digits(config)
    if shard_names.is_pattern(source):
        return tar.open_shards(source, config)
    path = Path(source.removeprefix("hf:")).expanduser()
    if path.is_dir():
        return _open_folder(path, config, saved=source.startswith("hf:"))
    if path.is_file():
        return _open_file(path, config)
    if source.startswith(timm_dataset.PREFIXES):
        return timm_dataset.open_timm(source, config)
    if source.startswith("hf:"):
        raise DataError(
            f"{source}: there is no such file or folder; hf: reads a data set on local disk (save_to_disk, or a "
            "downloaded repository), and fetches nothing"
        )
    near = did_you_mean(source, ["digits", *_neighbors(path)])
    raise DataError(f"{source}: there is no such file or folder{near}; give {SOURCES}")


def _open_folder(path: Path, config: DataConfig, *, saved: bool) -> Parts:
    from attngraft.tasks.images.sources import coco, folder, huggingface, manifest, npz, tar

    if saved or huggingface.is_saved(path):
        return huggingface.open_huggingface(path, config)
    if tar.tars_in(path):
        return tar.open_tar_folder(path, config)
    if coco.coco_in(path):
        return coco.open_coco(path, config)
    if manifest.manifests_in(path) and not folder.has_class_folders(path):
        return manifest.open_manifests(path, config)
    if alone := npz.alone_in(path):
        return npz.open_npz(alone, config)
    return folder.open_folder(path, config)


def _open_file(path: Path, config: DataConfig) -> Parts:
    from attngraft.tasks.images.sources import coco, huggingface, manifest, npz, table, tar

    kind = path.suffix.lower()
    if kind == ".npz":
        return npz.open_npz(path, config)
    if ".tar" in path.suffixes or kind == ".tgz":
        return tar.open_tar(path, config)
    if kind in huggingface.KINDS and huggingface.holds_images(path):
        return huggingface.open_huggingface(path, config)
    if kind == ".json":
        return coco.open_coco(path, config)
    if kind in table.KINDS:
        return manifest.open_manifest(path, config)
    unpack = "; unpack it and give the folder" if kind in (".zip", ".rar", ".7z", ".gz") else f"; give {SOURCES}"
    raise DataError(f"{path}: a file of a kind that is not read{unpack}")


def _neighbors(path: Path) -> list[str]:
    """What lies beside a path that is not there, written as the user wrote it."""
    try:
        return [str(path.parent / entry.name) for entry in path.parent.iterdir()]
    except OSError:
        return []
