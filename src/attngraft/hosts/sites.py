"""What the sites of many families share: the hook points that they carry, and the fields of their geometry."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from attngraft.attention import AttentionGeometry, HookPoint, MlpGeometry
from attngraft.hosts.adapter import Site, fused_rows

#: an attention without windows
GLOBAL: tuple[HookPoint, ...] = ("mix", "weights", "heads", "tokens", "attn.end")
NO_WINDOWS: Mapping[HookPoint, str] = {"attn.window": "its attention has no windows; use scope=image"}
NO_MIDDLE: Mapping[HookPoint, str] = {
    "mlp.mid": "its MLP is gated and has no plain hidden layer; use position=front or end"
}
MLP: tuple[HookPoint, ...] = ("mlp.front", "mlp.mid", "mlp.end")
_INSIDE: tuple[HookPoint, ...] = ("mix", "weights", "heads", "tokens", "attn.window")
_NOTHING: Mapping[HookPoint, str] = {}


def global_site(
    path: str,
    geometry: AttentionGeometry,
    missing: Mapping[HookPoint, str] = _NOTHING,
    *,
    on_maps: bool = False,
    record_tensors: Mapping[str, str] = MappingProxyType({}),
) -> Site:
    """An attention without windows, whose module carries every hook point but those that are `missing`; `record_tensors` as of `Site`.

    Args:
        on_maps: whether it carries `space` too: maps enter and leave it.
    """
    hook_points = (*GLOBAL, "space") if on_maps else GLOBAL
    targets: dict[HookPoint, str] = dict.fromkeys(
        (hook_point for hook_point in hook_points if hook_point not in missing), path
    )
    missing = {**NO_WINDOWS, **missing}
    return Site(
        path=path, kind="attention", geometry=geometry, targets=targets, missing=missing, record_tensors=record_tensors
    )


def window_site(
    path: str,
    geometry: AttentionGeometry,
    *,
    block: str | None = None,
    fills: bool = False,
    space: str | None = None,
    missing: Mapping[HookPoint, str] = _NOTHING,
) -> Site:
    """An attention in windows, whose module carries every hook point but `attn.end` and those that are `missing`.

    Args:
        block: path of the block that puts the windows back; None: the attention does.
        fills: whether this block alone knows which tokens fill windows up.
        space: path of the module that carries `space`; None: none does.
    """
    end = path if block is None else block
    targets: dict[HookPoint, str] = {**dict.fromkeys(_INSIDE, path), "attn.end": end}
    if space is not None:
        targets["space"] = space
    return Site(
        path=path,
        kind="attention",
        geometry=geometry,
        targets={hook_point: target for hook_point, target in targets.items() if hook_point not in missing},
        missing=missing,
        companions={"mix": (end,)} if fills else {},
    )


def mlp_site(
    path: str,
    geometry: MlpGeometry,
    missing: Mapping[HookPoint, str] = _NOTHING,
    *,
    end: str | None = None,
    layer: str | None = None,
) -> Site:
    """An MLP, whose module carries every hook point but those that are `missing`.

    Args:
        end: path of the module that carries `mlp.end`; None: the MLP does.
        layer: path of the layer that knows of masks, which the MLP never sees; None: there is none.
    """
    targets: dict[HookPoint, str] = {hook_point: path for hook_point in MLP if hook_point not in missing}
    if end is not None and "mlp.end" in targets:
        targets["mlp.end"] = end
    told = {} if layer is None else dict.fromkeys(targets, (layer,))
    return Site(path=path, kind="mlp", geometry=geometry, targets=targets, missing=missing, companions=told)


def windowed(grid: tuple[int, int], window: tuple[int, int] | None) -> dict[str, Any]:
    """The fields of `AttentionGeometry` that follow from a map and its windows; None: the map is one sequence.

    Zeros fill up the last windows.
    """
    rows, columns = window or grid
    return {
        "tokens": rows * columns,
        "sequences": -(-grid[0] // rows) * -(-grid[1] // columns),
        "grid": grid,
        "window": window,
    }


def fused_heads(module: Any) -> dict[str, Any]:
    """The fields of an attention that projects to q of all heads, then k, then v, all of one width, by `qkv`."""
    rows = fused_rows(module, "qkv", heads=module.num_heads)
    width = rows["q"][0].width
    return {"heads": module.num_heads, "key_width": width, "value_width": width, "rows": rows}
