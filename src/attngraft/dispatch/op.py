"""An operation with several implementations, and the choice between them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from attngraft.dispatch.backend import BACKENDS, ENVIRONMENT, Backend, named_by_environment
from attngraft.errors import BackendError

_registered: dict[str, Op] = {}


@dataclass(frozen=True)
class Explanation:
    """Which backend serves a call, and why the others do not."""

    op: str
    chosen: str
    verdicts: Mapping[str, str]  #: backend -> "chosen", "could be used" or the reason why not

    def __str__(self) -> str:
        return "\n".join([self.op, *(f"  {name}: {verdict}" for name, verdict in self.verdicts.items())])


class Op:
    """An operation by name. Call it like a function; `backend=` chooses the implementation.

    A call without `backend` (or with "auto") takes the backend that the environment variable `ATTNGRAFT_BACKEND` names,
    if this op has one of that name, else the first of triton, eager, reference that can serve the call. All of this is
    Python on devices, dtypes and shapes, so it disappears under `torch.compile(fullgraph=True)` and `torch.export`.

    Args:
        name: as users see it in messages and in `attngraft doctor`, which names the backends of each.
        summary: one line: the formula.
        backends: by name; `reference` must be among them and serve every call.
    """

    def __init__(self, name: str, summary: str, *, backends: Mapping[str, Backend]) -> None:
        unknown = sorted(set(backends) - set(BACKENDS))
        if unknown or "reference" not in backends:
            raise ValueError(f"the backends of {name} are some of {', '.join(BACKENDS)}, reference among them")
        if name in _registered:
            raise ValueError(f"an op named {name!r} is registered already")
        self.name = name
        self.summary = summary
        self.backends = {label: backends[label] for label in BACKENDS if label in backends}
        _registered[name] = self

    def __call__(self, *args: Any, backend: str = "auto", **kwargs: Any) -> Any:
        """Run the op.

        Raises:
            BackendError: `backend`, or the environment, names a backend that does not exist or cannot serve this call.
        """
        wanted = self._wanted(backend)
        if wanted is not None:
            reason = self.backends[wanted].obstacle(*args, **kwargs)
            if reason is None:
                return self.backends[wanted].function(*args, **kwargs)
            raise BackendError(self._refusal(wanted, reason))
        for candidate in self.backends.values():
            if candidate.obstacle(*args, **kwargs) is None:
                return candidate.function(*args, **kwargs)
        raise BackendError(f"{self.name}: no backend can serve this call; see its explain() for the reasons")

    def explain(self, *args: Any, backend: str = "auto", **kwargs: Any) -> Explanation:
        """What a call with these arguments would do, without doing it.

        Raises:
            BackendError: as the call would.
        """
        wanted = self._wanted(backend)
        reasons = {label: candidate.obstacle(*args, **kwargs) for label, candidate in self.backends.items()}
        if wanted is not None and reasons[wanted] is not None:
            raise BackendError(self._refusal(wanted, reasons[wanted]))
        chosen = wanted or next(label for label, reason in reasons.items() if reason is None)
        verdicts = {
            label: "chosen" if label == chosen else reason or "could be used" for label, reason in reasons.items()
        }
        return Explanation(self.name, chosen, verdicts)

    def __deepcopy__(self, memo: dict[int, Any]) -> Op:
        return self  # an op is a name with functions; copies of a model share it

    def __reduce__(self) -> tuple[Any, ...]:
        return _by_name, (self.name,)

    def __repr__(self) -> str:
        return f"Op({self.name}: {', '.join(self.backends)})"

    def _wanted(self, backend: str) -> str | None:
        """The backend that must be used, or None where this op may choose."""
        if backend != "auto":
            if backend not in self.backends:
                raise BackendError(
                    f"{self.name} has no backend {backend!r}; it has {', '.join(self.backends)} and auto"
                )
            return backend
        forced = named_by_environment()
        if not forced or forced == "auto":
            return None
        if forced not in BACKENDS:
            raise BackendError(f"{ENVIRONMENT}={forced} names no backend; it is one of auto, {', '.join(BACKENDS)}")
        return forced if forced in self.backends else None

    def _refusal(self, backend: str, reason: str | None) -> str:
        return f"{self.name}: backend {backend!r} cannot be used here: {reason}; choose another, or leave it to auto"


def _by_name(name: str) -> Op:
    return _registered[name]


def registered_ops() -> dict[str, Op]:
    """The ops of all mechanisms imported so far, by name (`mechanisms.registry.graft_types()` imports the built-in ones)."""
    return dict(_registered)
