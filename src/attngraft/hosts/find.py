"""Find the supported host in a model, or raise an error that names the reason and the remedy."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any

import torch
from torch import fx, nn
from torch.nn.utils import parametrize

from attngraft.attention import is_graft, plain_class, with_originals
from attngraft.errors import ArgumentError, HostError
from attngraft.hosts.adapter import HostAdapter, Site
from attngraft.hosts.hosted import host_of
from attngraft.hosts.registry import host_adapters, load_for
from attngraft.hosts.unread import UNREAD, why_unread
from attngraft.suggest import quoted

_MODEL_PACKAGES = ("timm.models.", "torchvision.models.", "transformers.models.")
_WRAPPERS = {
    "OptimizedModule": "torch.compile",
    "DistributedDataParallel": "DistributedDataParallel",
    "DataParallel": "DataParallel",
    "FullyShardedDataParallel": "FSDP",
    "FSDPModule": "fully_shard",
}


@dataclass(frozen=True)
class Host:
    """A model, the supported host in it, and its adapter."""

    model: nn.Module
    core: nn.Module
    prefix: str  #: path of `core` in `model`, with a trailing dot, or empty
    adapter: HostAdapter

    @cached_property
    def sites(self) -> list[Site]:
        with with_originals(self.core):  # the adapter expects the host's own modules
            return self.adapter.sites(self.core)

    def module(self, path: str) -> nn.Module:
        """Return the module at `path` in the host."""
        return self.core.get_submodule(path)

    def architecture(self) -> dict[str, Any]:
        with with_originals(self.core):
            return self.adapter.architecture(self.core)


def find_host(model: nn.Module) -> Host:
    """Return the supported host: `model`, or a module in it (in a feature extractor or a custom wrapper).

    Raises:
        ArgumentError: `model` is not a module.
        HostError: the model is wrapped in a way that hides its classes (compiled, DDP, FSDP, ...), no adapter supports it,
            it contains several hosts, or it is a model of a known package that also contains unsupported attention.
    """
    check_module(model)
    inner, outer = host_of(model)
    if inner is not model:
        host = find_host(inner)
        return Host(model, host.core, f"{outer}{host.prefix}", host.adapter)
    _refuse_wrapped(model)
    missing = load_for(model.modules())
    adapters = list(reversed(host_adapters().values()))
    found: list[tuple[str, nn.Module, HostAdapter]] = []
    for path, module in model.named_modules():
        if any(path.startswith(f"{outer}.") or not outer for outer, _, _ in found):
            continue
        adapter = next((adapter for adapter in adapters if adapter.recognizes(module)), None)
        if adapter is not None:
            found.append((path, module, adapter))
    if not found:
        raise HostError(_unsupported(model, "and contains none", missing))
    if all(adapter.gathers for _, _, adapter in found) and len({adapter.name for _, _, adapter in found}) == 1:
        if (unread := _unread_beside(model, [path for path, _, _ in found])) is not None:
            path, other = unread
            reason = (
                f"and contains {other}, which is not supported; to graft only its torch attention, call "
                f'graft(model.get_submodule("{path}"), ...)'
            )
            raise HostError(_unsupported(model, reason, missing))
        return Host(model, model, "", found[0][2])
    if len(found) > 1:
        paths = ", ".join(path for path, _, _ in found[:5])
        raise HostError(
            f"the model contains {len(found)} hosts ({paths}); graft them one by one: graft(model.{found[0][0]}, ...)"
        )
    path, core, adapter = found[0]
    return Host(model, core, f"{path}." if path else "", adapter)


def check_module(model: Any) -> None:
    """Check that `model` is a module.

    Raises:
        ArgumentError: it is the name of a model, or another object.
    """
    if isinstance(model, str):
        name = quoted(model)
        raise ArgumentError(
            f"argument 'model' must be a model (torch.nn.Module), not the name {name}; create the model first: model = "
            f"attngraft.create_model({name})"
        )
    if not isinstance(model, nn.Module):
        what = f"the class {model.__name__}; pass an instance" if isinstance(model, type) else type(model).__name__
        raise ArgumentError(f"argument 'model' must be a model (torch.nn.Module), not {what}")


def forget(model: nn.Module) -> None:
    """Clear the caches of the host in `model`; call it before copying the model and after changing its values."""
    try:
        host = find_host(model)
    except HostError:
        return
    host.adapter.forget(host.core)


def _refuse_wrapped(model: nn.Module) -> None:
    for path, module in model.named_modules():
        wrapper = _wrapper(type(module))  # type: ignore[arg-type]  # classes are hashable
        if parametrize.is_parametrized(module):
            wrapper = "torch.nn.utils.parametrize"
        if wrapper:
            where = f" at {path}" if path else ""
            other = "; module.compile() compiles without wrapping" if wrapper == "torch.compile" else ""
            raise HostError(
                f"the model is already wrapped{where} ({wrapper}); graft the plain model first, then wrap it{other}"
            )


@cache
def _wrapper(kind: type[nn.Module]) -> str | None:
    """Return the name of the function whose results have the class `kind`; None: not a wrapper."""
    if issubclass(kind, torch.jit.ScriptModule):
        return "torch.jit"
    bases = [base.__name__ for base in kind.__mro__]
    return next((what for name, what in _WRAPPERS.items() if name in bases), None)


def _unsupported(model: nn.Module, why: str, missing: Mapping[str, str]) -> str:
    """Return the error message for a model without an adapter: the reason and the remedy."""
    if type(model).__module__.startswith("timm.models._features") or isinstance(model, fx.GraphModule):
        return (
            f"{type(model).__name__} extracts features of a model and does not contain it as a whole; create that model "
            "without features_only and graft it first, then call timm.models.create_feature_extractor(model, nodes)"
        )
    unread = why_unread(model)
    sentences = (
        f"{type(model).__name__} is not a supported host, {why}.",
        f"Its attention is not supported: {unread}." if unread else "",
        "For your own model, write an adapter and call attngraft.register_host(adapter).",
        "attngraft list hosts shows what is supported; attngraft compare --against HOST compares any host without a graft.",
        describe_missing(missing),
    )
    return " ".join(sentence for sentence in sentences if sentence)


def describe_missing(missing: Mapping[str, str]) -> str:
    """Return one sentence per reason, which lists the adapters that cannot be imported."""
    names: dict[str, list[str]] = {}
    for name, why in missing.items():
        names.setdefault(why, []).append(name)
    return " ".join(f"{', '.join(each)} {why}." for why, each in names.items())


def _unread_beside(model: nn.Module, hosts: list[str]) -> tuple[str, str] | None:
    """Find unsupported attention in a packaged model around one of `hosts`.

    A model is packaged if its class or a base class is timm's, torchvision's or transformers'. Modules outside of packaged
    models are ignored. Returns the path of the first such host and the class and path of the attention; None: not found.
    """
    for path in hosts:
        parts = path.split(".") if path else []
        ancestors = (".".join(parts[:i]) for i in range(len(parts)))
        outer = next((each for each in ancestors if _is_packaged(model.get_submodule(each))), None)
        if outer is None:
            continue
        read = [each[len(outer) :].strip(".") for each in hosts if not outer or each.startswith(f"{outer}.")]
        for inner, module in model.get_submodule(outer).named_modules():
            if not inner or is_graft(inner) or any(_within(inner, each) or _within(each, inner) for each in read):
                continue
            kind = plain_class(module)
            name = kind.__qualname__
            if "attention" in name.lower() or "attn" in name.lower() or f"{kind.__module__}.{name}" in UNREAD:
                return path, f"{name} at {f'{outer}.{inner}' if outer else inner}"
    return None


def _is_packaged(module: nn.Module) -> bool:
    return any(base.__module__.startswith(_MODEL_PACKAGES) for base in type(module).__mro__)


def _within(path: str, outer: str) -> bool:
    return path == outer or path.startswith(f"{outer}.")
