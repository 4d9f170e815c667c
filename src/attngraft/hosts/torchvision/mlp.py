"""torchvision's MLP: a sequence of linear layer, activation, dropout, linear layer, dropout."""

from typing import Any

from torchvision.models.vision_transformer import MLPBlock
from torchvision.ops.misc import MLP

from attngraft.attention import MlpGeometry, plain_class
from attngraft.hosts.adapter import check_known
from attngraft.hosts.family import Sites
from attngraft.hosts.patched import StepMlp, TwoLinearEnds, patch_classes
from attngraft.hosts.sites import mlp_site


class SequentialMlp(TwoLinearEnds, StepMlp):
    """An MLP that is an `nn.Sequential`, with numbers as names of its children."""

    linear_names = ("0", "3")
    before_mid, after_mid = ("0", "1", "2"), ("3", "4")


PATCHED = patch_classes(SequentialMlp, MLP, MLPBlock, module=__name__)


def mlp_sites(module: Any, path: str, **fields: Any) -> Sites:
    """Yield the site of one of torchvision's MLPs; nothing if the class of the MLP is unknown.

    Raises:
        HostError: the MLP has norms or additional layers.
    """
    if plain_class(module) not in PATCHED:
        return
    check_known(module, path, arguments=("input", "x"), children=("0", "1", "2", "3", "4"))
    yield mlp_site(path, MlpGeometry(**fields, hidden=module._modules["3"].weight.shape[1]))
