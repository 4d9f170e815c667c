"""Hosts by scheme: the package or module that a host's name refers to.

    timm:NAME, NAME                a model registered with timm (ours included); also timm's `hf-hub:` and `local-dir:`
    attngraft:NAME                 a model of this package
    torchvision:NAME               a torchvision model
    hf:FOLDER, hf:USER/NAME        a transformers model, saved in a folder or on the Hugging Face Hub
    module:package.path:factory    a user's function that returns an `nn.Module`

Every host except timm's gets a `pretrained_cfg` like timm's models: its input (`input_size`, `mean`, `std`,
`interpolation`, `crop_pct`) and its `classifier`. A host for inputs other than images has `attngraft_input`.
"""

import difflib
import inspect
import math
import os
import re
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import timm
import torch
from timm.models import is_model, list_models, model_entrypoint
from torch import nn
from torch.nn.modules.module import (
    register_module_module_registration_hook,
    register_module_parameter_registration_hook,
)

from attngraft.cache import memory_size
from attngraft.errors import AttngraftError, HostError, UsageError
from attngraft.files import shown_size, user_path
from attngraft.models.transformers_folder import transformers_folder
from attngraft.models.weights import Fitted, WeightsFile
from attngraft.suggest import MOST, did_you_mean, quoted

SCHEMES = ("timm", "attngraft", "torchvision", "hf", "module")
_MODULES, _LARGEST = 20_000, 1_000_000  #: most modules of a host, and largest number among its arguments
#: a host takes at most this many times the size of the file with its weights, plus this many bytes
_WEIGHTS = (".safetensors", ".bin")  #: extensions in folders
_MOST_TIMES, _MOST_EXTRA = 16, 2**28
_MOST_BYTES: ContextVar[float] = ContextVar("_MOST_BYTES", default=math.inf)
_TIMM_SOURCES = ("hf-hub", "hf_hub", "local-dir")  #: timm's own schemes
_OTHER_NAMES = {"huggingface": "hf", "transformers": "hf", "python": "module", "tv": "torchvision"}
_DOTTED = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*")
_UNEXPECTED = re.compile(r"(\w+)(?:\.__init__)?\(\) got an unexpected keyword argument '(\w+)'")  # of a TypeError
_PREFIX = re.compile(r"([\w.-]{2,}):")  # two letters or more, unlike a Windows drive


@dataclass(frozen=True, kw_only=True)
class Started:
    """A host with its initial weights."""

    model: nn.Module
    file: WeightsFile | None = None  #: the pretrained weights, if attngraft loaded them
    fitted: Fitted | None = None  #: how these weights fit the host


def split_scheme(name: str) -> tuple[str, str]:
    """Split a host's name into scheme and rest; default: `hf` for a transformers folder, else `timm`.

    Raises:
        UsageError: unknown scheme; the message suggests a known scheme.
    """
    found = _PREFIX.match(name)
    if found is None:
        known = is_model(name.partition(".")[0])
        return ("hf", name) if not known and os.path.isdir(name) and transformers_folder(name) else ("timm", name)
    scheme, rest = found[1], name[found.end() :]
    if scheme in SCHEMES:
        return scheme, rest
    if scheme in _TIMM_SOURCES:
        return "timm", name
    near = [_OTHER_NAMES[scheme]] if scheme in _OTHER_NAMES else difflib.get_close_matches(scheme, SCHEMES, n=1)
    if near:
        hint = f"did you mean {near[0]}:{rest}?"
    elif _DOTTED.fullmatch(scheme) and _DOTTED.fullmatch(rest):
        hint = f"for a function of your own, type module:{name}"
    else:
        hint = f"known schemes: {', '.join(f'{each}:' for each in SCHEMES)}"
    raise UsageError(f"{name}: unknown scheme {scheme!r}; {hint}")


@contextmanager
def sized_for(weights: Path) -> Iterator[None]:
    """Context manager in which a host much larger than its weights, a file or a folder of files, is not created."""
    path = weights.parent if weights.suffix == ".json" else weights  # the index of several files
    files = [each for each in path.iterdir() if each.suffix in _WEIGHTS] if path.is_dir() else [path]
    known = sum(each.stat().st_size for each in files if each.is_file())
    token = _MOST_BYTES.set(_MOST_TIMES * known + _MOST_EXTRA if known else math.inf)
    try:
        yield
    finally:
        _MOST_BYTES.reset(token)


def build_anywhere(factory: Callable[[], nn.Module]) -> nn.Module:
    """Call `factory`; if it fails on the meta device, because it reads values, call it again on the CPU.

    Hosts of timm before 1.0.21 read the rates of stochastic depth from a tensor.

    Raises:
        HostError: the model has more than 20,000 modules, or is larger than the memory or than `sized_for` allows.
            Parameters are counted before they are filled, which is what takes the memory.
    """
    modules, size = 0, 0

    def count(*_: object) -> None:
        nonlocal modules
        modules += 1
        if modules > _MODULES:
            raise HostError(f"the host has more than {_MODULES:,} modules; correct its arguments, such as its depth")

    def add(module: nn.Module, name: str, parameter: nn.Parameter | None) -> None:
        nonlocal size
        size += 0 if parameter is None or parameter.is_meta else parameter.numel() * parameter.itemsize
        if size > memory_size():
            raise HostError(
                f"the host takes {shown_size(size)} or more, and this machine has {shown_size(memory_size())}; correct its "
                "arguments"
            )
        if size > _MOST_BYTES.get():
            raise HostError("the host is much larger than its weights; restore its arguments")

    hooks = register_module_module_registration_hook(count), register_module_parameter_registration_hook(add)
    try:
        if torch.empty(0).device.type != "meta":
            return factory()
        try:
            return factory()
        except HostError:
            raise
        except Exception:  # user code and other packages' code raise errors of any class
            modules = size = 0
            with torch.device("cpu"):
                return factory()
    finally:
        for hook in hooks:
            hook.remove()


def refuse_huge_numbers(arguments: Mapping[str, Any]) -> None:
    """Check that no argument of a host is a number of parts that would fill the memory.

    Raises:
        HostError: a number above a million.
    """
    for name, value in arguments.items():
        for each in value if isinstance(value, list | tuple) else [value]:
            if isinstance(each, int | float) and abs(each) > _LARGEST:
                raise HostError(f"host argument {name}: {quoted(each)} is above {_LARGEST:,}; correct it")


def last_layer(model: nn.Module, classes: int | None) -> str | None:
    """Return the path of the last linear layer or convolution with `classes` outputs (None: any number)."""
    found = None
    for path, module in model.named_modules():
        if isinstance(module, nn.Linear | nn.Conv2d):
            outputs = module.out_features if isinstance(module, nn.Linear) else module.out_channels
            if classes is None or outputs == classes:
                found = path
    return found


@contextmanager
def creation_errors(name: str, arguments: Mapping[str, Any], *, maker: str) -> Iterator[None]:
    """Turn errors of a host's factory into a HostError that names its arguments, and similar ones for unknown ones."""
    try:
        yield
    except AttngraftError:
        raise
    except Exception as error:  # factories of other packages raise errors of any class
        given = ", ".join(f"{key}={value!r}" for key, value in arguments.items()) or "no arguments"
        reason = repr(error) if isinstance(error, KeyError) else f"{error}{_similar_argument(error)}"
        raise HostError(f"{maker} cannot create {name} with {given}: {reason}; correct the arguments") from error


def _similar_argument(error: Exception) -> str:
    """Return the hint for an argument that the model's class does not have; empty for other errors."""
    found = _UNEXPECTED.search(str(error)) if isinstance(error, TypeError) else None
    if found is None or error.__traceback__ is None:
        return ""
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    values = [value for frame in frames for value in (*frame.f_locals.values(), frame.f_globals.get(found[1]))]
    named = next((each for each in values if callable(each) and getattr(each, "__name__", "") == found[1]), None)
    if named is None:
        return ""
    try:
        return did_you_mean(found[2], inspect.signature(named).parameters)
    except (TypeError, ValueError):  # no signature
        return ""


def unknown_host(name: str) -> UsageError:
    """Return the error for a name unknown to timm, which suggests a similar or valid name."""
    from torchvision.models import list_models as torchvision_models

    if not name.strip():
        return UsageError("the name of the host is empty; attngraft list hosts shows names")
    path = user_path(name)
    start = f"there is no model {name!r} in timm {timm.__version__}"
    if not os.path.lexists(path) and len(name) > MOST:  # such a name may be too long for a path
        return UsageError(f"there is no model {quoted(name)} in timm {timm.__version__}, and no such folder")
    if (path / "attngraft.json").is_file() or (path / "recipe.yaml").is_file():
        return UsageError(
            f"{name} is the folder of a run or an exported model, not a host; give the name of its host, and the "
            f"folder to commands with --weights {name}"
        )
    if (path / "config.json").is_file():
        return UsageError(
            f"{name}: its config.json is not from transformers (no model_type); for a timm folder, type local-dir:{name}"
        )
    if path.is_dir():
        return UsageError(f"{name}: no config.json in this folder, so it is not a saved transformers or timm model")
    if name in torchvision_models():
        return UsageError(f"{start}; torchvision has it: type torchvision:{name}")
    near = difflib.get_close_matches(name, list_models(), n=3, cutoff=0.5)
    if re.fullmatch(r"[\w.-]+/[\w.-]+", name):
        return UsageError(
            f"{start}, and no such folder; for the Hub, type hf:{name} (transformers) or hf-hub:{name} (timm)"
        )
    if os.sep in name or "/" in name:
        return UsageError(f"{name}: no such folder, and not a timm model")
    hint = f"did you mean {', '.join(near)}?" if near else "timm.list_models() lists all"
    return UsageError(f"{start}; {hint}")


def refuse_others_model(name: str) -> None:
    """Check that `name` is a model of this package.

    Raises:
        UsageError: this package has no such model.
    """
    bare = name.partition(".")[0]
    own = [each for each in list_models() if model_entrypoint(each).__module__.startswith("attngraft.")]
    if bare not in own:
        other = f"; timm has it: type {name}" if is_model(bare) else did_you_mean(name, own)
        raise UsageError(f"attngraft:{name}: attngraft has no such model{other}")
