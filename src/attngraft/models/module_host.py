"""`module:` hosts: modules returned by a user's function, `module:package.path:factory`.

The factory receives the host's arguments, and `num_classes` and `pretrained` if its signature has them. The input
and the head are described by attributes of the returned module:

    attngraft_input, or pretrained_cfg as in timm: input_size, mean, std, interpolation, crop_pct, classifier
"""

import importlib
import inspect
import os
import pkgutil
import re
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from attngraft.errors import ConfigError, HostError, UsageError
from attngraft.models.schemes import Started, build_anywhere, last_layer
from attngraft.models.trust import SCHEME, refuse_untrusted
from attngraft.suggest import did_you_mean
from attngraft.timing.macs import evaluating

_FORM = re.compile(r"(?P<module>[^\W\d]\w*(\.[^\W\d]\w*)*):(?P<factory>[^\W\d]\w*(\.[^\W\d]\w*)*)")


def start(name: str, arguments: Mapping[str, Any], *, pretrained: bool) -> Started:
    """Import the factory and create the module.

    Raises:
        UsageError: the name has another form, is not permitted here (`trusting`), or cannot be imported; the factory does
            not accept the arguments, or returns no module; or the module has another number of classes.
        HostError: the factory failed.
    """
    shown = f"{SCHEME}{name}"
    factory = _factory(name, shown)
    overlay = arguments.get("pretrained_cfg_overlay") or {}
    given = _accepted(shown, factory, arguments, pretrained=pretrained)
    try:
        model: Any = build_anywhere(lambda: factory(**given))
    except Exception as error:  # user code raises errors of any class
        raise HostError(
            f"{shown} failed: {type(error).__name__}: {error}; run attngraft -v for the traceback"
        ) from error
    if not isinstance(model, nn.Module):
        raise UsageError(f"{shown} returned an object of type {type(model).__name__}; it must return a torch.nn.Module")
    _describe(model, arguments.get("num_classes"), overlay)
    if "num_classes" in arguments:
        _refuse_other_classes(shown, model, arguments["num_classes"], accepts="num_classes" in given)
    return Started(model=model)


def _factory(name: str, shown: str) -> Callable[..., Any]:
    found = _FORM.fullmatch(name)
    if found is None:
        module, dot, function = name.rpartition(".")
        hint = f"; did you mean {SCHEME}{module}:{function}?" if dot and ":" not in name else ""
        raise UsageError(f"{shown}: write module:package.path:factory, the module and the name of its function{hint}")
    refuse_untrusted(shown)
    top = found["module"].partition(".")[0]
    folder = Path.cwd()
    if ((folder / f"{top}.py").is_file() or (folder / top).is_dir()) and os.fspath(folder) not in (*sys.path, ""):
        sys.path.append(os.fspath(folder))  # behind installed packages, which it must not replace
    try:
        importlib.import_module(found["module"])
    except ModuleNotFoundError as error:
        raise UsageError(
            f"{shown}: {error}; run the command in the folder that contains {top}, or install the package"
        ) from error
    except Exception as error:  # user code raises errors of any class
        raise UsageError(
            f"{shown}: importing {found['module']} failed: {type(error).__name__}: {error}; run attngraft -v for "
            "the traceback"
        ) from error
    try:
        factory: Callable[..., Any] = pkgutil.resolve_name(name)
    except AttributeError as error:
        hint = did_you_mean(str(error.name), dir(error.obj))
        raise UsageError(f"{shown}: {found['module']} has no {found['factory']!r}{hint}") from None
    if not callable(factory):
        raise UsageError(
            f"{shown} is of type {type(factory).__name__}; name a function or class that returns a torch.nn.Module"
        )
    return factory


def _accepted(
    shown: str, factory: Callable[..., Any], arguments: Mapping[str, Any], *, pretrained: bool
) -> dict[str, Any]:
    """Return the factory's arguments; omits arguments added by attngraft that it does not accept."""
    try:
        parameters = inspect.signature(factory).parameters.values()
    except (TypeError, ValueError):  # functions in C have no signature
        return dict(arguments)
    names = [each.name for each in parameters if each.kind in (each.POSITIONAL_OR_KEYWORD, each.KEYWORD_ONLY)]
    takes_any = any(each.kind == each.VAR_KEYWORD for each in parameters)
    given = dict(arguments)
    for ours in ("num_classes", "pretrained_cfg_overlay"):
        if ours not in names and not (takes_any and ours == "num_classes"):
            given.pop(ours, None)
    if pretrained and "pretrained" not in names and not takes_any:
        raise ConfigError(f"{shown} takes no argument `pretrained`; pass a weights file instead (--weights FILE)")
    if "pretrained" in names or (takes_any and pretrained):
        given["pretrained"] = pretrained  # also False, to override the factory's default
    unknown = [] if takes_any else [name for name in given if name not in names]
    if unknown:
        raise ConfigError(
            f"{shown} takes no argument {unknown[0]!r}; "
            f"its arguments: {', '.join(names) or 'none'}"
            + (" (train.drop_path sets drop_path_rate; set it to null)" if unknown[0] == "drop_path_rate" else "")
        )
    return given


def _describe(model: Any, classes: int | None, overlay: Mapping[str, Any]) -> None:
    """Set `pretrained_cfg` from the module's attributes and `overlay`, and a missing `num_classes`."""
    own = getattr(model, "pretrained_cfg", None) or getattr(model, "default_cfg", None) or {}
    own = own if isinstance(own, Mapping) else own.to_dict()  # timm's PretrainedCfg
    cfg = {**own, **(getattr(model, "attngraft_input", None) or {})}
    cfg |= {name: value for name, value in overlay.items() if value is not None}
    if not cfg.get("classifier"):
        cfg["classifier"] = _classifier(model, classes) or ()
    model.pretrained_cfg = cfg
    if getattr(model, "num_classes", None) is None and isinstance(cfg["classifier"], str):
        model.num_classes = getattr(model.get_submodule(cfg["classifier"]), "out_features", None)


def _classifier(model: Any, classes: int | None) -> str | None:
    """Return the path of the module that timm's `get_classifier()` returns, otherwise of the last layer."""
    if callable(getattr(model, "get_classifier", None)):
        head = model.get_classifier()
        return next((path for path, module in model.named_modules() if module is head), None)
    return last_layer(model, classes)


def _refuse_other_classes(shown: str, model: Any, classes: int, *, accepts: bool) -> None:
    """Refuse a module whose number of logits is not `classes`, the data's number of classes.

    The module is run on two zero images. If the input size is unknown, its attribute `num_classes` is checked instead. The
    check is skipped without this attribute, or if the forward pass fails (as on the meta device).
    """
    size = model.pretrained_cfg.get("input_size")
    if size is None:
        built = getattr(model, "num_classes", None)
    else:
        built = _outputs(model, tuple(size))
    if built is None or built == classes:
        return
    remedy = (
        "use num_classes in the factory for its last layer" if accepts else "give the factory an argument num_classes"
    )
    raise ConfigError(f"{shown} returns logits for {built} classes, but the data have {classes}; {remedy}")


@torch.no_grad()
def _outputs(model: Any, size: tuple[int, ...]) -> int | None:
    """Return the number of columns of the module's outputs (2, columns); None for other shapes."""
    like = next(model.parameters(), torch.zeros(()))
    try:
        with evaluating(model):
            outputs = model(torch.zeros(2, *size, device=like.device, dtype=like.dtype))
    except Exception:  # user code raises errors of any class; a real mismatch fails again in training
        return None
    return outputs.shape[1] if isinstance(outputs, Tensor) and outputs.ndim == 2 else None
