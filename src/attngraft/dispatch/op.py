"""Operations by name, their backends, and the choice between them."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from attngraft.dispatch.shapes import Shapes
from attngraft.errors import BackendError

#: names of backends, in the order in which `auto` prefers them
BACKENDS = ("triton", "eager", "reference")
#: environment variable that sets the backend of calls without `backend=`
ENVIRONMENT = "ATTNGRAFT_BACKEND"

_ENVIRONMENT_KEY = os.environ.encodekey(ENVIRONMENT)
_registered: dict[str, Op[Any]] = {}
Result = TypeVar("Result")


def no_obstacle(*args: Any, **kwargs: Any) -> None:
    """Return None: the backend can serve every call."""


@dataclass(frozen=True)
class Backend:
    """One implementation of an operation.

    `obstacle` is called with the arguments of the call and returns why this backend cannot serve it, as a phrase that
    completes "cannot be used here: ...", or None. It runs on every call under `auto`, so it must read only
    devices, dtypes and shapes, not values.
    """

    function: Callable[..., Any]
    obstacle: Callable[..., str | None] = no_obstacle


@dataclass(frozen=True)
class Explanation:
    """The backend that serves a call, and whether each other backend could serve it."""

    op: str
    chosen: str
    verdicts: Mapping[str, str]  #: backend -> "chosen", "could be used" or the reason why not

    def __str__(self) -> str:
        return "\n".join([self.op, *(f"  {name}: {verdict}" for name, verdict in self.verdicts.items())])


class Op(Generic[Result]):
    """An operation with several implementations. Call it like a function; `backend=` selects one.

    A call without `backend` (or with "auto") uses the backend that the environment variable `ATTNGRAFT_BACKEND` names,
    if this op has it, else the first of triton, eager, reference that can serve the call. The choice is made in Python from
    devices, dtypes and shapes, so it leaves no trace under `torch.compile(fullgraph=True)` and `torch.export`.

    Args:
        reference: the equation, as a function that can serve every call. The operation takes its name, signature and
            docstring from this function.
        summary: the formula, in one line.
        shapes: shapes of the operands, checked before each call.
        check: called before each call, with all arguments by name; raises `UsageError` if they are invalid.
        eager, triton: faster backends, called with the same arguments: functions, or `Backend`s that cannot serve every
            call.
    """

    def __init__(
        self,
        reference: Callable[..., Result],
        summary: str,
        *,
        shapes: Shapes | None = None,
        check: Callable[..., None] | None = None,
        eager: Callable[..., Result] | Backend | None = None,
        triton: Callable[..., Result] | Backend | None = None,
    ) -> None:
        self.name = reference.__name__
        if self.name in _registered:
            raise ValueError(f"an op named {self.name!r} is already registered")
        self.summary = summary
        given = {"triton": triton, "eager": eager, "reference": reference}
        self.backends = {
            name: each if isinstance(each, Backend) else Backend(each)
            for name, each in given.items()
            if each is not None
        }
        self._shapes, self._check = shapes, check
        self.__doc__ = reference.__doc__
        signature = inspect.signature(reference)
        self._names = tuple(signature.parameters)
        backend = inspect.Parameter("backend", inspect.Parameter.KEYWORD_ONLY, default="auto", annotation=str)
        self.__signature__ = signature.replace(parameters=[*signature.parameters.values(), backend])
        _registered[self.name] = self

    def __call__(self, *args: Any, backend: str = "auto", **kwargs: Any) -> Result:
        """Check the operands and run the op.

        Raises:
            UsageError: the operands have invalid shapes or values.
            BackendError: `backend`, or the environment, names a backend that does not exist or cannot serve this call.
        """
        if self._shapes is not None or self._check is not None:
            arguments = {**dict(zip(self._names[: len(args)], args, strict=True)), **kwargs}
            if self._shapes is not None:
                self._shapes.check(arguments)
            if self._check is not None:
                self._check(**arguments)
        return self.unchecked(*args, backend=backend, **kwargs)

    def unchecked(self, *args: Any, backend: str = "auto", **kwargs: Any) -> Result:
        """Run the op without checking the operands."""
        forced = self._forced(backend)
        if forced is not None:
            reason = self.backends[forced].obstacle(*args, **kwargs)
            if reason is None:
                return self.backends[forced].function(*args, **kwargs)
            raise BackendError(self._refusal(forced, reason))
        for candidate in self.backends.values():  # the last backend is the reference, which can serve every call
            if candidate.obstacle(*args, **kwargs) is None:
                break
        return candidate.function(*args, **kwargs)

    def explain(self, *args: Any, backend: str = "auto", **kwargs: Any) -> Explanation:
        """Explain which backend a call with these arguments would use, without running it.

        Raises:
            BackendError: see `__call__`.
        """
        forced = self._forced(backend)
        reasons = {name: candidate.obstacle(*args, **kwargs) for name, candidate in self.backends.items()}
        if forced is not None and reasons[forced] is not None:
            raise BackendError(self._refusal(forced, reasons[forced]))
        chosen = forced or next(name for name, reason in reasons.items() if reason is None)
        verdicts = {name: "chosen" if name == chosen else reason or "could be used" for name, reason in reasons.items()}
        return Explanation(self.name, chosen, verdicts)

    def __deepcopy__(self, memo: dict[int, Any]) -> Op[Result]:
        return self  # copies of a model share the op

    def __reduce__(self) -> tuple[Any, ...]:
        return _by_name, (self.name,)

    def __repr__(self) -> str:
        return f"Op({self.name}: {', '.join(self.backends)})"

    def _forced(self, backend: str) -> str | None:
        """Return the backend selected by `backend` or the environment; None: choose automatically."""
        if backend != "auto":
            if backend not in self.backends:
                raise BackendError(
                    f"{self.name} has no backend {backend!r}; it has {', '.join(self.backends)} and auto"
                )
            return backend
        # os.environ.get raises and catches two exceptions if the variable is not set, which takes longer than the rest of
        # the dispatch; read the underlying mapping instead
        encoded = os.environ._data.get(_ENVIRONMENT_KEY)  # type: ignore[attr-defined]
        forced = None if encoded is None else str(os.environ.decodevalue(encoded))
        if not forced or forced == "auto":
            return None
        if forced not in BACKENDS:
            raise BackendError(f"{ENVIRONMENT}={forced} is not a backend; use auto, {', '.join(BACKENDS)}")
        return forced if forced in self.backends else None

    def _refusal(self, backend: str, reason: str | None) -> str:
        return f"{self.name}: backend {backend!r} cannot be used here: {reason}; use another backend, or auto"


def _by_name(name: str) -> Op[Any]:
    return _registered[name]


def registered_ops() -> dict[str, Op[Any]]:
    """Return the ops of all mechanisms imported so far, by name.

    `mechanisms.registry.graft_types()` imports the built-in ones.
    """
    return dict(_registered)


@contextmanager
def reference_backend() -> Iterator[None]:
    """Use the reference backend within the `with` block, in calls without `backend=`."""
    before = os.environ.get(ENVIRONMENT)
    os.environ[ENVIRONMENT] = "reference"
    try:
        yield
    finally:
        if before is None:
            del os.environ[ENVIRONMENT]
        else:
            os.environ[ENVIRONMENT] = before
