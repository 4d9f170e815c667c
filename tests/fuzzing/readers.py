"""What the fuzzing harness reads: of each format a small valid folder, and the function that reads it."""

from __future__ import annotations

import dataclasses
import functools
import io
import json
import os
import shutil
import tarfile
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import yaml
from hypothesis import strategies as st

import attngraft
from attngraft.checksums import FILE as CHECKSUMS
from attngraft.errors import ConfigError
from attngraft.export.run import export_run
from attngraft.grafting.io import read_graft_file
from attngraft.grafting.spec import GraftSpec, parse
from attngraft.models.create import resolve_host
from attngraft.models.host_input import host_input
from attngraft.models.weights import read_weights
from attngraft.results.records import RecordTable, open_records, write_records
from attngraft.results.storage import read_study
from attngraft.saved.folder import load
from attngraft.study import Tools, compare
from attngraft.study.config import read_study_file, study_from_dict
from attngraft.study.predictions import open_predictions, read_statistics
from attngraft.study.verify import verify
from attngraft.tasks.captioning.config import CaptionDataConfig
from attngraft.tasks.captioning.encoder import EncoderConfig
from attngraft.tasks.captioning.features import FeatureFile, described
from attngraft.tasks.captioning.source import open_captions
from attngraft.tasks.detection.config import ObjectDataConfig
from attngraft.tasks.detection.facts import read_facts
from attngraft.tasks.detection.source import open_objects
from attngraft.tasks.images.config import DataConfig
from attngraft.tasks.images.opening import open_images
from attngraft.tasks.points.source import load_clouds
from attngraft.tasks.segmentation.config import MaskDataConfig
from attngraft.tasks.segmentation.source import count_labels, open_masks
from attngraft.tasks.text.config import TextDataConfig
from attngraft.tasks.text.source import open_texts
from attngraft.tasks.translation.config import TranslationConfig, TranslationDataConfig
from attngraft.tasks.translation.source import open_pairs
from attngraft.tasks.translation.tokenizer import read_tokenizer
from attngraft.tasks.translation.trained import special_ids, train_bpe
from attngraft.training.build import task_of
from attngraft.training.evaluate import trained_model
from attngraft.training.recipe import load_recipe, recipe_to_dict
from attngraft.training.run_folder import read_run
from tests.fuzzing.odd import (
    PATHS,
    TREE,
    Files,
    odd_clouds,
    odd_features,
    odd_grafts,
    odd_json,
    odd_json_lines,
    odd_npz,
    odd_parquet,
    odd_pictures,
    odd_run,
    odd_specification,
    odd_tar,
    odd_text,
    odd_weights,
    odd_words,
    odd_yaml,
    png,
)
from tests.grafting.test_apply import tiny_vit
from tests.study.test_end_to_end import tiny
from tests.tasks.captioning import pictures
from tests.tasks.detection.scenes import write_coco as write_object_coco
from tests.tasks.detection.scenes import write_masks as write_object_masks
from tests.tasks.detection.scenes import write_voc, write_yolo
from tests.tasks.images.datasets import make_folder, picture
from tests.tasks.points.files import CUBE, drawn, write_npy, write_pcd, write_ply
from tests.tasks.points.files import write_text as write_lines
from tests.tasks.text import toys
from tests.tasks.translation.pairs import sentences, write_pairs


@dataclass(frozen=True, kw_only=True)
class Reader:
    """A format: `write` makes a valid folder, `read` returns what it holds; `files` are those that are damaged."""

    write: Callable[[Path], object]
    read: Callable[[Path], Any]
    files: Sequence[str]  #: patterns
    odd: Callable[[Mapping[str, bytes]], st.SearchStrategy[Files]]  #: valid files -> files in place of some of them
    strict: bool = False  #: whether checksums find every changed byte
    named: bool = True  #: whether there is a file that errors name


def bits(value: Any) -> Any:
    """Return nested lists of text and bytes that are equal if and only if the values are, bit for bit."""
    if isinstance(value, torch.Tensor):
        return bits([str(value.dtype), value.contiguous().reshape(-1).view(torch.uint8).numpy(), *value.shape])
    if isinstance(value, np.ndarray):
        return [str(value.dtype), value.shape, value.tobytes()]
    if dataclasses.is_dataclass(value):
        return [bits(getattr(value, field.name)) for field in dataclasses.fields(value)]
    if isinstance(value, Mapping):
        return [[bits(key), bits(entry)] for key, entry in value.items()]
    if isinstance(value, list | tuple):
        return [bits(entry) for entry in value]
    return repr(value)


def write_predictions(folder: Path) -> None:
    table = RecordTable(
        names=np.array(["a", "b", "c"]),
        columns={
            "logits": np.arange(6, dtype=np.float32).reshape(3, 2),
            "boxes": [np.ones((n, 4)) for n in range(3)],
            "caption": np.array(["x", "y", "z"]),
        },
        outputs=frozenset({"caption"}),
        score=np.array([1.0, 0.0, 1.0]),
        binary=True,
    )
    write_records(folder / "predictions.npz", table)


def read_predictions(folder: Path) -> Any:
    with open_records(folder / "predictions.npz") as table:
        columns = {name: table[name] for name in table}
        return table.names, columns, sorted(table.outputs), table.score, table.binary


def read_images(source: Path, **config: Any) -> Any:
    opened = open_images(DataConfig(source=str(source), **{"val_fraction": 0.5, **config}))
    parts = [opened.source.train, opened.val]
    pixels = [[np.asarray(images.open(i)) for i in range(len(images))] for images in parts]
    return opened.source.classes, [list(images.names) for images in parts], [images.labels for images in parts], pixels


def write_npz(folder: Path) -> None:
    pixels = np.stack([np.asarray(picture(i, size=(4, 4))) for i in range(8)])
    np.savez(folder / "x.npz", x=pixels, y=np.arange(8) % 2, classes=np.array(["cat", "dog"]))


def write_text(name: str, separator: str) -> Callable[[Path], None]:
    def write(folder: Path) -> None:
        make_folder(folder, TREE)
        rows = [["path", "label"], *([path, path[0]] for path in PATHS)]
        (folder / name).write_text("".join(f"{separator.join(row)}\n" for row in rows))

    return write


def write_json_lines(folder: Path) -> None:
    make_folder(folder, TREE)
    lines = (json.dumps({"path": path, "label": path[0]}) for path in PATHS)
    (folder / "x.jsonl").write_text("".join(f"{line}\n" for line in lines))


def write_parquet(folder: Path) -> None:
    import pyarrow as pa
    from pyarrow import parquet

    make_folder(folder, TREE)
    parquet.write_table(pa.table({"path": PATHS, "label": [path[0] for path in PATHS]}), folder / "x.parquet")


def write_tar(folder: Path) -> None:
    with tarfile.open(folder / "x.tar", "w") as tar:
        for number, path in enumerate(PATHS):
            stem = path.removesuffix(".png").replace("/", "")
            for name, content in ((f"{stem}.png", png(number)), (f"{stem}.cls", path[0].encode())):
                member = tarfile.TarInfo(name)
                member.size = len(content)
                tar.addfile(member, io.BytesIO(content))


def write_clouds(folder: Path) -> None:
    x = drawn(40, columns=6).reshape(4, 10, 6)
    np.savez(folder / "x.npz", x_train=x, y_train=np.arange(4) % 2, parts_train=np.zeros((4, 10)))


def write_cloud_files(folder: Path) -> None:
    (folder / "a").mkdir()
    (folder / "a/1.off").write_text(CUBE)
    values = drawn(5, columns=6)
    for path, write in {"2.txt": write_lines, "3.npy": write_npy, "4.ply": write_ply, "5.pcd": write_pcd}.items():
        write(folder / "a" / path, values)
    write_ply(folder / "a/6.ply", values, kind="binary_big_endian")
    write_pcd(folder / "a/7.pcd", values, kind="binary")


def read_clouds(source: Path) -> Any:
    found = load_clouds(source, samples=20)
    return found.classes, [
        dataclasses.astuple(train.cloud(i)) for train in found.splits.values() for i in range(len(train))
    ]


def coco() -> dict[str, Any]:
    square = [1, 1, 8, 1, 8, 8, 1, 8]
    runs = {"size": [12, 12], "counts": [20, 30, 94]}
    return {
        "images": [{"id": i, "file_name": f"{i}.png", "width": 12, "height": 12} for i in range(4)],
        "categories": [{"id": 7, "name": "cat", "color": [1, 2, 3]}, {"id": 9, "name": "dog"}],
        "annotations": [
            {
                "id": i,
                "image_id": i % 4,
                "category_id": 7 + 2 * (i // 4),
                "bbox": [1, 1, 7, 7],
                "segmentation": [[square], runs, {**runs, "counts": "d0n0n2"}][i % 3],
            }
            for i in range(8)
        ],
    }


def write_coco(folder: Path) -> None:
    for i in range(4):
        picture(i).save(folder / f"{i}.png")
    (folder / "x.json").write_text(json.dumps(coco()))


def write_masks(folder: Path) -> None:
    (folder / "train").mkdir()
    for i in range(4):
        picture(i).save(folder / "train" / f"{i}.png")
    (folder / "train" / "_annotations.coco.json").write_text(json.dumps(coco()))


def read_masks(folder: Path) -> Any:
    source = open_masks(MaskDataConfig(source=str(folder), val_fraction=0.5))
    parts = [source.train, source.val]
    counts = [count_labels(images) for images in parts]
    return source.labels.classes, counts, [[images.label(i) for i in range(len(images))] for images in parts]


def read_objects(folder: Path) -> Any:
    source = open_objects(ObjectDataConfig(source=str(folder)))
    facts = [read_facts(images, source.classes) for images in source.parts().values()]
    objects = [images.objects(i) for images in source.parts().values() for i in range(len(images))]
    return source.classes, source.category_ids, source.masks, source.notes, facts, objects


def write_captions(name: str) -> Callable[[Path], None]:
    def write(folder: Path) -> None:
        pictures.WRITERS[Path(name).suffix[1:]](folder)
        (folder / f"captions_train{Path(name).suffix}").rename(folder / name)

    return write


def read_captions(source: Path) -> Any:
    found = open_captions(CaptionDataConfig(source=str(source)))
    return found.parts(), found.notes, found.origin


def read_features(folder: Path) -> Any:
    found, source = FeatureFile(folder / "x.h5"), open_captions(CaptionDataConfig(source=str(folder)))
    found.check(source)
    parts = source.parts().values()
    return found.encoder, found.encoder_digest, [found.rows(images, i) for images in parts for i in range(len(images))]


def write_feature_file(folder: Path) -> None:
    pictures.write_jsonl(folder)
    pictures.write_features(folder / "x.h5", **described(EncoderConfig(name="vit")), digest="af12")


def write_texts(folder: Path) -> None:
    toys.table(folder / "x.csv", toys.sentences(12))


def read_text_table(folder: Path) -> Any:
    found = open_texts(TextDataConfig(source=str(folder / "x.csv"), val_fraction=0.5, check="off"))
    return [[found.classes, each.texts, each.labels] for each in (found.train, found.val)], found.notes


def write_aligned(folder: Path) -> None:
    write_pairs(folder, {"train": sentences(12), "val": sentences(6, seed=1)})


def read_pairs(folder: Path) -> Any:
    data = TranslationDataConfig(source=str(folder), check="off")
    found = open_pairs(TranslationConfig(data=data, source="en", target="de"))
    return [[each.sources, each.targets] for each in (found.train, found.val)], found.notes


def write_tokenizer(folder: Path) -> None:
    pairs = sentences(60)
    ids = special_ids({})
    train_bpe([side for pair in pairs for side in pair], vocab_size=300, ids=ids).save(folder)


def read_pair_tokenizer(folder: Path) -> Any:
    found = read_tokenizer(folder)
    texts = ["One house.", "Ein Haus.", "\u0301 \U0001f600 x" * 3]
    encoded = found.encode_source(texts) + found.encode_target(texts)
    return encoded, [found.decode(each) for each in encoded], [found.tokens(each) for each in encoded]


def write_transformers(folder: Path) -> None:
    sizes = {"image_size": 8, "patch_size": 4, "hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = {"model_type": "vit", "architectures": ["ViTForImageClassification"], "intermediate_size": 8, **sizes}
    (folder / "config.json").write_text(json.dumps({**config, "id2label": {"0": "cat", "1": "dog"}}))
    seen = {"image_processor_type": "ViTImageProcessor", "size": {"height": 8, "width": 8}, "resample": 2}
    means = {"image_mean": [0.5, 0.5, 0.5], "image_std": [0.5, 0.5, 0.5], "do_rescale": True, "rescale_factor": 1 / 255}
    (folder / "preprocessor_config.json").write_text(json.dumps({**seen, **means, "do_resize": True}))


def read_transformers(folder: Path) -> Any:
    name, arguments = resolve_host(f"hf:{folder}", {})
    return arguments, host_input(name, arguments)


def write_weights(folder: Path) -> None:
    state = tiny_vit().state_dict()
    torch.save({"model": state, "epoch": 3, "args": {"lr": 0.1}}, folder / "x.pth")


def read_weights_file(folder: Path) -> Any:
    found = read_weights(folder / "x.pth")
    found.fit(host())
    return sorted(found.host.items()), sorted(found.grafts.items()), found.architecture, dict(found.arguments)


def write_split(folder: Path) -> None:
    make_folder(folder / "data", TREE)
    lines = [f"{path},{'train' if i % 2 else 'val'}\n" for i, path in enumerate(PATHS)]
    (folder / "split.csv").write_text("".join(["name,part\n", *lines]))


def read_divided(folder: Path) -> Any:
    return read_images(folder / "data", val_fraction=None, split_file=str(folder / "split.csv"))


def write_recipe(folder: Path) -> None:
    (folder / "x.yaml").write_text(yaml.safe_dump(recipe_to_dict(load_recipe("cpu-small"))))


def write_study_file(folder: Path) -> None:
    config = tiny(
        folder / "out", grafts=["cb_s@blocks.6-11", {"name": "x", "graft": "horizontal", "set": {"train.clip_grad": 1}}]
    )
    (folder / "study.yaml").write_text(yaml.safe_dump(config.to_dict()))


def read_config(folder: Path) -> Any:
    path = folder / "study.yaml"
    return study_from_dict(read_study_file(path), source=str(path)).to_dict()


def read_specification(folder: Path) -> Any:
    spec = parse((folder / "spec.txt").read_text(errors="surrogateescape"))
    assert parse(str(spec)) == parse(spec.to_list()) == spec
    return str(spec)


SPEC = "cb_s(init=0.5)@blocks.1-2 + horizontal@blocks.0 + vertical(reduction=2)@last:1"


@functools.cache
def host() -> torch.nn.Module:
    return tiny_vit()


def write_grafts(folder: Path) -> None:
    attngraft.graft(host(), SPEC)
    attngraft.save_grafts(host(), folder / "x.safetensors", include=["norms"])
    attngraft.ungraft(host())


def read_grafts(folder: Path) -> Any:
    before = bits(host().state_dict())
    try:
        attngraft.load_grafts(host(), folder / "x.safetensors")
        attngraft.ungraft(host())
    except attngraft.GraftFileError:
        assert bits(host().state_dict()) == before
        raise
    manifest, tensors = read_graft_file(folder / "x.safetensors")
    return manifest, sorted(tensors.items())


@functools.cache
def study() -> Path:
    """A study of two tiny runs, and an exported model."""
    folder = Path(tempfile.mkdtemp()) / "out"
    compare(tiny(folder, grafts=["cb"], seeds=1, epochs=1), tools=Tools(write_report=lambda result, out: out))
    export_run(folder / "runs" / "cb" / "seed0", folder.parent / "exported")
    return folder


def copied(name: str) -> Callable[[Path], object]:
    return lambda folder: shutil.copytree(study() / name, folder, dirs_exist_ok=True)


def read_run_folder(folder: Path) -> Any:
    record = read_run(folder)
    statistics = read_statistics(record, task_of(record))
    with open_predictions(record) as table:
        columns = {name: table[name] for name in table}
    weights = [trained_model(record, which).state_dict() for which in ("last", "best")]
    split = (folder / "split.csv").read_bytes()
    return dataclasses.replace(record, checksums=None), statistics.metrics, columns, weights, split


def read_study_folder(folder: Path) -> Any:
    if (folder / CHECKSUMS).exists() and (problems := verify(folder).problems):
        raise ConfigError("\n".join(problems))
    config = study_from_dict(read_study_file(folder / "study.yaml"), source=str(folder / "study.yaml"))
    return read_study(folder), config.to_dict()


READERS: dict[str, Reader] = {
    "predictions": Reader(
        write=write_predictions,
        read=read_predictions,
        files=["*.npz"],
        odd=odd_npz("predictions.npz"),
        strict=True,
    ),
    "npz": Reader(
        write=write_npz,
        read=lambda folder: read_images(folder / "x.npz"),
        files=["x.npz"],
        odd=odd_npz("x.npz", "x_train", "y_train", "x_val", "y_val", "f_train", "X"),
        strict=True,
    ),
    "csv": Reader(
        write=write_text("x.csv", ","),
        read=lambda folder: read_images(folder / "x.csv"),
        files=["x.csv"],
        odd=odd_text("x.csv", ","),
    ),
    "tsv": Reader(
        write=write_text("x.tsv", "\t"),
        read=lambda folder: read_images(folder / "x.tsv"),
        files=["x.tsv"],
        odd=odd_text("x.tsv", "\t"),
    ),
    "jsonl": Reader(
        write=write_json_lines,
        read=lambda folder: read_images(folder / "x.jsonl"),
        files=["x.jsonl"],
        odd=odd_json_lines,
    ),
    "parquet": Reader(
        write=write_parquet,
        read=lambda folder: read_images(folder / "x.parquet"),
        files=["x.parquet"],
        odd=odd_parquet,
    ),
    "tar": Reader(write=write_tar, read=lambda folder: read_images(folder / "x.tar"), files=["x.tar"], odd=odd_tar),
    "clouds": Reader(
        write=write_clouds,
        read=lambda folder: read_clouds(folder / "x.npz"),
        files=["x.npz"],
        odd=odd_npz("x.npz", "x_train", "y_train", "x_test", "y_test", "parts_train", "id_train", "classes"),
        strict=True,
    ),
    "cloud files": Reader(write=write_cloud_files, read=read_clouds, files=["a/*"], odd=odd_clouds),
    "coco": Reader(
        write=write_coco,
        read=lambda folder: read_images(folder / "x.json"),
        files=["x.json"],
        odd=odd_json("x.json"),
    ),
    "masks": Reader(
        write=write_masks,
        read=read_masks,
        files=["train/*.json"],
        odd=odd_json("train/_annotations.coco.json"),
    ),
    "object coco": Reader(
        write=write_object_coco,
        read=read_objects,
        files=["annotations/*.json"],
        odd=odd_json("annotations/instances_train.json"),
    ),
    "object masks": Reader(write=write_object_masks, read=read_objects, files=["masks/train/*"], odd=odd_pictures),
    "yolo": Reader(write=write_yolo, read=read_objects, files=["labels/*/*.txt"], odd=odd_words),
    "yolo names": Reader(write=write_yolo, read=read_objects, files=["data.yaml"], odd=odd_yaml("data.yaml")),
    "voc": Reader(
        write=write_voc, read=read_objects, files=["Annotations/*.xml", "ImageSets/Main/*.txt"], odd=odd_words
    ),
    "caption jsonl": Reader(
        write=write_captions("x.jsonl"),
        read=lambda folder: read_captions(folder / "x.jsonl"),
        files=["x.jsonl"],
        odd=odd_json_lines,
    ),
    "caption csv": Reader(
        write=write_captions("x.csv"),
        read=lambda folder: read_captions(folder / "x.csv"),
        files=["x.csv"],
        odd=odd_text("x.csv", ","),
    ),
    "coco captions": Reader(
        write=pictures.write_coco,
        read=read_captions,
        files=["annotations/*.json"],
        odd=odd_json("annotations/captions_train2014.json"),
    ),
    "karpathy": Reader(
        write=pictures.write_karpathy, read=read_captions, files=["*.json"], odd=odd_json("dataset_tiny.json")
    ),
    "flickr captions": Reader(write=pictures.write_flickr, read=read_captions, files=["*.txt"], odd=odd_words),
    "features": Reader(write=write_feature_file, read=read_features, files=["x.h5"], odd=odd_features),
    "split file": Reader(write=write_split, read=read_divided, files=["split.csv"], odd=odd_text("split.csv", ",")),
    "texts": Reader(write=write_texts, read=read_text_table, files=["x.csv"], odd=odd_text("x.csv", ",")),
    "pairs": Reader(write=write_aligned, read=read_pairs, files=["*.en", "*.de"], odd=odd_words),
    "tokenizer": Reader(
        write=write_tokenizer,
        read=read_pair_tokenizer,
        files=["*.json"],
        odd=odd_json("tokenizer.json", "translation.json"),
    ),
    "transformers": Reader(
        write=write_transformers,
        read=read_transformers,
        files=["*.json"],
        odd=odd_json("config.json", "preprocessor_config.json"),
    ),
    "weights": Reader(write=write_weights, read=read_weights_file, files=["x.pth"], odd=odd_weights),
    "recipe": Reader(
        write=write_recipe,
        read=lambda folder: load_recipe(folder / "x.yaml"),
        files=["x.yaml"],
        odd=odd_yaml("x.yaml"),
    ),
    "study file": Reader(write=write_study_file, read=read_config, files=["study.yaml"], odd=odd_yaml("study.yaml")),
    "specification": Reader(
        write=lambda folder: (folder / "spec.txt").write_text(str(GraftSpec(parse(SPEC).terms))),
        read=read_specification,
        files=["spec.txt"],
        odd=odd_specification,
        named=False,
    ),
    "graft file": Reader(write=write_grafts, read=read_grafts, files=["x.safetensors"], odd=odd_grafts, strict=True),
    "run": Reader(
        write=copied("runs/cb/seed0"),
        read=read_run_folder,
        files=["*.json", "*.jsonl", "*.yaml", "*.csv", "*.npz", "checkpoints/*"],
        odd=odd_run,
        strict=True,
    ),
    "study": Reader(
        write=copied("."),
        read=read_study_folder,
        files=["*.json", "*.yaml", "*.csv"],
        odd=odd_json("results.json", without=[CHECKSUMS]),
        strict=True,
    ),
    "export": Reader(
        write=copied("../exported"),
        read=lambda folder: load(folder).state_dict(),
        files=["*.json", "*.safetensors", "grafts/*"],
        odd=odd_json("attngraft.json", without=[CHECKSUMS]),
        strict=True,
    ),
}


def contents(folder: Path, patterns: Sequence[str]) -> dict[str, bytes]:
    """Return the files that are damaged."""
    found = {path for pattern in patterns for path in folder.glob(pattern)}
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in sorted(found)}


def put(folder: Path, files: Files, *, time: int) -> None:
    """Write files into a folder, with `time` as the time of modification: caches compare times, which are coarse."""
    for name, content in files.items():
        if content is None:
            (folder / name).unlink()
        else:
            (folder / name).write_bytes(content)
            os.utime(folder / name, ns=(time, time))
