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

    adapters: Mapping[str, str]  #: name -> its module in `attngraft`, which registers it
    extra: str | None = None  #: extra of attngraft that installs the package; None: installed with attngraft
    always: bool = True  #: False: import the adapters only once such a model is seen, or when hosts are listed


def _same(folder: str, *names: str) -> dict[str, str]:
    """Adapters that are called as their modules are."""
    return {f"{folder}.{name}": f"hosts.{folder}.{name}" for name in names}


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
    ),
    "attngraft.models": Package(
        {
            "t2t_vit": "models.t2t_vit_host",
            "bixt": "models.bixt.host",
            "elsa.swin": "models.elsa.host",
            "elsa.volo": "models.elsa.host",
        },
        always=False,
    ),
    "torch": Package({"torch.nn": "hosts.torch_nn.family"}),
    "torchvision": Package(_same("torchvision", "vit", "swin")),
    "transformers": Package(
        _same(
            "hf",
            *("vit", "dinov2", "dinov3", "clip", "swin", "marian", "t5"),
            *("bert", "roberta", "electra", "distilbert", "modernbert"),
        ),
        extra="hf",
        always=False,
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
            importlib.import_module(f"attngraft.{module}")
        except (ImportError, AttributeError, TypeError) as error:  # modules, classes and bases change with the release
            missing[name] = (
                f"cannot read the models of {package} {version(package)} ({error}): pip install -U attngraft {package}"
            )
    return missing


def load_needed() -> None:
    """Register the adapters for the packages that come with attngraft."""
    for package, wanted in PACKAGES.items():
        if wanted.always:
            load(package)


def load_met(modules: Iterable[nn.Module]) -> dict[str, str]:
    """As `load`, for the packages that a class of these modules, or one it comes from, belongs to; `load_needed` too."""
    load_needed()
    kinds = {base for kind in {type(module) for module in modules} for base in kind.__mro__}
    modules_of = {f"{kind.__module__}." for kind in kinds}
    met = [package for package in PACKAGES if any(module.startswith(f"{package}.") for module in modules_of)]
    return {name: why for package in met for name, why in load(package).items()}


def load_all() -> dict[str, str]:
    """As `load`, for every package."""
    return {name: why for package in PACKAGES for name, why in load(package).items()}


def in_words(missing: Mapping[str, str]) -> str:
    """Adapters that cannot be had, each reason once."""
    names: dict[str, list[str]] = {}
    for name, why in missing.items():
        names.setdefault(why, []).append(name)
    return " ".join(f"{', '.join(each)} {why}." for why, each in names.items())
