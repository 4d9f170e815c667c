"""ELSA-Swin and ELSA-VOLO (`attngraft.models.elsa`): MLPs take grafts, and VOLO's later stages do as in VOLO.

ELSA's own attention takes none, and offers what it does to `attngraft.record`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar, cast

from torch import Tensor, nn

from attngraft.attention import HOOK_POINTS, AttentionGeometry
from attngraft.hosts.adapter import HostAdapter, Site, norm_state, own_parameters, random_images
from attngraft.hosts.registry import register_host
from attngraft.hosts.sites import windowed
from attngraft.hosts.timm import mlp as timm_mlp
from attngraft.hosts.timm.attention import mlp_sites
from attngraft.hosts.timm.family import Look
from attngraft.hosts.timm.volo import TimmVolo

# a mechanism's layer, which here is the host's own module
from attngraft.mechanisms.local.hadamard import HadamardAttention

#: by name, since models are made of hosts and not the other way round
_MODELS = "attngraft.models.elsa"
SWIN, VOLO = f"{_MODELS}.swin.ElsaSwin", f"{_MODELS}.volo.ElsaVolo"
_ELSEWHERE = "Grafts stand in its MLP; what it does can be recorded"
LOCAL = f"ELSA's own attention makes its filters without queries meeting keys one by one. {_ELSEWHERE}"
IN_WINDOWS = f"the windows of ELSA-Swin's last stage are written out here as its published code has them. {_ELSEWHERE}"


class ElsaSwinHost(HostAdapter):
    """Sites `layers.<i>.blocks.<j>.attn`, with record_tensors alone (`local_filters`, `ghost_mul`, `ghost_add`; in the last stage
    `weights`), and `.mlp`."""

    name = "elsa.swin"
    summary = "ELSA-Swin of any size (attngraft's own elsa_swin_tiny, ...): MLPs; its attention can be recorded"
    patched: ClassVar = {**timm_mlp.PATCHED}

    def recognizes(self, model: nn.Module) -> bool:
        return _named(type(model)) == SWIN

    def sites(self, model: Any) -> list[Site]:
        return list(_sites(model))

    def example_inputs(self, model: Any, *, batch: int) -> tuple[Tensor, ...]:
        return random_images(model, (model.in_chans, *model.img_size), batch=batch)

    def parts(self, model: nn.Module) -> Mapping[str, tuple[str, ...]]:
        return {"head": own_parameters(model, "head"), "norms": norm_state(model)}


class ElsaVoloHost(TimmVolo):
    """Sites `network.0.<j>.attn`, with record_tensors alone, and `.mlp`; the rest is as `TimmVolo` says."""

    name = "elsa.volo"
    summary = "ELSA-VOLO (attngraft's own elsa_volo_d1, ...): as VOLO; its own attention can be recorded"

    def recognizes(self, model: nn.Module) -> bool:
        return _named(type(model)) == VOLO

    def _sites(self, model: nn.Module) -> Iterator[Site]:
        look = Look(self, model)
        for path, module in cast(Any, model).network[0].named_children():
            _, rows, columns, dim = look.entering(f"network.0.{path}")
            yield from _block(module, f"network.0.{path}", dim, (rows, columns))
        yield from super()._sites(model)


def _sites(model: Any) -> Iterator[Site]:
    for number, stage in model.layers.named_children():
        reduction = model.feature_info[int(number)]["reduction"]
        rows, columns = (-(-side // reduction) for side in model.img_size)
        for index, block in stage.blocks.named_children():
            dim = block.norm1.normalized_shape[0]
            yield from _block(block, f"layers.{number}.blocks.{index}", dim, (rows, columns))


def _block(block: Any, path: str, dim: int, grid: tuple[int, int]) -> Iterator[Site]:
    yield _attention(block.attn, f"{path}.attn", dim, grid)
    yield from mlp_sites(block.mlp, f"{path}.mlp", dim=dim, tokens=grid[0] * grid[1], grid=grid)


def _attention(module: Any, path: str, dim: int, grid: tuple[int, int]) -> Site:
    local = isinstance(module, HadamardAttention)
    size = None if local else (module.window, module.window)
    record_tensors = _filters(module) if local else ("weights",)
    geometry = AttentionGeometry(
        dim=dim,
        **windowed(grid, size),
        heads=module.heads,
        key_width=dim // module.heads,
        value_width=dim // module.heads,
    )
    missing = dict.fromkeys(HOOK_POINTS, LOCAL if local else IN_WINDOWS)
    return Site(
        path=path,
        kind="attention",
        geometry=geometry,
        targets={},
        missing=missing,
        record_tensors=dict.fromkeys(record_tensors, path),
    )


def _filters(module: HadamardAttention) -> tuple[str, ...]:
    multiplier, addend = module.ghosts()
    ghosts = {"ghost_mul": multiplier, "ghost_add": addend}
    return ("local_filters", *(name for name, matrices in ghosts.items() if matrices is not None))


def _named(kind: type[nn.Module]) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"


register_host(ElsaSwinHost())
register_host(ElsaVoloHost())
