"""Base class of host adapters, the `Site` dataclass, and helpers for reading a host's modules."""

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
    """A module of the host that grafts can change.

    Usually one module is the target of every hook point, but a site may be spread over several modules (in Swin, the
    block merges the windows of its attention). A site without hook points may still have tensors to record. `carriers`,
    `informants` and `taps` are deprecated names of `targets`, `companions` and `record_tensors`.
    """

    path: str  #: canonical path of the site in the host (`blocks.3.attn`), independent of wrappers
    kind: Literal["attention", "mlp"]
    geometry: AttentionGeometry | MlpGeometry
    targets: Mapping[HookPoint, str] = field(default_factory=dict)  #: hook point -> path of the module in the host
    missing: Mapping[HookPoint, str] = field(default_factory=dict)  #: hook point -> reason why the site lacks it
    #: hook point -> paths of further modules to patch, which have inputs that the target does not receive (masks)
    companions: Mapping[HookPoint, tuple[str, ...]] = field(default_factory=dict)
    record_tensors: Mapping[str, str] = field(default_factory=dict)  #: name of a further tensor -> path of its module
    #: whether a graft disables a fused kernel of the host: outputs of an identity graft then match the host's only up to
    #: rounding; without a graft they match bit for bit
    rounds: bool = False
    carriers: InitVar[Mapping[HookPoint, str] | None] = None
    informants: InitVar[Mapping[HookPoint, tuple[str, ...]] | None] = None
    taps: InitVar[Mapping[str, str] | None] = None

    def __post_init__(self, carriers: Any, informants: Any, taps: Any) -> None:
        deprecated = {"targets": carriers, "companions": informants, "record_tensors": taps}
        for name, value in deprecated.items():
            if value is not None:
                object.__setattr__(self, name, value)


@dataclass(frozen=True, kw_only=True)
class HostFold:
    """Result of `HostAdapter.fold`."""

    folded: str | None = None  #: the folded parts and the layers that contain them now; None: nothing was folded
    stayed: str | None = None  #: the parts that could not be folded, and why
    arguments: Mapping[str, Any] = field(default_factory=dict)  #: factory arguments that create the folded host


class HostAdapter(ABC):
    """Adapter of one model family: model classes, sites, and patched classes."""

    name: ClassVar[str]
    summary: ClassVar[str]  #: one line for `attngraft list hosts`
    #: whether a model that contains several hosts of this adapter counts as one host; `sites` then receives that model
    gathers: ClassVar[bool] = False
    head_names: ClassVar[tuple[str, ...]] = ("head",)  #: names of the models' head modules, for `parts`
    #: arguments of the host's factory with which it takes images of any size; None: the size is fixed at creation
    any_size: ClassVar[Mapping[str, Any] | None] = None
    #: the host's module class -> the subclass that implements its forward with hook points
    patched: ClassVar[Mapping[type[nn.Module], type[GraftedModule]]]

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "richer" in cls.__dict__ and "patched" not in cls.__dict__:
            warnings.warn(f"{cls.__name__}.richer is deprecated; name it patched", DeprecationWarning, stacklevel=2)
            cls.patched = cls.__dict__["richer"]

    @abstractmethod
    def recognizes(self, model: nn.Module) -> bool:
        """Return whether `model` itself (not a module in it) belongs to this family, by exact class."""

    @abstractmethod
    def sites(self, model: nn.Module) -> list[Site]:
        """Return all sites in forward order.

        Raises:
            HostError: a module of the model has a form that this adapter does not support.
        """

    def canonical(self, path: str) -> str:
        """Return the original path of the module at `path`, if a wrapper (`features_only`) renamed it."""
        return path

    @abstractmethod
    def example_inputs(self, model: nn.Module, *, batch: int) -> tuple[Tensor, ...]:
        """Return random inputs for the model's forward, at its configured size and on its device."""

    def parts(self, model: nn.Module) -> Mapping[str, tuple[str, ...]]:
        """Return the names of host parameters and buffers that a graft file can include: `head` and `norms`."""
        return {"head": own_state(model, *self.head_names), "norms": norm_state(model)}

    def forget(self, model: nn.Module) -> None:  # noqa: B027 - most hosts cache nothing
        """Clear host caches that may be stale after the host's values change or the host is copied."""

    def fuse(self, model: nn.Module) -> str | None:
        """Fuse batch norms into adjacent linear layers in place, for inference, before grafts are folded.

        Modules are replaced, so the factory cannot create the result. Replacements must depend on the structure alone:
        loading an exported folder repeats them on a fresh host and then loads the weights. Sites and geometries must remain
        valid for the fused host. Returns a description of the fused modules, or None.
        """
        return None

    def fold(self, model: nn.Module) -> HostFold:
        """Fold the host's scales into preceding layers in place, for inference, after grafts are folded.

        The factory must be able to create the result with `HostFold.arguments`: exported folders are loaded that way.
        """
        return HostFold()

    def architecture(self, model: nn.Module) -> dict[str, Any]:
        """Return what a graft file must match, as JSON values: the model class, and the widths of each site."""
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
    """Refuse a module whose host class changed since its adapter was written.

    A patched class contains a copy of the host's forward, which may ignore a new argument or a new sub-module.

    Raises:
        HostError: the forward has an argument not in `arguments`, or `module` has a child not in `children`.
    """
    kind = plain_class(module)
    parameters = [name for name in inspect.signature(kind.forward).parameters if name != "self"]
    present = [name for name, child in module.named_children() if child is not None and name != "grafts"]
    for what, names, known in (("argument", parameters, arguments), ("sub-module", present, children)):
        unknown = [name for name in names if name not in set(known)]
        if not unknown:
            continue
        package = kind.__module__.partition(".")[0]
        try:
            release = f"{kind.__name__} of {package} {version(package)}"
        except PackageNotFoundError:
            release = kind.__name__
        raise HostError(
            f"{path} ({release}) has an unknown {what} {unknown[0]!r}; update attngraft, or the package if its "
            "release is older than those supported in pyproject.toml"
        )


def own_parameters(module: nn.Module, *names: str) -> tuple[str, ...]:
    """Return the names of the parameters of `module` at or below `names` (dotted paths in `module`)."""
    return _selected([name for name, _ in module.named_parameters()], names)


def own_state(module: nn.Module, *names: str) -> tuple[str, ...]:
    """Return the names of the parameters and persistent buffers of `module` at or below `names`."""
    return _selected(module.state_dict(), names)


def _selected(present: Iterable[str], prefixes: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(
        name for name in present if any(name == prefix or name.startswith(f"{prefix}.") for prefix in prefixes)
    )


def norm_state(model: nn.Module) -> tuple[str, ...]:
    """Return the names of parameters and buffers of all normalization layers (LayerNorm, BatchNorm, ...)."""
    norms = {
        path for path, module in model.named_modules() if "norm" in type(module).__name__.lower() and not is_graft(path)
    }
    return tuple(name for name in model.state_dict() if name.rpartition(".")[0] in norms)


def head_rows(module: nn.Module, name: str, *, start: int, width: int, step: int) -> tuple[HeadRows, ...]:
    """Return the `HeadRows` of the projection `name`, whose first parameter has its rows on the first axis.

    Other parameters have such rows too if they are as long (those of LoRA's second factor, but not of its first).
    """
    parameters = {each: module.get_parameter(each) for each in own_parameters(module, name)}
    rows = {each: len(parameter) for each, parameter in parameters.items() if parameter.ndim}
    sizes = {each: parameters[each][0].numel() for each in rows if rows[each] == next(iter(rows.values()))}
    return (HeadRows(sizes, start, width, step),) if sizes else ()


def fused_rows(module: nn.Module, name: str, *, heads: int) -> dict[str, tuple[HeadRows, ...]]:
    """Return the rows of a fused projection: q of all heads, then k, then v, all of the same width.

    Separate parameters `q_bias`, `k_bias` and `v_bias` are included if the module has them.

    Raises:
        HostError: the projection has no parameters.
    """
    names = own_parameters(module, name)
    if not names:
        raise HostError(
            f"{name} of {type(module).__name__} has no parameters, as after quantization; graft first, then quantize"
        )
    total = module.get_parameter(names[0]).shape[0] // 3
    width = total // heads
    return {
        role: head_rows(module, name, start=i * total, width=width, step=width)
        + head_rows(module, f"{role}_bias", start=0, width=width, step=width)
        for i, role in enumerate(("q", "k", "v"))
    }


def random_images(model: nn.Module, size: tuple[int, ...], *, batch: int) -> tuple[Tensor, ...]:
    """Return standard-normal images (B, C, H, W) on the model's device and in its dtype."""
    parameter = next(model.parameters())
    return (torch.randn(batch, *size, device=parameter.device, dtype=parameter.dtype),)
