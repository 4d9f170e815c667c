"""Attentions of `transformers` that turn queries and keys by the positions of their tokens."""

from __future__ import annotations

from types import ModuleType
from typing import Any, ClassVar, cast

from torch import Tensor

from attngraft.attention import Projected
from attngraft.hosts.hf.attention import ProjectedSite


class RotarySite(ProjectedSite):
    """The model makes (cos, sin) once and gives it to each layer."""

    rotary: ClassVar[ModuleType]  #: the host's own file, with its `apply_rotary_pos_emb`

    def project(
        self,
        x: Tensor,
        attention_mask: Tensor | None = None,
        position_embeddings: tuple[Tensor, Tensor] | None = None,
        **kwargs: Any,
    ) -> Projected:
        projected = super().project(x, attention_mask, **kwargs)
        q, k = self.rotary.apply_rotary_pos_emb(projected.q, projected.k, *cast(Any, position_embeddings))
        return projected._replace(q=q, k=k)
