"""T2T-ViT (`attngraft.models.t2t_vit`): the blocks of its backbone are timm's; the tokens-to-token module takes no graft."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

from torch import Tensor, nn

from attngraft.attention import CLASS, HOOK_POINTS, AttentionGeometry
from attngraft.hosts.adapter import HostAdapter, Site, norm_state, own_parameters, random_images
from attngraft.hosts.registry import register_host
from attngraft.hosts.sites import NO_WINDOWS
from attngraft.hosts.timm.attention import PATCHED, block_sites

#: by name, since models are made of hosts and not the other way round
MODEL = "attngraft.models.t2t_vit.T2TViT"
NO_SITE = (
    "it is part of the tokens-to-token module, whose attentions have one head and narrow their tokens (a performer's has no "
    "map either); grafts stand on the blocks of the backbone (blocks.*), as in the papers"
)


class T2T(HostAdapter):
    """Sites `blocks.<i>.attn` and `blocks.<i>.mlp`; `tokens_to_token.attention1` and `2` say why they take nothing."""

    name = "t2t_vit"
    summary = "T2T-ViT of any size (attngraft's own t2t_vit_14, t2t_vit_t_14, ...): the blocks of its backbone"
    patched: ClassVar = PATCHED

    def recognizes(self, model: nn.Module) -> bool:
        return f"{type(model).__module__}.{type(model).__qualname__}" == MODEL

    def sites(self, model: Any) -> list[Site]:
        return list(self._sites(model))

    def _sites(self, model: Any) -> Iterator[Site]:
        module = model.tokens_to_token
        for name, (rows, columns) in zip(("attention1", "attention2"), module.grids, strict=False):
            geometry = AttentionGeometry(
                dim=module.token_width, heads=1, key_width=0, value_width=0, tokens=rows * columns, grid=(rows, columns)
            )
            missing = {**dict.fromkeys(HOOK_POINTS, NO_SITE), **NO_WINDOWS}
            yield Site(path=f"tokens_to_token.{name}", kind="attention", geometry=geometry, targets={}, missing=missing)
        rows, columns = module.grid_size
        for name, block in model.blocks.named_children():
            yield from block_sites(
                block,
                f"blocks.{name}",
                dim=model.embed_dim,
                tokens=len(CLASS) + rows * columns,
                prefix=CLASS,
                grid=(rows, columns),
            )

    def example_inputs(self, model: Any, *, batch: int) -> tuple[Tensor, ...]:
        return random_images(model, (model.in_chans, *model.tokens_to_token.img_size), batch=batch)

    def parts(self, model: nn.Module) -> Mapping[str, tuple[str, ...]]:
        return {"head": own_parameters(model, "head"), "norms": norm_state(model)}


register_host(T2T())
