"""The surgery: a grafted module is the host's own with a patched class. Undo gives the old class back."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from typing import Any, cast

import torch
from torch import nn

from attngraft.attention import Graft, GraftedModule, plain_class
from attngraft.errors import GraftSpecError, HostError
from attngraft.grafting.cost import describe
from attngraft.grafting.placement import Placement, build, place, with_options
from attngraft.grafting.report import GraftReport
from attngraft.grafting.spec import Specification
from attngraft.hosts import Host, HostAdapter, find_host, patched_class


def graft(model: nn.Module, spec: Specification, **options: Any) -> GraftReport:
    """Graft `spec` into `model`, in place; the host's parameters keep their names and values.

    Every module that carries a graft gets a patched class; what is added lives under `<module>.grafts.<name>.`. Initial
    values come from torch's global CPU generator and move to the device and precision of the host. Nothing is changed if
    anything is refused. Graft first, then compile, shard, or make an optimizer.

    Args:
        spec: a text (`"cb_s@blocks.6-11 + horizontal"`), a list of mappings, or a parsed specification.
        options: of the graft, where `spec` is a single graft without options (`graft(model, "cb_s", init=1.0)`).

    Raises:
        GraftSpecError: the specification cannot be read, or names sites that are not there.
        HostError: the model is not supported, is wrapped, or a site refuses the graft.
    """
    parsed = with_options(spec, options)
    host = find_host(model)
    placements = place(host, parsed)
    report = describe(host, placements, parsed)
    install(host, placements)
    return report


def install(host: Host, placements: list[Placement]) -> list[Graft]:
    """Build all grafts, then put them in; returns them in the order of `placements`."""
    grafts = [_made_for(host.module(placement.target), host.core, placement) for placement in placements]
    for placement, made in zip(placements, grafts, strict=True):
        module = patch(host.module(placement.target), host.adapter)
        unused = placement.graft_type.unused(placement.site.geometry, placement.hook_point, placement.term.options)
        made.unused = unused
        made.frozen = _freeze(module, unused.parameters)
        module.grafts[placement.instance] = made
        if placement.hook_point == "space":
            module.detach_modules()
        for path in placement.site.companions.get(placement.hook_point, ()):
            patch(host.module(path), host.adapter)
    return grafts


def _made_for(module: nn.Module, core: nn.Module, placement: Placement) -> Graft:
    """A fresh graft on the device, in the precision and in the mode of the host's module."""
    like = next((p for p in itertools.chain(module.parameters(), core.parameters()) if p.is_floating_point()), None)
    if like is not None and like.device.type == "meta":
        with torch.device("meta"):
            made = build(placement)
    else:
        made = build(placement)
    if like is not None:
        made = made.to(device=like.device, dtype=like.dtype)
    return made.train(module.training)


def patch(module: nn.Module, adapter: HostAdapter | None = None) -> Any:
    """Give `module` its patched class, with no grafts yet, if it does not have it; `adapter` is that of its host."""
    if not isinstance(module, GraftedModule):
        patched = patched_class(module, adapter)
        if patched is None:
            raise HostError(f"{type(module).__name__} has no patched class; its adapter must name one in `patched`")
        module.__class__ = cast(Any, patched)
        module.grafts = nn.ModuleDict()
    return module


def restore(module: Any) -> None:
    """Give the host's own class back to a module that is not `in_use` any more."""
    del module.grafts
    module.__class__ = plain_class(module)


def _freeze(module: nn.Module, names: Iterable[str]) -> tuple[str, ...]:
    """Stop training the named parameters; returns those that were trained until now."""
    frozen = []
    for name in names:
        parameter = module.get_parameter(name)
        if parameter.requires_grad:
            parameter.requires_grad_(False)
            frozen.append(name)
    return tuple(frozen)


def ungraft(model: nn.Module, names: str | Iterable[str] | None = None) -> list[str]:
    """Take grafts out again: all of them, or those called `names` (instance names: `cb`, `cb_2`) at every site.

    The model is then the host it was, bit for bit. Returns the paths of what was taken out.

    Raises:
        GraftSpecError: a name that no graft of this model has; nothing was taken out.
        HostError: a graft was folded into the host's weights, or stands in for modules whose own weights are not there
            (an exported folder holds none); nothing was taken out.
    """
    wanted = None if names is None else {names} if isinstance(names, str) else set(names)
    present = list(grafted(model))
    known = {name for _, _, name, _ in present}
    if wanted is not None and not wanted <= known:
        missing = sorted(wanted - known)
        raise GraftSpecError(f"no graft is called {missing[0]!r} here; there are {', '.join(sorted(known)) or 'none'}")
    for path, module, name, made in present:
        if wanted is None or name in wanted:
            _check_undo(f"{path}.grafts.{name}", module, made)
    removed = []
    for path, module, name, _ in present:
        if wanted is None or name in wanted:
            _take_out(module, name)
            removed.append(f"{path}.grafts.{name}" if path else f"grafts.{name}")
    for module in list(model.modules()):
        if isinstance(module, GraftedModule) and not module.in_use:
            restore(cast(nn.Module, module))
    return removed


def _check_undo(path: str, module: Any, graft: Graft) -> None:
    if graft.folded:
        raise HostError(
            f"{path} cannot be taken out: this model was folded for inference, and {graft.folded}. Load the model as it was "
            "exported without folding"
        )
    if graft.hook_point == "space" and not module.whole:
        raise HostError(
            f"{path} cannot be taken out: it stands in for {', '.join(module.detaches)} of the host, whose weights were not "
            "saved with this model. Load the host's own weights first (model.load_state_dict(weights, strict=False))"
        )


def _take_out(module: Any, name: str) -> None:
    graft = module.grafts.pop(name)
    if graft.hook_point == "space":
        module.restore_modules()
    for parameter in graft.frozen:
        heir = next((other for other in module.grafts.values() if parameter in other.unused.parameters), None)
        if heir is not None:  # another graft leaves it unused too: it unfreezes it in its turn
            heir.frozen = (*heir.frozen, parameter)
        else:
            module.get_parameter(parameter).requires_grad_(True)


def grafted(model: nn.Module) -> Iterator[tuple[str, Any, str, Graft]]:
    """What is grafted in `model`: (path of the module, the module, instance name, the graft)."""
    for path, module in model.named_modules():
        if isinstance(module, GraftedModule):
            for name, made in module.grafts.items():
                yield path, module, name, cast(Graft, made)
