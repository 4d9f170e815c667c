"""Host adapters of ELSA-Swin and ELSA-VOLO.

MLPs and VOLO's later stages accept grafts. ELSA's own attention accepts none, but `attngraft.record` can record it.
"""

from typing import Any, ClassVar

from torch import Tensor

from attngraft.hosts.adapter import random_images
from attngraft.hosts.family import BlockFamily, ShapeProbe, Sites
from attngraft.hosts.sites import refused_site, windowed
from attngraft.hosts.timm import mlp
from attngraft.hosts.timm.family import map_fields
from attngraft.hosts.timm.mlp import mlp_sites
from attngraft.hosts.timm.volo import TimmVolo
from attngraft.mechanisms.local.hadamard import HadamardAttention
from attngraft.models.elsa.blocks import Residual
from attngraft.models.elsa.swin import ElsaSwin
from attngraft.models.elsa.volo import ElsaVolo

_ELSEWHERE = "Grafts fit in its MLP; the attention can be recorded"
LOCAL = f"ELSA's attention computes its filters without a product of each query and key. {_ELSEWHERE}"
IN_WINDOWS = f"the window attention of ELSA-Swin's last stage follows its published code. {_ELSEWHERE}"


def _sites(block: Any, path: str, shapes: ShapeProbe) -> Sites:
    _, rows, columns, dim = shapes.input_shape(path)
    module = block.attn
    if isinstance(module, HadamardAttention):
        multiplier, addend = module.ghosts()
        ghosts = {"ghost_mul": multiplier, "ghost_add": addend}
        tensors = ["local_filters", *(name for name, matrices in ghosts.items() if matrices is not None)]
        why, window = LOCAL, None
    else:
        tensors, why, window = ["weights"], IN_WINDOWS, (module.window, module.window)
    attn, width = f"{path}.attn", dim // module.heads
    yield refused_site(
        attn,
        why,
        record_tensors=dict.fromkeys(tensors, attn),
        dim=dim,
        **windowed((rows, columns), window),
        heads=module.heads,
        key_width=width,
        value_width=width,
    )
    yield from mlp_sites(block.mlp, f"{path}.mlp", **map_fields(dim, rows, columns))


class ElsaSwinHost(BlockFamily):
    """Sites `layers.<i>.blocks.<j>.attn` (recording only) and `.mlp`.

    The recorded tensors are `local_filters`, `ghost_mul` and `ghost_add`; in the last stage, `weights`.
    """

    name = "elsa.swin"
    summary = "ELSA-Swin of any size (attngraft's own elsa_swin_tiny, ...): MLPs; its attention can be recorded"
    any_size: ClassVar = {}
    patched: ClassVar = {**mlp.PATCHED}
    models = (ElsaSwin,)
    blocks: ClassVar = {Residual: _sites}

    def example_inputs(self, model: Any, *, batch: int) -> tuple[Tensor, ...]:
        return random_images(model, (model.in_chans, *model.img_size), batch=batch)


class ElsaVoloHost(TimmVolo):
    """Sites `network.0.<j>.attn` (recording only) and `network.0.<j>.mlp`, and those of `TimmVolo` in later stages."""

    name = "elsa.volo"
    summary = "ELSA-VOLO (attngraft's own elsa_volo_d1, ...): sites as in VOLO; its own attention can be recorded"
    models = (ElsaVolo,)
    blocks: ClassVar = {**TimmVolo.blocks, Residual: _sites}
