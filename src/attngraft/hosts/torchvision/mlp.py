"""torchvision's MLP: a sequence of linear layer, activation, dropout, linear layer, dropout."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, cast

from torch import Tensor, nn
from torchvision.models.vision_transformer import MLPBlock
from torchvision.ops.misc import MLP

from attngraft.attention import GraftedModule, MlpGeometry, MlpSite
from attngraft.hosts.adapter import Site, check_known
from attngraft.hosts.linear_ends import LinearEnds
from attngraft.hosts.sites import mlp_site


class _Sequence(LinearEnds, MlpSite):
    """The children are called by their number."""

    linear_names = ("0", "3")

    def __getitem__(self, index: int) -> Any:
        return cast(Any, self)._modules[str(index)]

    def hidden(self, x: Tensor) -> Tensor:
        return cast(Tensor, self[2](self[1](self[0](x))))

    def out(self, x: Tensor) -> Tensor:
        return cast(Tensor, self[4](self[3](x)))


class GraftedMLP(_Sequence, MLP):
    """`torchvision.ops.MLP` with one hidden layer."""


class GraftedMLPBlock(_Sequence, MLPBlock):
    """`torchvision.models.vision_transformer.MLPBlock`."""


PATCHED: Mapping[type[nn.Module], type[GraftedModule]] = {MLP: GraftedMLP, MLPBlock: GraftedMLPBlock}
_KNOWN = {*PATCHED, *PATCHED.values()}


def mlp_sites(module: Any, path: str, **known: Any) -> Iterator[Site]:
    """The site that one of torchvision's MLPs is; none for an MLP of a class that we do not know.

    Raises:
        HostError: it has norms or more layers.
    """
    if type(module) not in _KNOWN:
        return
    check_known(module, path, arguments=("input", "x"), children=("0", "1", "2", "3", "4"))
    yield mlp_site(path, MlpGeometry(**known, hidden=module._modules["3"].weight.shape[1]))
