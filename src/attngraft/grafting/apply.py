"""Install and remove grafts.

A grafted module is the host's own module with a patched class; removing its grafts restores the class.
"""

import itertools
import logging
from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from attngraft.attention import Graft, GraftedModule, all_modules, plain_class
from attngraft.errors import GraftSpecError, HostError, check_types
from attngraft.grafting.cost import describe
from attngraft.grafting.guard import exclusive, recordings_of, refuse_live_wrapper, surgery
from attngraft.grafting.placement import Placement, build, place, repeated_grafts, with_options
from attngraft.grafting.report import GraftReport
from attngraft.grafting.spec import Specification
from attngraft.hosts import Host, HostAdapter, check_module, find_host, patched_class
from attngraft.tensors import meta_device

log = logging.getLogger(__name__)


def graft(model: nn.Module, spec: Specification, **options: Any) -> GraftReport:
    """Graft `spec` into `model`, in place; the host's parameters keep their names and values.

    Every module with a graft gets a patched class; new parameters are named `<module>.grafts.<name>.`. Initial values come
    from torch's global CPU generator and are moved to the host's device and precision. After any exception, the model is as
    it was. Graft first, then compile, shard, or create an optimizer. A graft that the model already has at a site is applied
    in addition, with a warning; `ungraft` removes the first. Threads that graft at the same time wait for each other.

    Args:
        spec: text (`"cb_s@blocks.6-11 + horizontal"`), a list of mappings, or a parsed specification.
        options: options of the graft, if `spec` is a single graft without options (`graft(model, "cb_s", init=1.0)`).

    Raises:
        ArgumentError: an argument has a wrong type.
        UsageError: another thread is recording the model.
        GraftSpecError: the specification cannot be parsed, or matches no sites.
        HostError: the model is not supported or is wrapped, or a site refuses the graft.
    """
    check_module(model)
    parsed = with_options(spec, options)
    with exclusive():
        host = find_host(model)
        placements = place(host, parsed)
        report, repeated = describe(host, placements, parsed), repeated_grafts(host, placements)
        refuse_live_wrapper(model, host.core)
        with surgery(host.core):
            install(host, placements)
            for warning in repeated:
                log.warning(warning)
    return report


def install(host: Host, placements: list[Placement]) -> list[Graft]:
    """Build all grafts, install them, and return them in the order of `placements`."""
    grafts = [_build_like(host.module(placement.target), host.core, placement) for placement in placements]
    for placement, graft in zip(placements, grafts, strict=True):
        module = patch(host.module(placement.target), host.adapter)
        graft.unused = placement.graft_type.unused(
            placement.site.geometry, placement.hook_point, placement.term.options
        )
        unused = [(name, module.get_parameter(name)) for name in graft.unused.parameters]
        graft.frozen = tuple(name for name, parameter in unused if parameter.requires_grad)
        for _, parameter in unused:
            parameter.requires_grad_(False)
        module.grafts[placement.instance] = graft
        if placement.hook_point == "space":
            module.detach_modules()
        for path in placement.site.companions.get(placement.hook_point, ()):
            patch(host.module(path), host.adapter)
    return grafts


def _build_like(module: nn.Module, core: nn.Module, placement: Placement) -> Graft:
    """Build a graft with the device, dtype and training mode of the host's module."""
    like = model_tensor(module, core)
    with meta_device() if like.device.type == "meta" else torch.device("cpu"):  # whatever device the caller has set
        graft = build(placement)
    return graft.to(device=like.device, dtype=like.dtype).train(module.training)


def model_tensor(module: nn.Module, core: nn.Module) -> Tensor:
    """Return a tensor with the device and dtype of the grafts in `module` of the host `core`."""
    parameters = itertools.chain(module.parameters(), core.parameters())
    return next((each for each in parameters if each.is_floating_point()), torch.empty(0))


def patch(module: nn.Module, adapter: HostAdapter | None = None) -> Any:
    """Switch `module` to its patched class, still without grafts; do nothing if it is already patched.

    Raises:
        HostError: it has no patched class, or a forward of its own, which would be called instead.
    """
    if "forward" in module.__dict__:
        raise HostError(
            f"{plain_class(module).__name__} in the model has a forward of its own (module.forward = ...), which would not "
            "see the grafts; graft first, then replace it, or remove it with del module.forward"
        )
    if not isinstance(module, GraftedModule):
        patched = patched_class(module, adapter)
        if patched is None:
            raise HostError(
                f"{type(module).__name__} has no patched class; list its patched class in `patched` of the adapter"
            )
        module.grafts = nn.ModuleDict().train(module.training)
        module.__class__ = cast(Any, patched)
    return module


def restore(module: Any) -> None:
    """Switch a module whose grafts were all removed back to the host's class, unless it was parametrized since.

    Parametrizing a module switches it to a class of its own, derived from the patched one.
    """
    if parametrize.is_parametrized(module):
        return
    module.__class__ = plain_class(module)
    del module.grafts


def restore_unused(core: nn.Module) -> None:
    """Switch the modules of the host `core` that have no use for their patched class back, unless a recording has.

    A module whose parts were deleted or replaced is in use if it has grafts of its own.
    """
    if recordings_of(core):
        return
    paths = {module: path for path, module in core.named_modules()}
    failed: Exception | None = None
    for module in all_modules(core):
        try:
            unused = isinstance(module, GraftedModule) and not module.in_use
        except AttributeError:
            unused = not module.grafts
            log.warning(
                "%s: a part of this module was deleted or replaced, with its grafts; the other parts were restored",
                paths.get(module) or type(module).__name__,
            )
            if unused:
                restore(module)
        except Exception as error:  # of a graft; the other modules are restored
            failed = failed or error
        else:
            if unused:
                restore(module)
    if failed is not None:
        raise failed


def ungraft(model: nn.Module, names: str | Iterable[str] | None = None) -> list[str]:
    """Remove all grafts, or only the instances called `names` (`cb`, `cb_2`), at every site.

    Once all grafts are removed, the model is the original host again, bit for bit. Returns the paths of the removed grafts:
    those in modules that were deleted or replaced since are not among them, and the rest of the model is restored; a module
    that lacks such a part is named in a warning. After any exception, the model is as it was.

    Raises:
        ArgumentError: an argument has a wrong type.
        UsageError: another thread is recording the model.
        GraftSpecError: the model has no graft of one of these names; nothing was removed.
        HostError: a module's `grafts` were deleted, or it was parametrized since; a graft was folded into the host's
            weights, or it replaces modules whose original weights are not available (an exported folder does not contain
            them); nothing was removed.
    """
    check_module(model)
    check_types(names=(names, str, Iterable, None))
    listed = [names] if isinstance(names, str) else [*(names or ())]
    for name in listed:
        check_types(names=(name, str))
    wanted = None if names is None else {*listed}
    with surgery(model):
        present = list(grafted(model))
        known = {name for _, _, name, _ in present}
        if wanted is not None and not wanted <= known:
            missing = sorted(wanted - known)
            raise GraftSpecError(
                f"this model has no graft named {missing[0]!r}; its grafts: {', '.join(sorted(known)) or 'none'}"
            )
        chosen = [entry for entry in present if wanted is None or entry[2] in wanted]
        for path, module, name, graft in chosen:
            _check_undo(f"{path}.grafts.{name}", module, graft)
        for _, module, name, _ in chosen:
            _remove(module, name)
        restore_unused(model)
    return [f"{path}.grafts.{name}" if path else f"grafts.{name}" for path, _, name, _ in chosen]


def _check_undo(path: str, module: Any, graft: Graft) -> None:
    if parametrize.is_parametrized(module):
        raise HostError(
            f"{path} cannot be removed: its module was parametrized after grafting; call "
            "torch.nn.utils.parametrize.remove_parametrizations first"
        )
    if graft.folded:
        raise HostError(
            f"{path} cannot be removed: this model was folded for inference, and {graft.folded}. Load the model that was "
            "exported without folding"
        )
    if graft.hook_point == "space" and not module.whole:
        raise HostError(
            f"{path} cannot be removed: it replaces the host's {', '.join(module.detaches)}, whose weights were not "
            "saved with this model. Load the host's own weights first (model.load_state_dict(weights, strict=False))"
        )


def _remove(module: Any, name: str) -> None:
    graft = module.grafts.pop(name)
    if graft.hook_point == "space":
        module.restore_modules()
    for parameter in graft.frozen:
        other = next((other for other in module.grafts.values() if parameter in other.unused.parameters), None)
        if other is None:
            with suppress(AttributeError):  # deleted or replaced since
                module.get_parameter(parameter).requires_grad_(True)
        else:  # also unused by this graft, whose removal will unfreeze it
            other.frozen = (*other.frozen, parameter)


def grafted(model: nn.Module) -> Iterator[tuple[str, Any, str, Graft]]:
    """Yield (path of the module, the module, instance name, the graft) for every graft in `model`.

    Raises:
        HostError: the `grafts` of a module were deleted, with what is needed to restore it.
    """
    for path, module in model.named_modules():
        if isinstance(module, GraftedModule):
            if not isinstance(getattr(module, "grafts", None), nn.ModuleDict):
                raise HostError(
                    f"{path or type(model).__name__}: its `grafts` were deleted or replaced, and its state before them is "
                    "lost; create the model again (attngraft.ungraft removes grafts)"
                )
            for name, graft in module.grafts.items():
                yield path, module, name, cast(Graft, graft)


def unused_parts(model: nn.Module) -> list[tuple[nn.Parameter, Tensor]]:
    """Return (parameter, view of its unused part) for every part of the host that a graft makes unused."""
    return [pair for _, module, _, graft in grafted(model) for pair in graft.unused.parts(module)]


def pin_unused(optimizer: torch.optim.Optimizer, model: nn.Module) -> None:
    """Keep `optimizer` from changing host values that grafts make unused (q and k rows of a uniform head).

    Their gradient is zero, but weight decay and momentum would still change them, and removing the grafts would not restore
    the host. Step hooks of the optimizer reset these values after every step. Parameters must not be sharded.
    """
    check_types(optimizer=(optimizer, torch.optim.Optimizer))
    check_module(model)
    if not unused_parts(model):
        return
    saved: list[Tensor] = []

    def save(*_: Any) -> None:
        saved[:] = [part.clone() for _, part in unused_parts(model)]

    def reset(*_: Any) -> None:
        with torch.no_grad():
            for (_parameter, part), value in zip(unused_parts(model), saved, strict=True):
                part.copy_(value)

    optimizer.register_step_pre_hook(save)
    optimizer.register_step_post_hook(reset)
