"""Image sources, opened by `open_source`; each kind of source has a module.

The source's name determines its kind: `digits` or `bars`; the path of a folder or file; a pattern of shards
(`x-{000..009}.tar`); `hf:` followed by the path of a Hugging Face data set; or a timm name (`timm:hfds/...`, also
`hfds/...` and `torch/...`).
"""

from dataclasses import replace
from pathlib import Path

from attngraft.errors import DataError
from attngraft.files import printable, user_path
from attngraft.opening import access_errors, check_regular
from attngraft.suggest import did_you_mean
from attngraft.tasks.images.config import SOURCES, DataConfig
from attngraft.tasks.images.sources import (
    bars,
    coco,
    digits,
    folder,
    huggingface,
    manifest,
    npz,
    table,
    tar,
    timm_dataset,
)
from attngraft.tasks.images.sources.base import (
    ArrayImages,
    Images,
    ImageSource,
    alike_classes,
    check_classes,
    decoded,
    restrict,
    with_classes,
)
from attngraft.tasks.images.sources.decoding import in_mode
from attngraft.tasks.images.sources.splitting import with_validation

__all__ = ["ArrayImages", "ImageSource", "Images", "decoded", "in_mode", "open_source", "restrict", "with_validation"]


@access_errors()
def open_source(config: DataConfig) -> ImageSource:
    """Open the images of `config.source`.

    Raises:
        DataError: the source does not exist or cannot be used; see the module of each kind.
    """
    source = _open(config, config.source.strip())
    if config.test_split not in (None, "none") and source.test_split is None:
        raise DataError(
            f"{config.source}: no split {config.test_split!r} (task.data.test_split) besides training and validation; "
            "correct the name, or remove it"
        )
    if source.test_split is not None and config.folds is not None:
        note = f"The test split {source.test_split} is not used: folds divide training and validation images only."
        source = replace(source, notes=(*source.notes, note))
    elif source.test_split is not None:
        source = _with_test(source, config)
    if config.group_column is not None and source.groups is None:
        raise DataError(
            f"{config.source}: task.data.group_column requires a table (.csv, .tsv, .parquet) of images; list the images "
            "in a table, or remove it"
        )
    if config.root is not None and source.kind not in ("table", "timm", "coco"):
        raise DataError(f"{config.source}: task.data.root applies only to tables, COCO and timm sources; remove it")
    if config.val_split is not None and source.val is None:
        raise DataError(
            f"{config.source}: no split {config.val_split!r} (task.data.val_split); these data have no splits, so "
            "remove it"
        )
    classes = printable(source.classes)
    check_classes(classes, where=source.where)
    return replace(source, classes=classes, notes=(*source.notes, *alike_classes(classes)))


def _with_test(source: ImageSource, config: DataConfig) -> ImageSource:
    """Return the source with the images of its test split, or with a note on why they cannot be used."""
    only = replace(
        config, val_split=source.test_split, test_split="none", val_fraction=None, split_file=None, classes=None
    )
    try:
        found = _open(only, config.source.strip())
        if found.val is None or found.multilabel != source.multilabel or not len(found.val):
            raise DataError("it has no images with such labels")
        return replace(source, test=with_classes(found.val, found.classes, source))
    except DataError as error:
        if config.test_split is not None:
            raise DataError(f"{source.where}: the test split {source.test_split} cannot be used: {error}") from None
        note = f"The split {source.test_split} is not used as a test split: {error}"
        return replace(source, notes=(*source.notes, note))


def is_missing(source: str) -> bool:
    """Return whether `source` can only be a path, and that path does not exist; nothing is opened."""
    known = (
        source in ("digits", "bars") or tar.is_pattern(source) or source.startswith(("timm:", *timm_dataset.PREFIXES))
    )
    return not known and not user_path(source.removeprefix("hf:")).exists()


def _open(config: DataConfig, source: str) -> ImageSource:
    if config.numeric:
        return _open_numbers(config, source)
    if source.startswith("timm:"):
        return timm_dataset.open_timm(source.removeprefix("timm:"), config)
    if source == "digits":
        return digits.open_digits(config)
    if tar.is_pattern(source):
        return tar.open_shards(source, config)
    path = user_path(source.removeprefix("hf:"))
    if path.is_dir():
        return _open_folder(path, config, saved=source.startswith("hf:"))
    if path.exists():
        return _open_file(path, config)
    if source.startswith(timm_dataset.PREFIXES):
        return timm_dataset.open_timm(source, config)
    if source.startswith("hf:"):
        raise DataError(
            f"{source}: no such file or folder; hf: only reads data sets on the local disk (written by save_to_disk, or a "
            "downloaded repository)"
        )
    raise _missing(source, path, "digits", give=SOURCES)


def _open_numbers(config: DataConfig, source: str) -> ImageSource:
    if source == "bars":
        return bars.open_bars(config)
    path, give = (
        user_path(source),
        "a .csv, .tsv or .parquet with a column of image paths and columns of numbers",
    )
    if not path.exists():
        raise _missing(source, path, "bars", give=give)
    if manifest.manifests_in(path) if path.is_dir() else path.suffix.lower() in table.KINDS:
        return manifest.open_manifest(path, config)
    raise DataError(f"{source}: regression needs {give}, or a folder with such tables")


def _missing(source: str, path: Path, generated: str, *, give: str) -> DataError:
    try:
        neighbors = [str(path.parent / entry.name) for entry in path.parent.iterdir()]
    except OSError:
        neighbors = []
    return DataError(f"{source}: no such file or folder{did_you_mean(source, [generated, *neighbors])}; give {give}")


def _open_folder(path: Path, config: DataConfig, *, saved: bool) -> ImageSource:
    if saved or huggingface.is_saved(path):
        return huggingface.open_huggingface(path, config)
    if tar.tars_in(path):
        return tar.open_tar_folder(path, config)
    if coco.coco_in(path):
        return coco.open_coco(path, config)
    if manifest.manifests_in(path) and not folder.has_class_folders(path):
        return manifest.open_manifest(path, config)
    if archive := npz.archive_in(path):
        return npz.open_npz(archive, config)
    return folder.open_folder(path, config)


def _open_file(path: Path, config: DataConfig) -> ImageSource:
    kind = path.suffix.lower()
    try:
        check_regular(path)
    except OSError as error:
        raise DataError(f"{path}: {error}; give {SOURCES}") from None
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
    if kind == ".npy":
        raise DataError(f"{path}: give its folder, {path.parent}, with images and labels in x.npy and y.npy")
    unpack = "; unpack it and give the folder" if kind in (".zip", ".rar", ".7z", ".gz") else f"; give {SOURCES}"
    raise DataError(f"{path}: unsupported file type{unpack}")
