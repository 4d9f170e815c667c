"""Detection of attention in a model, by a forward pass on the meta device."""

import inspect
import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from attngraft.hosts.adapter import random_images

#: timm class whose softmax does not run over tokens -> axis of the softmax
NOT_OVER_TOKENS = {
    "timm.layers.selective_kernel.SelectiveKernelAttn": "paths of a convolution",
    "timm.layers.split_attn.RadixSoftmax": "splits of a convolution",
    "timm.models.davit.ChannelAttention": "channels",
    "timm.models.davit.ChannelAttentionV2": "channels",
    "timm.models.edgenext.CrossCovarianceAttn": "channels",
    "timm.models.efficientvim.EfficientViM": "outputs to be averaged",
    "timm.models.efficientvim.EfficientViMDistilled": "outputs to be averaged",
    "timm.models.xcit.XCA": "channels",
}
_FUSED = (F.scaled_dot_product_attention, F.multi_head_attention_forward)
_SOFTMAX = (F.softmax, torch.softmax, Tensor.softmax)
#: names that mark methods which compute attention (transformers calls attention through a table)
_CALLS = re.compile("^(softmax|scaled_dot_product_attention|multi_head_attention_forward|ALL_ATTENTION_FUNCTIONS)$")


@dataclass(frozen=True)
class Attends:
    """A module that computes a softmax."""

    path: str
    module: str  #: name of its class
    #: fused: torch's scaled dot product attention; softmax: an explicit softmax; not run: only found in the code
    how: Literal["fused", "softmax", "not run"]
    over: str = "tokens"  #: axis of the softmax

    @property
    def over_tokens(self) -> bool:
        return self.over == "tokens"


class _Enough(Exception):
    """Raised to end the forward pass at the first attention over tokens."""


def attends(model: nn.Module, inputs: Sequence[Tensor], *, first: bool = False) -> list[Attends]:
    """Return the modules that compute a softmax when `model` runs on `inputs`, each once, in order.

    The forward pass runs on the model's device; on the meta device nothing is computed. Fused attention counts as a softmax.
    A softmax is assumed to run over tokens, except in the classes of `NOT_OVER_TOKENS`. For `nn.Softmax`, the module that
    contains it is returned.

    With `first`, the pass ends at the first softmax over tokens; its module is then the last in the list.
    """
    if not any(map(_may_attend, {type(module) for module in model.modules()})):
        return []
    names = {id(module): path for path, module in model.named_modules()}
    found: dict[str, Attends] = {}
    with _running(model) as stack, _Watch(stack, found, names, first), torch.no_grad(), suppress(_Enough):
        model(*inputs)
    return list(found.values())


def example_image(model: nn.Module) -> tuple[Tensor, ...]:
    """Return a random image of the input size in `pretrained_cfg`, by default 224 x 224 pixels."""
    size = (getattr(model, "pretrained_cfg", None) or {}).get("input_size", (3, 224, 224))
    return random_images(model, tuple(size), batch=1)


def may_attend(model: nn.Module) -> list[Attends]:
    """Return the innermost modules whose code names a softmax or an attention function.

    Used for models that cannot be run.
    """
    paths = [path for path, module in model.named_modules() if _names_softmax(module)]
    inner = [
        path
        for path in paths
        if not any(other != path and (not path or other.startswith(f"{path}.")) for other in paths)
    ]
    return [Attends(path, type(model.get_submodule(path)).__name__, "not run") for path in inner]


def _names_softmax(module: nn.Module) -> bool:
    if isinstance(module, nn.MultiheadAttention) or any(isinstance(child, nn.Softmax) for child in module.children()):
        return True
    own = [kind for kind in type(module).__mro__ if not kind.__module__.startswith("torch.")]
    methods = (inspect.unwrap(method) for kind in own for method in vars(kind).values() if callable(method))
    codes = (getattr(method, "__code__", None) for method in methods)
    return any(_CALLS.search(name) for code in codes if code is not None for name in code.co_names)


class _Watch(TorchFunctionMode):
    def __init__(self, stack: list[nn.Module], found: dict[str, Attends], names: dict[int, str], first: bool) -> None:
        super().__init__()
        self._stack, self._found, self._names, self._first = stack, found, names, first

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if function in _FUSED or function in _SOFTMAX:
            module = next((each for each in reversed(self._stack) if not isinstance(each, nn.Softmax)), self._stack[0])
            kind, path = type(module), self._names[id(module)]
            over = NOT_OVER_TOKENS.get(f"{kind.__module__}.{kind.__name__}", "tokens")
            how: Literal["fused", "softmax"] = "fused" if function in _FUSED else "softmax"
            if self._found.setdefault(path, Attends(path, kind.__name__, how, over)).over_tokens and self._first:
                raise _Enough
        return function(*args, **(kwargs or {}))


@contextmanager
def _running(model: nn.Module) -> Iterator[list[nn.Module]]:
    """Yield a list that contains the modules being run, outermost first."""
    stack: list[nn.Module] = []

    def enter(module: nn.Module, arguments: Any) -> None:
        stack.append(module)

    def leave(module: nn.Module, arguments: Any, output: Any) -> None:
        stack.pop()

    with ExitStack() as hooks:
        for module in model.modules():
            hooks.enter_context(module.register_forward_pre_hook(enter))
            hooks.enter_context(module.register_forward_hook(leave))
        yield stack


def _may_attend(kind: type[nn.Module]) -> bool:
    """Return whether the source file of a class or of a base names a softmax or torch's own attention."""
    return any(_mentions(base) for base in kind.__mro__ if issubclass(base, nn.Module))


def _mentions(kind: type[nn.Module]) -> bool:
    if kind.__module__.startswith("torch.nn."):  # one file defines both ReLU and attention
        return bool(re.search("Softmax|Attention|Transformer", kind.__name__))
    return bool(re.search("softmax|scaled_dot_product_attention", _source(kind.__module__), re.IGNORECASE))


@cache
def _source(module: str) -> str:
    try:
        return inspect.getsource(sys.modules[module])
    except (KeyError, OSError, TypeError):  # without a source file, only the forward pass shows attention
        return "softmax"
