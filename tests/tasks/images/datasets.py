"""Small data sets and host inputs for tests."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from torch import Tensor

from attngraft.tasks.classification import Classification
from attngraft.tasks.images.inputs import HostInput, ImageBatches
from attngraft.tasks.task import TaskData


def normalized(images: Tensor, host: Mapping[str, Any]) -> Tensor:
    """A batch's images as the model of this data configuration gets them."""
    ready: Tensor = ImageBatches(HostInput.from_model(host)).to_model({"image": images})[0][0]
    return ready


Tree = Mapping[str, Any]  #: folder -> tree, or -> how many images lie there


def picture(number: int, *, size: tuple[int, int] = (12, 12), mode: str = "RGB") -> Image.Image:
    """A picture that only this number gives."""
    pixels = np.random.RandomState(number).randint(0, 256, (size[1], size[0], 4), dtype=np.uint8)
    return Image.fromarray(pixels).convert(mode)


def make_folder(root: Path, tree: Tree, *, size: tuple[int, int] = (12, 12)) -> Path:
    """A folder of png images."""
    for number, (name, images) in enumerate(flat(tree).items()):
        (root / name).mkdir(parents=True, exist_ok=True)
        for i in range(images):
            picture(100 * number + i, size=size).save(root / name / f"{i}.png")
    return root


def make_tar(path: Path, tree: Tree, *, prefix: str = "", mode: str = "w") -> Path:
    """A tar of png images."""
    with tarfile.open(path, mode) as tar:  # type: ignore[call-overload]
        for number, (name, images) in enumerate(flat(tree).items()):
            for i in range(images):
                data = io.BytesIO()
                picture(100 * number + i).save(data, "png")
                member = tarfile.TarInfo(f"{prefix}{name}/{i}.png")
                member.size = data.tell()
                data.seek(0)
                tar.addfile(member, data)
    return path


def flat(tree: Tree, above: str = "") -> dict[str, int]:
    """`train/cat` -> how many."""
    found: dict[str, int] = {}
    for name, inside in tree.items():
        found |= flat(inside, f"{above}{name}/") if isinstance(inside, Mapping) else {f"{above}{name}": inside}
    return found


def host_config(size: int = 16, *, channels: int = 3, crop_pct: float = 0.9) -> dict[str, Any]:
    """What timm would say of a host with this input size."""
    return {
        "input_size": (channels, size, size),
        "mean": (0.5,) * channels,
        "std": (0.25,) * channels,
        "interpolation": "bicubic",
        "crop_pct": crop_pct,
        "crop_mode": "center",
    }


def make_task(source: object, *, seed: int = 0, **sections: Any) -> Classification:
    """A task on `source`; `data`, `augment`, `loss` and `metrics` add fields."""
    data = {"source": str(source), **sections.pop("data", {})}
    return Classification.from_config({"data": data, **sections}, seed=seed)


def load(source: object, *, size: int = 16, **sections: Any) -> TaskData:
    """The data of `make_task`."""
    return make_task(source, **sections).load(model_data_config=host_config(size))
