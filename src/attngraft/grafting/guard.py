"""Guards of surgery: one thread at a time, all or nothing, and no live wrapper around the model."""

import gc
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from attngraft.attention import all_modules
from attngraft.errors import HostError, UsageError

#: modules that wrap a model, by the name under which they hold it
_HOLDERS = {"_orig_mod": "torch.compile", "_fsdp_wrapped_module": "FSDP", "module": "DistributedDataParallel"}
_lock = threading.RLock()
_recordings: list["LiveRecording"] = []


@dataclass(frozen=True, eq=False)
class LiveRecording:
    """An open `record` block."""

    core: nn.Module  #: the host
    thread: int = field(default_factory=threading.get_ident)


@contextmanager
def exclusive() -> Iterator[None]:
    """Let no other thread change the structure of a model within the block."""
    with _lock:
        yield


@contextmanager
def surgery(core: nn.Module) -> Iterator[None]:
    """Change the host `core` within the block, entirely or, if the block raises, not at all.

    Values of parameters are not restored, because surgery does not change them.

    Raises:
        UsageError: another thread is recording the model.
    """
    with exclusive(), torch.inference_mode(False):  # parameters created in inference mode cannot be trained
        if any(each.thread != threading.get_ident() for each in recordings_of(core)):
            raise UsageError(
                "another thread is recording this model; change its grafts after that thread has left attngraft.record, or "
                "use a copy of the model in each thread (copy.deepcopy)"
            )
        before = _Structure(core)
        try:
            yield
        except BaseException:
            before.restore()
            raise


@contextmanager
def live_recording(core: nn.Module) -> Iterator[LiveRecording]:
    """Register a recording of the host `core` within the block."""
    recording = LiveRecording(core)
    with exclusive():
        _recordings.append(recording)
    try:
        yield recording
    finally:
        with exclusive():
            _recordings.remove(recording)


def recordings_of(core: nn.Module) -> list[LiveRecording]:
    """Return the live recordings of `core`, of a module in it, or of a model that contains it."""
    if not _recordings:
        return []
    own = {id(module) for module in core.modules()}
    return [
        each for each in _recordings if id(each.core) in own or any(module is core for module in each.core.modules())
    ]


class _Structure:
    """Classes, attributes, children, parameters, hooks and flags of all modules of a model, without values."""

    def __init__(self, core: nn.Module) -> None:
        modules = all_modules(core)
        self._modules = [(module, type(module), _copied(module.__dict__)) for module in modules]
        self._flags = [
            (parameter, parameter.requires_grad)
            for module in modules
            for parameter in module._parameters.values()
            if parameter is not None
        ]

    def restore(self) -> None:
        for module, kind, (attributes, containers) in self._modules:
            module.__class__ = kind
            module.__dict__.clear()
            module.__dict__.update(attributes)
            for container, content in containers:
                container.clear()
                container.update(content)
        for parameter, flag in self._flags:
            if parameter.requires_grad != flag:
                parameter.requires_grad_(flag)


def _copied(attributes: dict[str, Any]) -> tuple[dict[str, Any], list[tuple[Any, Any]]]:
    """Copy attributes and the contents of the dictionaries and sets among them, whose identity is kept."""
    containers = [value for value in attributes.values() if isinstance(value, dict | set)]
    return dict(attributes), [(each, each.copy()) for each in containers]


def refuse_live_wrapper(*modules: nn.Module) -> None:
    """Check that no live DDP, FSDP or compiled module wraps one of `modules`.

    A wrapper around a larger model that contains them is found only for FSDP, which marks every module.

    Raises:
        HostError: one does.
    """
    wrapper = "FSDP" if any(getattr(each, "_is_fsdp_managed_module", False) for each in modules) else None
    if wrapper is None and _wrapper_of(modules) is not None:
        gc.collect()  # an unused wrapper may wait for the garbage collector
        wrapper = _wrapper_of(modules)
    if wrapper is not None:
        raise HostError(
            f"the model is wrapped by a live {wrapper} module, which would not see the grafts; graft the plain model "
            "first, then wrap it, or delete the wrapper before grafting"
        )


def _wrapper_of(modules: tuple[nn.Module, ...]) -> str | None:
    """Return the wrapper that holds one of `modules`; wrappers leave no other trace than the reference."""
    distributed = sys.modules.get("torch.distributed")
    in_group = distributed is not None and distributed.is_available() and distributed.is_initialized()
    if not in_group and not _compiles():
        return None  # there is none, and looking takes tenths of a second in a large process
    for holder in gc.get_referrers(*modules):
        if type(holder) is not dict:
            continue
        for name in _HOLDERS.keys() & holder.keys():
            if any(holder[name] is each for each in modules) and (name != "module" or _is_ddp(holder)):
                return _HOLDERS[name]
    return None


def _compiles() -> bool:
    """Return whether torch.compile was called since the last `torch._dynamo.reset()`, which discards all compiled code."""
    frames = sys.modules.get("torch._dynamo.eval_frame")  # torchvision imports it without compiling
    backends = getattr(frames, "cached_backends", {} if frames is None else {0: "unknown"})
    return any(each is not None for each in backends.values())  # None stands for torch.compiler.disable


def _is_ddp(children: dict[str, Any]) -> bool:
    """Return whether `children` are the children of a DistributedDataParallel module."""
    from torch.nn.parallel import DistributedDataParallel

    attributes = [each for each in gc.get_referrers(children) if type(each) is dict]
    owners = gc.get_referrers(*attributes) if attributes else []
    return any(isinstance(each, DistributedDataParallel) for each in owners)
