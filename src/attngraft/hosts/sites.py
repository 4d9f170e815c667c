"""Constructors of sites for common modules, and helpers for the fields of their geometry."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from attngraft.attention import HOOK_POINTS, AttentionGeometry, HookPoint, MlpGeometry
from attngraft.hosts.adapter import Site, fused_rows, head_rows

#: hook points of attention without windows
GLOBAL: tuple[HookPoint, ...] = ("mix", "weights", "heads", "tokens", "attn.end")
MLP: tuple[HookPoint, ...] = ("mlp.front", "mlp.mid", "mlp.end")
NO_WINDOWS: Mapping[HookPoint, str] = {"attn.window": "its attention has no windows; use scope=image"}
NO_MIDDLE: Mapping[HookPoint, str] = {
    "mlp.mid": "its MLP is gated and has no plain hidden layer; use position=front or end"
}
_INSIDE: tuple[HookPoint, ...] = ("mix", "weights", "heads", "tokens", "attn.window")
_NOTHING: Mapping[HookPoint, str] = MappingProxyType({})


def global_site(
    path: str,
    geometry: AttentionGeometry,
    missing: Mapping[HookPoint, str] = _NOTHING,
    *,
    on_maps: bool = False,
    record_tensors: Mapping[str, str] = MappingProxyType({}),
) -> Site:
    """Return the site of attention without windows, with all hook points of `GLOBAL` not in `missing`.

    Args:
        on_maps: whether inputs and outputs of the module are maps, so that it also has hook point `space`.
        record_tensors: as in `Site`.
    """
    hook_points = (*GLOBAL, "space") if on_maps else GLOBAL
    targets: dict[HookPoint, str] = {hook_point: path for hook_point in hook_points if hook_point not in missing}
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
    """Return the site of window attention, with all hook points that are not in `missing`.

    Args:
        block: path of the block that merges the windows; None: the attention module merges them.
        fills: whether only the block can compute the mask of window padding, which grafts at `mix` require.
        space: path of the module with hook point `space`; None: the site has no such hook point.
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
    """Return the site of an MLP, with all hook points that are not in `missing`.

    Args:
        end: path of the module with hook point `mlp.end`; None: the MLP itself.
        layer: path of the layer that checks the attention mask for the MLP's grafts; None: no layer.
    """
    targets: dict[HookPoint, str] = {hook_point: path for hook_point in MLP if hook_point not in missing}
    if end is not None and "mlp.end" in targets:
        targets["mlp.end"] = end
    companions = {} if layer is None else dict.fromkeys(targets, (layer,))
    return Site(path=path, kind="mlp", geometry=geometry, targets=targets, missing=missing, companions=companions)


def refused_site(
    path: str,
    why: str,
    missing: Mapping[HookPoint, str] = _NOTHING,
    *,
    record_tensors: Mapping[str, str] = MappingProxyType({}),
    **geometry: Any,
) -> Site:
    """Return an attention site without hook points, with `why` as the reason unless `missing` has another.

    Args:
        record_tensors: as in `Site`.
        geometry: fields of `AttentionGeometry`; by default one head of width 0.
    """
    return Site(
        path=path,
        kind="attention",
        geometry=AttentionGeometry(**{"heads": 1, "key_width": 0, "value_width": 0, **geometry}),
        missing={**dict.fromkeys(HOOK_POINTS, why), **missing},
        record_tensors=record_tensors,
    )


def map_fields(dim: int, rows: int, columns: int, *, prefix: tuple[str, ...] = ()) -> dict[str, Any]:
    """Return the geometry fields of one sequence: the prefix tokens, then the tokens of the map."""
    return {"dim": dim, "tokens": len(prefix) + rows * columns, "prefix": prefix, "grid": (rows, columns)}


def windowed(grid: tuple[int, int], window: tuple[int, int] | None) -> dict[str, Any]:
    """Return the geometry fields of a map in zero-padded windows; `window` None: a single sequence."""
    rows, columns = window or grid
    return {
        "tokens": rows * columns,
        "sequences": -(-grid[0] // rows) * -(-grid[1] // columns),
        "grid": grid,
        "window": window,
    }


def fused_heads(module: Any, name: str = "qkv", *, heads: int | None = None) -> dict[str, Any]:
    """Return the geometry fields of heads from a fused projection: q of all heads, then k, then v.

    Args:
        name: name of the projection.
        heads: number of heads; None: `num_heads` of the module.
    """
    heads = module.num_heads if heads is None else heads
    rows = fused_rows(module, name, heads=heads)
    width = rows["q"][0].width
    return {"heads": heads, "key_width": width, "value_width": width, "rows": rows}


def projected_heads(
    module: Any,
    projections: Mapping[str, str | tuple[str, int]],
    *,
    heads: int | None = None,
    width: int,
    value_width: int | None = None,
    step: int | None = None,
) -> dict[str, Any]:
    """Return the geometry fields of the heads of attention with projections of any layout.

    Args:
        projections: `q`, `k`, `v` -> name of the projection, or (name, row of head 0).
        heads: number of heads; None: `num_heads` of the module.
        width: width of q and k per head.
        value_width: width of v per head; None: `width`.
        step: number of rows from the start of a head to the next; None: the width of a head.
    """
    heads = module.num_heads if heads is None else heads
    value_width = width if value_width is None else value_width
    rows = {}
    for role, projection in projections.items():
        name, start = (projection, 0) if isinstance(projection, str) else projection
        each = value_width if role == "v" else width
        rows[role] = head_rows(module, name, start=start, width=each, step=step or each)
    return {"heads": heads, "key_width": width, "value_width": value_width, "rows": rows}
