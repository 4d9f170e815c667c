"""`Graft`, a small module at one hook point of one site, and `GraftType`, the registered kind of graft."""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Generic, Literal, TypeVar, get_args

from torch import Tensor, nn

from attngraft._moved import renamed
from attngraft.attention.geometry import Geometry
from attngraft.attention.hook_points import HookPoint
from attngraft.attention.recorder import Recordable

#: geometry fields that some hosts determine only in the forward pass
Circumstance = Literal["causal", "padded", "cross"]
CIRCUMSTANCES: tuple[Circumstance, ...] = get_args(Circumstance)
LinearLayer = nn.Linear | nn.Conv2d  #: a linear map of each token: convolutions have kernel size 1 and one group


@dataclass(frozen=True)
class Unused:
    """Parameters of the host that a graft makes unused. Names are relative to the site's module.

    Entirely unused `parameters` get `requires_grad=False` until the graft is removed. Unused parts of other parameters are
    listed in `rows` as (name, start, stop) along the first axis and in `columns` along the last axis: their gradient is
    zero, and `attngraft.pin_unused` protects them from weight decay.
    """

    parameters: tuple[str, ...] = ()
    rows: tuple[tuple[str, int, int], ...] = ()
    columns: tuple[tuple[str, int, int], ...] = ()

    def __bool__(self) -> bool:
        return bool(self.parameters or self.rows or self.columns)

    def parts(self, module: nn.Module) -> list[tuple[nn.Parameter, Tensor]]:
        """Return (parameter, view of an unused part) for every entry of `rows` and `columns`."""
        found = []
        for spans, axis in ((self.rows, 0), (self.columns, -1)):
            for name, start, stop in spans:
                parameter = module.get_parameter(name)
                found.append((parameter, parameter.detach().narrow(axis, start, stop - start)))
        return found


class Graft(Recordable, nn.Module):
    """A mechanism at one hook point of one site; subclasses implement `forward`.

    | hook point | forward | x is |
    |---|---|---|
    | mix | `(context)` -> `Mixed`; context is a `MixContext` | |
    | weights | `(weights, visible)` -> weights; (B, H, Nq, Nk); `visible` is boolean and broadcastable to them, or None if \
all keys are visible; with n maps per head, each map averages its own 1/n of the head's channels | |
    | heads | `(heads, x)` -> heads; (B, H, Nq, dv) | the query side's tokens (B, Nq, C) |
    | tokens | `(tokens, x)` -> tokens; (B, Nq, C) | the query side's tokens (B, Nq, C) |
    | space | `(map)` -> map; (B, rows, columns, C) | |
    | attn.end, attn.window, mlp.* | `(tokens)` -> tokens; (B, N, C) or (B, H, W, C) | |

    The installer sets `hook_point`, `kind` (the graft's registered name), `options` (as plain values), `refuses`, `unused`
    and `frozen`.
    """

    hook_point: HookPoint
    kind: str
    options: dict[str, Any]
    unused: Unused
    frozen: tuple[str, ...]  #: parameters of the module that the graft froze; removing the graft unfreezes them
    adds_after: bool = False  #: whether a mix graft returns `Mixed.after`, which adds to the host's projected output
    #: circumstance that only the forward pass of some hosts determines -> why the graft type does not support it
    refuses: Mapping[Circumstance, str] = MappingProxyType({})
    folded: str | None = None  #: part that was folded into the host's weights; such a graft cannot be removed
    stage = renamed("stage", "hook_point")

    def fold(self, *, before: LinearLayer | None, after: LinearLayer | None) -> Graft | str | None:
        """Fold this graft into the host's adjacent linear layers for inference, exactly up to rounding.

        Args:
            before: the layer whose output is this graft's input, with only (inactive) dropout between them; None if there is
                no such layer.
            after: the layer whose input is this graft's output.

        Returns:
            The graft that replaces this one, with its own `kind` and `options` set and the layers changed; None if the
            layers now do all of its work; or the reason why this graft cannot be folded, with the layers unchanged.
        """
        return "no part of it can be folded into a linear layer"


@dataclass(frozen=True)
class NoOptions:
    """Options of a graft type without options."""


OptionsT = TypeVar("OptionsT")


class GraftType(ABC, Generic[OptionsT]):
    """A registered kind of graft: its options and hook points, how it is built, and which sites it does not support.

    Subclass it, set `name`, `summary`, `source` and `Options` (a frozen dataclass of plain values with defaults; its
    `__post_init__` raises ValueError for invalid values), and register an instance.
    """

    name: str
    summary: str  #: one line for `attngraft list grafts`
    source: str  #: paper and equation or table
    Options: type = NoOptions

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "stages" in cls.__dict__ and "hook_points" not in cls.__dict__:
            warnings.warn(f"{cls.__name__}.stages is deprecated; name it hook_points", DeprecationWarning, stacklevel=2)
            cls.hook_points = cls.stages  # type: ignore[attr-defined, method-assign]

    @abstractmethod
    def hook_points(self, options: OptionsT) -> tuple[HookPoint, ...]:
        """Return the hook points that a graft with these options changes."""

    @abstractmethod
    def build(self, geometry: Geometry, hook_point: HookPoint, options: OptionsT) -> Graft:
        """Build the module for one site, with initial values from torch's global generator."""

    def refusal(self, geometry: Geometry, hook_point: HookPoint, options: OptionsT) -> str | None:
        """Return why this site does not support the graft, as a sentence with a remedy; None if it does."""
        return None

    def starts_as_identity(self, options: OptionsT) -> bool:
        """Return whether a new graft leaves the host's outputs unchanged."""
        return False

    def unused(self, geometry: Geometry, hook_point: HookPoint, options: OptionsT) -> Unused:
        """Return the parameters of the host that the graft makes unused."""
        return Unused()

    def notes(self, geometry: Geometry, hook_point: HookPoint, options: OptionsT) -> tuple[str, ...]:
        """Return notes for `plan`, such as the paper's own parameter count where it differs."""
        return ()

    def inert_parameters(self, geometry: Geometry, hook_point: HookPoint, options: OptionsT) -> frozenset[str]:
        """Return the names of added parameters whose gradient is always zero, such as HV's score bias; used by tests."""
        return frozenset()
