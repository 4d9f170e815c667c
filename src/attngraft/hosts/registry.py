"""Registry of host adapters, and import of the adapters for a package when needed."""

import importlib
import importlib.util
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.metadata import version
from types import ModuleType

from torch import nn

from attngraft.attention import GraftedModule
from attngraft.errors import check_types
from attngraft.hosts.adapter import HostAdapter
from attngraft.plugins import register_declared


@dataclass(frozen=True)
class Package:
    """Adapters for the models of a package."""

    adapters: Mapping[str, str]  #: adapter name -> module in `attngraft` that defines it
    extra: str | None = None  #: extra of attngraft that installs the package; None: installed with attngraft
    always: bool = True  #: False: import the adapters only for a model of the package, or to list hosts


def _adapters_in(folder: str, *names: str, table: Iterable[str] = ()) -> dict[str, str]:
    """Map each adapter `<folder>.<name>` to the module `<name>`, or `families` if `table` has the name."""
    rows = set(table)
    return {f"{folder}.{name}": f"hosts.{folder}.{'families' if name in rows else name}" for name in names}


OWN_MODELS = "attngraft.models"

#: package name -> its adapters; list new families here. Adapters listed later take precedence
PACKAGES: Mapping[str, Package] = {
    "timm": Package(
        _adapters_in(
            "timm",
            *("vit", "swin", "levit", "pit", "eva", "relpos", "mixer", "maxxvit", "crossvit", "cait", "volo", "twins"),
            *("pvt_v2", "nest", "davit", "gcvit", "tiny_vit", "qwen3", "deepseek", "naflex", "sam", "tnt", "visformer"),
            *("metaformer", "mobilevit", "convit", "fastvit", "gemma4", "xcit", "hiera", "mvitv2", "coat", "hieradet"),
            *("nextvit", "efficientformer", "csatv2"),
            table=("pit", "eva", "mixer", "qwen3", "deepseek", "metaformer", "mobilevit", "xcit", "coat", "csatv2"),
        )
    ),
    OWN_MODELS: Package(
        {
            "t2t_vit": "models.t2t_vit_host",
            "bixt": "models.bixt.host",
            "elsa.swin": "models.elsa.host",
            "elsa.volo": "models.elsa.host",
            "translation": "models.translation.host",
            "captioning": "models.captioning.host",
            "points": "models.points.host",
        },
        always=False,
    ),
    "torch": Package({"torch.nn": "hosts.torch_nn.layers"}),
    "torchvision": Package(_adapters_in("torchvision", "vit", "swin")),
    "transformers": Package(
        {"hf.vision_encoder_decoder": "hosts.hf.vision_encoder_decoder"}
        | dict.fromkeys(
            (
                *("hf.vit", "hf.dinov2", "hf.dinov3", "hf.clip", "hf.swin", "hf.marian", "hf.m2m_100", "hf.t5"),
                *("hf.bert", "hf.roberta", "hf.electra", "hf.distilbert", "hf.modernbert", "hf.gpt2"),
            ),
            "hosts.hf.families",
        ),
        extra="hf",
        always=False,
    ),
}

_adapters: dict[str, HostAdapter] = {}


def register_host(adapter: HostAdapter) -> HostAdapter:
    """Register `adapter`.

    Adapters registered later take precedence, so they can support models that built-in adapters refuse.

    Raises:
        ValueError: another adapter has this name.
    """
    check_types(adapter=(adapter, HostAdapter))
    if adapter.name in _adapters and type(_adapters[adapter.name]) is not type(adapter):
        raise ValueError(f"a host adapter named {adapter.name!r} is already registered")
    _adapters[adapter.name] = adapter
    return adapter


@cache
def load(package: str) -> Mapping[str, str]:
    """Register the adapters for `package`; return the reason for each adapter that cannot be imported."""
    wanted = PACKAGES[package]
    if importlib.util.find_spec(package) is None:
        remedy = f"attngraft[{wanted.extra}]" if wanted.extra else package
        return dict.fromkeys(wanted.adapters, f"requires {package}; run pip install '{remedy}'")
    missing = {}
    for name, path in wanted.adapters.items():
        try:
            register_host(_adapter_in(importlib.import_module(f"attngraft.{path}"), name))
        except (ImportError, AttributeError, TypeError) as error:  # modules, classes and bases change between releases
            release = version(package.partition(".")[0])
            missing[name] = (
                f"cannot read the models of {package} {release} ({error}): pip install -U attngraft {package}"
            )
    return missing


def _adapter_in(module: ModuleType, name: str) -> HostAdapter:
    """Create the adapter called `name`: a class of `module`, or a row of its table."""
    for value in vars(module).values():
        if isinstance(value, type) and issubclass(value, HostAdapter) and getattr(value, "name", None) == name:
            return value()
    adapter: HostAdapter = module.FAMILIES[name].adapter
    return adapter


def load_for(modules: Iterable[nn.Module]) -> dict[str, str]:
    """Load packages that define classes or base classes of `modules`, and packages always loaded.

    Returns the reason for each adapter of these classes' packages that cannot be imported.
    """
    host_adapters()
    bases = {base for kind in {type(module) for module in modules} for base in kind.__mro__}
    origins = {f"{base.__module__}." for base in bases}
    packages = [package for package in PACKAGES if any(origin.startswith(f"{package}.") for origin in origins)]
    return {name: why for package in packages for name, why in load(package).items()}


def host_adapters() -> dict[str, HostAdapter]:
    """Return all registered adapters by name, built-in adapters first; does not load optional packages."""
    for package, wanted in PACKAGES.items():
        if wanted.always:
            load(package)
    _load_plugins()
    return {name: _adapters[name] for name in sorted(_adapters, key=lambda name: package_of_host(name) != "attngraft")}


@cache
def _load_plugins() -> dict[str, str]:
    """Register the adapters of installed packages; return their names with the packages."""

    def register(adapter: HostAdapter) -> HostAdapter:
        if any(adapter.name in package.adapters for package in PACKAGES.values()):  # some are not imported yet
            raise ValueError(f"attngraft has a host adapter named {adapter.name!r}; choose another name")
        return register_host(adapter)

    return register_declared("hosts", HostAdapter, register)


def package_of_host(name: str) -> str:
    """Return the name of the package that the adapter called `name` comes from."""
    return _load_plugins().get(name) or type(_adapters[name]).__module__.partition(".")[0]


def missing_hosts() -> dict[str, str]:
    """Load all packages; return the reason for each adapter that cannot be imported."""
    return {name: why for package in PACKAGES for name, why in load(package).items()}


def patched_class(module: nn.Module, adapter: HostAdapter | None = None) -> type[GraftedModule] | None:
    """Return the patched class for `module`'s exact class, or None; classes of `adapter` take precedence."""
    load_for([module])
    for each in (*(() if adapter is None else (adapter,)), *host_adapters().values()):
        if type(module) in each.patched:
            return each.patched[type(module)]
    return None
