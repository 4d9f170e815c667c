"""torchvision's MLP: a sequence of linear layer, activation, dropout, linear layer, dropout."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, cast

from torch import Tensor, nn
from torchvision.models.vision_transformer import MLPBlock
from torchvision.ops.misc import MLP

from attngraft.anatomy import GraftedModule, LinearLayer, MlpGeometry, MlpSite, Stage
from attngraft.hosts.adapter import Site, check_known


class _Sequence(MlpSite):
    """The children are called by their number."""

    def __getitem__(self, index: int) -> Any:
        return cast(Any, self)._modules[str(index)]

    def hidden(self, x: Tensor) -> Tensor:
        return cast(Tensor, self[2](self[1](self[0](x))))

    def out(self, x: Tensor) -> Tensor:
        return cast(Tensor, self[4](self[3](x)))

    def linear_before(self, stage: Stage) -> LinearLayer | None:
        return cast(LinearLayer, self[3]) if stage == "mlp.end" else None

    def linear_after(self, stage: Stage) -> LinearLayer | None:
        index = {"mlp.front": 0, "mlp.mid": 3}.get(stage)
        return None if index is None else cast(LinearLayer, self[index])


class GraftedMLP(_Sequence, MLP):
    """`torchvision.ops.MLP` with one hidden layer."""


class GraftedMLPBlock(_Sequence, MLPBlock):
    """`torchvision.models.vision_transformer.MLPBlock`."""


RICHER: Mapping[type[nn.Module], type[GraftedModule]] = {MLP: GraftedMLP, MLPBlock: GraftedMLPBlock}
_KNOWN = {*RICHER, *RICHER.values()}


def mlp_sites(module: Any, path: str, **known: Any) -> Iterator[Site]:
    """The site that one of torchvision's MLPs is; none for an MLP of a class that we do not know.

    Raises:
        HostError: it has norms or more layers.
    """
    if type(module) not in _KNOWN:
        return
    check_known(module, path, arguments=("input", "x"), children=("0", "1", "2", "3", "4"))
    stages: tuple[Stage, ...] = ("mlp.front", "mlp.mid", "mlp.end")
    layer = module._modules["3"]
    yield Site(
        path=path,
        kind="mlp",
        geometry=MlpGeometry(**known, hidden=layer.weight.shape[1]),
        carriers=dict.fromkeys(stages, path),
    )
