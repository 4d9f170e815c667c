"""Parts of a model that are trained differently: the host, its head, and modules added by a task."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from torch import nn

from attngraft.errors import HostError
from attngraft.hosts.find import find_host
from attngraft.hosts.hosted import host_of


@dataclass(frozen=True, kw_only=True)
class ModelParts:
    """Head and new parts of a model, as paths of modules or parameters; the rest is the host."""

    head: tuple[str, ...]  #: trained by train.parameters=head, at the host's learning rates
    new: tuple[str, ...] = ()  #: trained with the head, at optimizer.new_lr_scale
    unknown: str = ""  #: why the head is unknown; empty if it is known

    def of(self, name: str) -> Literal["host", "head", "new"]:
        """Return the part to which the parameter `name` belongs."""
        return "new" if _is_in(name, self.new) else "head" if _is_in(name, self.head) else "host"


def model_parts(model: nn.Module) -> ModelParts:
    """Return the parts of a model; its head is named by timm's `classifier` or by the host's adapter.

    In a `HostedModel`, all modules outside of the host are new.
    """
    host, prefix = host_of(model)
    new = tuple(dict.fromkeys(name.partition(".")[0] for name, _ in model.named_parameters())) if prefix else ()
    new = tuple(name for name in new if name != "host")
    classifier = (getattr(host, "pretrained_cfg", None) or {}).get("classifier")
    if classifier:
        names = [classifier] if isinstance(classifier, str) else classifier
        return ModelParts(head=tuple(f"{prefix}{name}" for name in names), new=new)
    try:
        found = find_host(host)
    except HostError as error:
        return ModelParts(head=(), new=new, unknown="" if new else str(error))
    return ModelParts(head=tuple(f"{prefix}{name}" for name in found.adapter.parts(found.core)["head"]), new=new)


def _is_in(name: str, paths: Iterable[str]) -> bool:
    return any(name == path or name.startswith(f"{path}.") for path in paths)
