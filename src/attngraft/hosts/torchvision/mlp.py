"""torchvision's MLP: a sequence of linear layer, activation, dropout, linear layer, dropout."""

from typing import Any, cast

from torch import Tensor
from torchvision.models.vision_transformer import MLPBlock
from torchvision.ops.misc import MLP

from attngraft.attention import MlpGeometry, MlpSite, plain_class
from attngraft.hosts.adapter import check_known
from attngraft.hosts.family import Sites
from attngraft.hosts.patched import TwoLinearEnds, patch_classes
from attngraft.hosts.sites import mlp_site


class SequentialMlp(TwoLinearEnds, MlpSite):
    """An MLP whose children are named by number."""

    linear_names = ("0", "3")

    def __getitem__(self, index: int) -> Any:
        return cast(Any, self)._modules[str(index)]

    def hidden(self, x: Tensor) -> Tensor:
        return cast(Tensor, self[2](self[1](self[0](x))))

    def out(self, x: Tensor) -> Tensor:
        return cast(Tensor, self[4](self[3](x)))


PATCHED = patch_classes(SequentialMlp, MLP, MLPBlock, module=__name__)


def mlp_sites(module: Any, path: str, **fields: Any) -> Sites:
    """Yield the site of one of torchvision's MLPs; none for an MLP of an unknown class.

    Raises:
        HostError: the MLP has norms or additional layers.
    """
    if plain_class(module) not in PATCHED:
        return
    check_known(module, path, arguments=("input", "x"), children=("0", "1", "2", "3", "4"))
    yield mlp_site(path, MlpGeometry(**fields, hidden=module._modules["3"].weight.shape[1]))
