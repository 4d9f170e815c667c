"""What dense models share: the pruned host, frozen norms, and images padded to multiples of 32."""

from collections.abc import Sequence
from typing import Any, Self

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from attngraft.attention import is_graft
from attngraft.errors import HostError
from attngraft.hosts import HostedModel
from attngraft.models.dense.levels import STRIDES


class DenseModel(HostedModel):
    """A host without its classifier, whose batch norms can be frozen, and modules around it."""

    def __init__(self, host: nn.Module) -> None:
        super().__init__(host)
        self.frozen_norms = False

    def freeze_norms(self) -> None:
        """Keep the host's batch norms in evaluation mode during training, without training their parameters."""
        self.frozen_norms = True
        for module in batch_norms(self.host):
            module.requires_grad_(False)

    def train(self, mode: bool = True) -> Self:
        """Set the mode of all modules but frozen batch norms."""
        super().train(mode)
        for module in batch_norms(self.host) if self.frozen_norms else ():
            module.eval()
        return self


def batch_norms(host: nn.Module) -> list[nn.Module]:
    """Return the host's own batch norms, without those of grafts."""
    norms = [(name, each) for name, each in host.named_modules() if isinstance(each, _BatchNorm)]
    return [module for name, module in norms if not is_graft(name)]


def padded_size(size: Sequence[int]) -> tuple[int, int]:
    """Return the height and width of padded images."""
    height, width = (-(-side // STRIDES[-1]) * STRIDES[-1] for side in size)
    return height, width


def prune(host: Any, indices: list[int]) -> None:
    """Remove what follows the last map: layers, final norm, class attention and classifier.

    What remains without use, such as the last latents of BiXT, is not trained.

    Raises:
        HostError: the host cannot be pruned.
    """
    try:
        host.prune_intermediate_layers(indices, prune_norm=True, prune_head=True)
        for module in getattr(host, "unused_by_tokens", lambda: ())():
            module.requires_grad_(False)
    except AttributeError:
        raise HostError(
            f"{type(host).__name__}: has no prune_intermediate_layers, which removes the unused classifier; use a timm host"
        ) from None
