"""What an adapter of one host family offers."""

from __future__ import annotations

import inspect
import warnings
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import InitVar, dataclass, field
from importlib.metadata import PackageNotFoundError, version
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from attngraft.attention import (
    AttentionGeometry,
    GraftedModule,
    HeadRows,
    HookPoint,
    MlpGeometry,
    is_graft,
    plain_class,
)
from attngraft.errors import HostError


@dataclass(frozen=True, kw_only=True)
class Site:
    """A module that grafts can change.

    Usually one module is the target of every hook point, but a host may spread a site over several (the block puts windows
    back). A site may have tensors to record and no hook points. `carriers`, `informants` and `taps` are deprecated names of
    `targets`, `companions` and `record_tensors`.
    """

    path: str  #: the host's own path of the site (`blocks.3.attn`), whatever wraps the host
    kind: Literal["attention", "mlp"]
    geometry: AttentionGeometry | MlpGeometry
    targets: Mapping[HookPoint, str] = field(default_factory=dict)  #: hook point -> path of the module in the host
    missing: Mapping[HookPoint, str] = field(default_factory=dict)  #: hook point -> reason why the site lacks it
    #: hook point -> paths of modules that are patched too, because they hold what the target cannot see
    companions: Mapping[HookPoint, tuple[str, ...]] = field(default_factory=dict)
    record_tensors: Mapping[str, str] = field(default_factory=dict)  #: further tensor -> path of the module it is in
    #: whether the host has a kernel for more than a graft can stand in, and gives it up for one: its outputs are then what
    #: they were to rounding only, without a graft bit for bit
    rounds: bool = False
    carriers: InitVar[Mapping[HookPoint, str] | None] = None
    informants: InitVar[Mapping[HookPoint, tuple[str, ...]] | None] = None
    taps: InitVar[Mapping[str, str] | None] = None

    def __post_init__(self, carriers: Any, informants: Any, taps: Any) -> None:
        given = {"targets": carriers, "companions": informants, "record_tensors": taps}
        for name, value in given.items():
            if value is not None:
                object.__setattr__(self, name, value)


@dataclass(frozen=True, kw_only=True)
class HostFold:
    """What `HostAdapter.fold` did."""

    folded: str | None = None  #: what moved into which layers; None: nothing
    stayed: str | None = None  #: what could have moved, and why it did not
    arguments: Mapping[str, Any] = field(default_factory=dict)  #: of the factory, that make a host of what is left


class HostAdapter(ABC):
    """Knows one host family: its model classes, its sites, and the patched class of each module that carries a hook point."""

    name: ClassVar[str]
    summary: ClassVar[str]  #: one line for `attngraft list hosts`
    #: whether all of its hosts that stand in one model are one: `sites` takes the model that holds them, of whatever class
    gathers: ClassVar[bool] = False
    #: the host's own module class -> the subclass that spells its forward out
    patched: ClassVar[Mapping[type[nn.Module], type[GraftedModule]]]

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "richer" in cls.__dict__ and "patched" not in cls.__dict__:
            warnings.warn(f"{cls.__name__}.richer is deprecated; name it patched", DeprecationWarning, stacklevel=2)
            cls.patched = cls.__dict__["richer"]

    @abstractmethod
    def recognizes(self, model: nn.Module) -> bool:
        """Whether `model` itself (not something inside it) is of this family, by exact class."""

    @abstractmethod
    def sites(self, model: nn.Module) -> list[Site]:
        """All sites in the order in which the model runs them.

        Raises:
            HostError: the model is of this family, and a module in it has a form that this adapter does not know.
        """

    def canonical(self, path: str) -> str:
        """The host's own name of the module at `path`, where something (`features_only`) renamed it."""
        return path

    @abstractmethod
    def example_inputs(self, model: nn.Module, *, batch: int) -> tuple[Tensor, ...]:
        """Random inputs of the model's own size, on its device, that its forward takes."""

    @abstractmethod
    def parts(self, model: nn.Module) -> Mapping[str, tuple[str, ...]]:
        """Names of the host's parameters and buffers that a graft file can include: `head` and `norms`."""

    def forget(self, model: nn.Module) -> None:  # noqa: B027 - most hosts keep nothing
        """Drop what the host keeps from earlier calls and makes again, where it may not follow new values or a copy."""

    def fuse(self, model: nn.Module) -> str | None:
        """For inference, before the grafts are folded: put batch norms into the linear maps next to them, in place.

        Modules are replaced, so the result is none that the factory makes. What is replaced must follow from the
        structure alone: loading an exported folder does it to a fresh host, and then fills in the weights. All else that
        the adapter says (sites, geometries) must hold for the fused host too. Returns what moved; None: nothing.
        """
        return None

    def fold(self, model: nn.Module) -> HostFold:
        """For inference, after the grafts are folded: move scales of the host's own into the layers before, in place.

        What is left must be a host that the factory makes, with `HostFold.arguments`: exported folders are loaded so.
        """
        return HostFold()

    def architecture(self, model: nn.Module) -> dict[str, Any]:
        """What must be the same for a graft file to fit: the class and, per site, the widths. JSON-ready."""
        sites = []
        for site in self.sites(model):
            geometry = site.geometry
            widths: list[int] = [geometry.dim]
            if isinstance(geometry, AttentionGeometry):
                widths += [geometry.heads, geometry.key_width, geometry.value_width]
            else:
                widths += [geometry.hidden]
            sites.append([site.path, site.kind, *widths])
        return {"class": type(model).__name__, "sites": sites}


def check_known(module: nn.Module, path: str, *, arguments: Iterable[str], children: Iterable[str]) -> None:
    """Refuse a module whose host changed since its adapter was written.

    The patched class is a private copy of the host's forward, so a new argument or a new sub-module means that the copy
    may leave something out.

    Raises:
        HostError: the host's own forward takes, or `module` holds, something that the adapter does not know.
    """
    found = [name for name in inspect.signature(plain_class(module).forward).parameters if name != "self"]
    grown = [name for name, child in module.named_children() if child is not None and name != "grafts"]
    for what, names, known in (("argument", found, arguments), ("sub-module", grown, children)):
        unknown = [name for name in names if name not in set(known)]
        if unknown:
            raise HostError(
                f"{path} ({_release(plain_class(module))}) has the {what} {unknown[0]!r}, which this version of attngraft "
                "does not know; update attngraft if that release is new, else the package (pyproject.toml names the oldest)"
            )


def _release(kind: type[nn.Module]) -> str:
    """A class with the version of the package that it comes from: `Attention of timm 1.0.26`."""
    package = kind.__module__.partition(".")[0]
    try:
        return f"{kind.__name__} of {package} {version(package)}"
    except PackageNotFoundError:
        return kind.__name__


def own_parameters(module: nn.Module, *names: str) -> tuple[str, ...]:
    """Those of `names` (dotted, relative) that are parameters of `module`; a prefix stands for all below it."""
    present = [name for name, _ in module.named_parameters()]
    return tuple(name for name in present if any(name == wanted or name.startswith(f"{wanted}.") for wanted in names))


def head_rows(module: nn.Module, name: str, *, start: int, width: int, step: int) -> tuple[HeadRows, ...]:
    """`HeadRows` of the projection called `name`: all its parameters have one entry of the first axis per row."""
    sizes = {each: module.get_parameter(each)[0].numel() for each in own_parameters(module, name)}
    return (HeadRows(sizes, start, width, step),) if sizes else ()


def fused_rows(module: nn.Module, name: str, *, heads: int) -> dict[str, tuple[HeadRows, ...]]:
    """The rows of a projection that makes q of all heads, then k, then v, all of one width; and of `q_bias`, `k_bias` and
    `v_bias`, where they stand beside it."""
    total = next(module.get_parameter(each).shape[0] for each in own_parameters(module, name)) // 3
    width = total // heads
    return {
        role: head_rows(module, name, start=i * total, width=width, step=width)
        + head_rows(module, f"{role}_bias", start=0, width=width, step=width)
        for i, role in enumerate(("q", "k", "v"))
    }


def random_images(model: nn.Module, size: tuple[int, ...], *, batch: int) -> tuple[Tensor, ...]:
    """A batch of standard-normal images of shape (B, C, H, W) on the model's device and in its precision."""
    parameter = next(model.parameters())
    return (torch.randn(batch, *size, device=parameter.device, dtype=parameter.dtype),)


def own_state(module: nn.Module, *names: str) -> tuple[str, ...]:
    """As `own_parameters`, with persistent buffers (what a batch norm has seen)."""
    present = list(module.state_dict())
    return tuple(name for name in present if any(name == wanted or name.startswith(f"{wanted}.") for wanted in names))


def norm_state(model: nn.Module) -> tuple[str, ...]:
    """Names of all that normalization layers hold, whichever they are (LayerNorm, RmsNorm, BatchNorm, ...)."""
    norms = {
        path for path, module in model.named_modules() if "norm" in type(module).__name__.lower() and not is_graft(path)
    }
    return tuple(name for name in model.state_dict() if name.rpartition(".")[0] in norms)
