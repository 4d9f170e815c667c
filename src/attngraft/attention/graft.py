"""What a graft is: a small module at one hook point of one site, and the type that a graft's name stands for."""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, ClassVar, Generic, Literal, TypeVar, get_args

from torch import Tensor, nn

from attngraft.attention.geometry import Geometry
from attngraft.attention.hook_points import HookPoint
from attngraft.attention.recorder import Recordable

Circumstance = Literal["causal", "padded", "cross"]  #: fields of a geometry that some hosts learn only when called
CIRCUMSTANCES: tuple[Circumstance, ...] = get_args(Circumstance)
LinearLayer = nn.Linear | nn.Conv2d  #: one matrix for every token: a convolution has a kernel of 1 and one group


@dataclass(frozen=True)
class Unused:
    """What a graft leaves of the host without use. Names are relative to the site's module.

    Whole `parameters` get `requires_grad=False` until undo. Of partly used ones `rows` gives (name, start, stop) along the
    first axis and `columns` along the last: their gradient is zero, and `attngraft.pin_unused` keeps weight decay from
    moving them.
    """

    parameters: tuple[str, ...] = ()
    rows: tuple[tuple[str, int, int], ...] = ()
    columns: tuple[tuple[str, int, int], ...] = ()

    def __bool__(self) -> bool:
        return bool(self.parameters or self.rows or self.columns)

    def parts(self, module: nn.Module) -> list[tuple[nn.Parameter, Tensor]]:
        """(parameter, the unused part of its values) for every partly used one; the part shares the parameter's storage."""
        found = []
        for spans, axis in ((self.rows, 0), (self.columns, -1)):
            for name, start, stop in spans:
                parameter = module.get_parameter(name)
                found.append((parameter, parameter.detach().narrow(axis, start, stop - start)))
        return found


class Graft(Recordable, nn.Module):
    """A mechanism standing at one hook point of one site; subclasses give `forward`.

    | hook point | forward | x is |
    |---|---|---|
    | mix | `(context)` -> `Mixed`; context is a `MixContext` | |
    | weights | `(weights, visible)` -> weights; (B, H, Nq, Nk), `visible` boolean, broadcastable to it, or None for all; \
several maps for each head share its values | |
    | heads | `(heads, x)` -> heads; (B, H, Nq, dv) | the query side's tokens (B, Nq, C) |
    | tokens | `(tokens, x)` -> tokens; (B, Nq, C) | the query side's tokens (B, Nq, C) |
    | space | `(map)` -> map; (B, rows, columns, C) | |
    | attn.end, attn.window, mlp.* | `(tokens)` -> tokens; (B, N, C) or (B, H, W, C) | |

    The installer fills in `hook_point`, `kind` (the graft's registered name), `options` (as plain values), `refuses`, `unused`
    and `frozen`.
    """

    hook_point: HookPoint
    kind: str
    options: dict[str, Any]
    unused: Unused
    frozen: tuple[str, ...]  #: parameters of the module that it froze, to be unfrozen on undo
    adds_after: bool = False  #: of a mix graft: `Mixed.after` is given: more leaves than the host's projection makes
    #: why it could not stand where tokens must not see later ones, where batches hold padding, where keys are of other
    #: tokens than queries, as its type says; asked by hosts that learn of these only when they are called
    refuses: Mapping[Circumstance, str] = MappingProxyType({})
    folded: str | None = None  #: what of it stands in the host's weights; then it cannot be taken out again

    def fold(self, *, before: LinearLayer | None, after: LinearLayer | None) -> Graft | str | None:
        """For inference: move what is exact to rounding into the host's linear layers next to this graft.

        Args:
            before: the layer whose output is this graft's input, with nothing but (idle) dropout between; None if there
                is no such layer.
            after: the layer whose input is this graft's output.

        Returns:
            The graft that stays in this one's place, with its own `kind` and `options` set and the layers changed; None if
            nothing of it needs to stay; or the reason why all of it does, with the layers as they were.
        """
        return "it holds nothing that a linear layer could take over"


@dataclass(frozen=True)
class NoOptions:
    """For grafts that have nothing to choose."""


OptionsT = TypeVar("OptionsT")


class GraftType(ABC, Generic[OptionsT]):
    """What a graft's name stands for: its options, the hook points at which it stands, how it is built, what it refuses.

    Subclass it, give `name`, `summary`, `source` and `Options` (a frozen dataclass of plain values with defaults; its
    `__post_init__` raises ValueError for values that make no sense), and register an instance.
    """

    name: ClassVar[str]
    summary: ClassVar[str]  #: one line for `attngraft list grafts`
    source: ClassVar[str]  #: paper and equation or table
    Options: ClassVar[type] = NoOptions

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
        """A fresh module for one site; draws its initial values from torch's global generator."""

    def refusal(self, geometry: Geometry, hook_point: HookPoint, options: OptionsT) -> str | None:
        """Why this site cannot take it, as a sentence with a remedy; None if it can."""
        return None

    def starts_as_identity(self, options: OptionsT) -> bool:
        """Whether a fresh graft leaves the host's outputs as they are."""
        return False

    def unused(self, geometry: Geometry, hook_point: HookPoint, options: OptionsT) -> Unused:
        """What it leaves of the host without use."""
        return Unused()

    def notes(self, geometry: Geometry, hook_point: HookPoint, options: OptionsT) -> tuple[str, ...]:
        """What a user should know before grafting (the paper's own count where it differs, ...), for `plan`."""
        return ()

    def inert_parameters(self, geometry: Geometry, hook_point: HookPoint, options: OptionsT) -> frozenset[str]:
        """Names of added parameters whose gradient is zero by mathematics (HV's score bias), for tests and readers."""
        return frozenset()
