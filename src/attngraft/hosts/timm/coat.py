"""timm's CoaT: factorized attention of four maps, one after the other, then side by side."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, ClassVar

from timm.models.coat import CoaT, ParallelBlock, SerialBlock

from attngraft.attention import CLASS, plain_class
from attngraft.hosts.adapter import Site, check_known
from attngraft.hosts.registry import register_host
from attngraft.hosts.timm import mlp as timm_mlp
from attngraft.hosts.timm.attention import mlp_sites
from attngraft.hosts.timm.family import Look, TimmFamily
from attngraft.hosts.timm.refused import linear_site

_SERIAL = ("cpe", "norm1", "factoratt_crpe", "drop_path", "norm2", "mlp")
_BRANCHES = (2, 3, 4)
_PARALLEL = (
    "drop_path",
    *(f"{name}{branch}" for branch in _BRANCHES for name in ("norm1", "norm2", "factoratt_crpe", "mlp")),
)


class TimmCoat(TimmFamily):
    """Sites `serial_blocks<i>.<j>.factoratt_crpe`, which no graft takes, and `.mlp`; in `parallel_blocks.<j>` an attention
    for each map (`factoratt_crpe2` to `4`) and `mlp2`, the one MLP that sees all three maps in turn."""

    name = "timm.coat"
    summary = "timm CoaT and CoaT-Lite of any size (MLP sites only)"
    patched: ClassVar = timm_mlp.PATCHED
    models = (CoaT,)
    blocks = (SerialBlock, ParallelBlock)

    def read(self, block: Any, path: str, look: Look) -> Iterable[Site]:
        shared: dict[str, Any] = {"prefix": CLASS}
        if plain_class(block) is SerialBlock:
            check_known(block, path, arguments=("x", "size"), children=_SERIAL)
            stage = int(path.partition(".")[0].removeprefix("serial_blocks"))
            rows, columns = getattr(look.model, f"patch_embed{stage}").grid_size
            shared |= {"dim": block.mlp.fc1.in_features, "tokens": 1 + rows * columns, "grid": (rows, columns)}
            yield linear_site(f"{path}.factoratt_crpe", **shared)
            yield from mlp_sites(block.mlp, f"{path}.mlp", **shared)
            return
        check_known(block, path, arguments=("x1", "x2", "x3", "x4", "sizes"), children=_PARALLEL)
        shared["dim"] = block.mlp2.fc1.in_features
        for branch in _BRANCHES:
            rows, columns = getattr(look.model, f"patch_embed{branch}").grid_size
            tokens = 1 + rows * columns
            yield linear_site(f"{path}.factoratt_crpe{branch}", tokens=tokens, grid=(rows, columns), **shared)
        yield from mlp_sites(block.mlp2, f"{path}.mlp2", **shared)  # of three numbers of tokens


register_host(TimmCoat())
