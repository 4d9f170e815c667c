"""Third-party grafts for tests, one for each kind of hook point."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from attngraft.attention import AttentionGeometry, Geometry, Graft, GraftType, HookPoint, MlpGeometry, Unused
from attngraft.mechanisms.registry import register_graft


class Scale(Graft):
    """Multiplies what stands at its stage by a vector over the last axis."""

    def __init__(self, width: int, start: float) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.full((width,), start))

    def forward(self, value: Tensor, x: Tensor | None = None) -> Tensor:
        return value * self.scale


@dataclass(frozen=True)
class ScaleOptions:
    stage: Literal["heads", "tokens", "attn.end", "attn.window", "mlp.front", "mlp.mid", "mlp.end"] = "tokens"
    start: float = 1.0


class ToyScale(GraftType[ScaleOptions]):
    name = "toy_scale"
    summary = "multiplies by a vector"
    source = "tests"
    Options = ScaleOptions

    def hook_points(self, options: ScaleOptions) -> tuple[HookPoint, ...]:
        return (options.stage,)

    def build(self, geometry: Geometry, hook_point: HookPoint, options: ScaleOptions) -> Scale:
        width = geometry.value_width if hook_point == "heads" else geometry.width(hook_point)
        return Scale(width, options.start)

    def starts_as_identity(self, options: ScaleOptions) -> bool:
        return options.start == 1.0


class ToyOther(ToyScale):
    """The same under another name, to stack on whatever is tested."""

    name = "toy_other"


class Flatten(Graft):
    """Mixes the attention map with the uniform one."""

    def __init__(self) -> None:
        super().__init__()
        self.share = nn.Parameter(torch.tensor(0.25))

    def forward(self, weights: Tensor, visible: Tensor | None) -> Tensor:
        seen = torch.ones_like(weights) if visible is None else visible.to(weights.dtype).expand_as(weights)
        return torch.lerp(weights, seen / seen.sum(-1, keepdim=True), self.share)


class ToyFlatten(GraftType[object]):
    name = "toy_flatten"
    summary = "mixes the map with a flat one"
    source = "tests"

    def hook_points(self, options: object) -> tuple[HookPoint, ...]:
        return ("weights",)

    def build(self, geometry: Geometry, hook_point: HookPoint, options: object) -> Flatten:
        return Flatten()


class Squared(Graft):
    """Two steps along the attention map instead of one."""

    def forward(self, weights: Tensor, visible: Tensor | None) -> Tensor:
        return weights @ weights


class ToySquared(GraftType[object]):
    name = "toy_squared"
    summary = "multiplies the map by itself"
    source = "tests"

    def hook_points(self, options: object) -> tuple[HookPoint, ...]:
        return ("weights",)

    def build(self, geometry: Geometry, hook_point: HookPoint, options: object) -> Squared:
        return Squared()


class ValuesOnly(Graft):
    """Each token keeps its own value: queries and keys are not used at all."""

    def forward(self, weights: Tensor, visible: Tensor | None) -> Tensor:
        return torch.eye(*weights.shape[-2:], dtype=weights.dtype, device=weights.device).expand_as(weights)


class ToyValuesOnly(GraftType[object]):
    name = "toy_values_only"
    summary = "leaves queries and keys unused"
    source = "tests"

    def hook_points(self, options: object) -> tuple[HookPoint, ...]:
        return ("weights",)

    def build(self, geometry: Geometry, hook_point: HookPoint, options: object) -> ValuesOnly:
        return ValuesOnly()

    def refusal(self, geometry: Geometry, hook_point: HookPoint, options: object) -> str | None:
        return "queries and keys differ here" if isinstance(geometry, MlpGeometry) else None

    def unused(self, geometry: Geometry, hook_point: HookPoint, options: object) -> Unused:
        assert isinstance(geometry, AttentionGeometry)
        rows = geometry.head_rows("q", 0, geometry.heads) + geometry.head_rows("k", 0, geometry.heads)
        return Unused(parameters=geometry.query_key_parameters, rows=rows)


@dataclass(frozen=True)
class WordOptions:
    """Every kind of value that an option may have."""

    text: str = "it's"
    maybe: str | None = None
    kind: Literal["two words", "none", "true", "1", "a\\'b", "plain"] = "two words"
    number: int | None = 3
    share: float | None = None
    switch: bool | None = None


class ToyWords(GraftType[WordOptions]):
    """Does nothing; the specification language is fuzzed with what it leaves open."""

    name = "toy_words"
    summary = "leaves everything as it is"
    source = "tests"
    Options = WordOptions

    def hook_points(self, options: WordOptions) -> tuple[HookPoint, ...]:
        return ("tokens",)

    def build(self, geometry: Geometry, hook_point: HookPoint, options: WordOptions) -> Scale:
        return Scale(geometry.width(hook_point), 1.0)

    def starts_as_identity(self, options: WordOptions) -> bool:
        return True


for toy in (ToyScale(), ToyOther(), ToyFlatten(), ToyValuesOnly(), ToyWords(), ToySquared()):
    register_graft(toy)
