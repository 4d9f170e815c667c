"""The packages whose models attngraft reads, and their adapters: imported one by one, and named where one cannot be."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.metadata import version

from torch import nn


@dataclass(frozen=True)
class Package:
    """The adapters for one package's models."""

    adapters: Mapping[str, str]  #: name -> its module in `attngraft.hosts`, which registers it
    #: of attngraft, which installs the package: its adapters are imported where such a model is met or hosts are listed.
    #: None: it comes with attngraft
    extra: str | None = None


def _same(folder: str, *names: str) -> dict[str, str]:
    """Adapters that are called as their modules are."""
    return {f"{folder}.{name}": f"{folder}.{name}" for name in names}


#: by name of the package; a new family adds its name here. Later ones are asked first
PACKAGES: Mapping[str, Package] = {
    "timm": Package(
        _same(
            "timm",
            *("vit", "swin", "levit", "pit", "eva", "relpos", "mixer", "maxxvit", "crossvit", "cait", "volo", "twins"),
            *("pvt_v2", "nest", "davit", "gcvit", "tiny_vit", "qwen3", "deepseek", "naflex", "sam", "tnt", "visformer"),
            *("metaformer", "mobilevit", "convit", "fastvit", "gemma4", "xcit", "hiera", "mvitv2", "coat", "hieradet"),
            *("nextvit", "efficientformer", "csatv2"),
        )
        | {"t2t_vit": "timm.t2t_vit", "bixt": "timm.bixt", "elsa.swin": "timm.elsa", "elsa.volo": "timm.elsa"}
    ),
    "torch": Package({"torch.nn": "torch_nn.family"}),
    "torchvision": Package(_same("torchvision", "vit", "swin")),
    "transformers": Package(
        _same(
            "hf",
            *("vit", "dinov2", "dinov3", "clip", "swin", "marian", "t5"),
            *("bert", "roberta", "electra", "distilbert", "modernbert"),
        ),
        extra="hf",
    ),
}


@cache
def load(package: str) -> Mapping[str, str]:
    """Register the adapters for `package`; returns those that cannot be had, with the reason."""
    wanted, missing = PACKAGES[package], {}
    if importlib.util.find_spec(package) is None:
        remedy = f"attngraft[{wanted.extra}]" if wanted.extra else package
        return dict.fromkeys(wanted.adapters, f"needs {package}: pip install '{remedy}'")
    for name, module in wanted.adapters.items():
        try:
            importlib.import_module(f"attngraft.hosts.{module}")
        except (ImportError, AttributeError, TypeError) as error:  # modules, classes and bases change with the release
            missing[name] = (
                f"cannot read the models of {package} {version(package)} ({error}): pip install -U attngraft {package}"
            )
    return missing


def load_needed() -> None:
    """Register the adapters for the packages that come with attngraft."""
    for package, wanted in PACKAGES.items():
        if wanted.extra is None:
            load(package)


def load_met(modules: Iterable[nn.Module]) -> dict[str, str]:
    """As `load`, for the packages that a class of these modules, or one it comes from, belongs to; `load_needed` too."""
    load_needed()
    kinds = {base for kind in {type(module) for module in modules} for base in kind.__mro__}
    homes = {kind.__module__.partition(".")[0] for kind in kinds}
    return {name: why for package in PACKAGES if package in homes for name, why in load(package).items()}


def load_all() -> dict[str, str]:
    """As `load`, for every package."""
    return {name: why for package in PACKAGES for name, why in load(package).items()}


def in_words(missing: Mapping[str, str]) -> str:
    """Adapters that cannot be had, each reason once."""
    names: dict[str, list[str]] = {}
    for name, why in missing.items():
        names.setdefault(why, []).append(name)
    return " ".join(f"{', '.join(each)} {why}." for why, each in names.items())
