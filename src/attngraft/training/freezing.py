"""Which parameters of a grafted host are trained, and how the frozen rest behaves meanwhile.

A frozen parameter has `requires_grad=False` before the first forward pass, so autograd computes nothing below the first
layer that is trained. A batch norm whose own parameters are frozen also keeps its running statistics, and normalizes
with them as in evaluation: a frozen host is the same function of each image, whatever the batch. Dropout and stochastic
depth stay as the recipe sets them.
"""

from __future__ import annotations

from torch import nn
from torch.nn.modules.batchnorm import _NormBase

from attngraft.attention import is_graft
from attngraft.errors import ConfigError, HostError
from attngraft.hosts import find_host
from attngraft.training.recipe import TRAINED, Parameters


def freeze(model: nn.Module, parameters: Parameters) -> None:
    """Train only `parameters` of `model`. What a graft has left without use stays untrained.

    Raises:
        ConfigError: there is nothing to train then, or it is not known where the head is.
    """
    if parameters == "all":
        return
    chosen = trained_names(model, parameters)
    refuse_nothing(chosen, parameters, field="train.parameters")
    for name, parameter in model.named_parameters():
        if name not in chosen:
            parameter.requires_grad_(False)


def refuse_nothing(names: set[str], parameters: str, *, field: str) -> None:
    """Refuse a choice under which nothing is trained.

    Raises:
        ConfigError: `names` is empty; says why and what to take instead.
    """
    if not names:
        missing = "the graft adds no parameters" if parameters == "grafts" else "the model has no head"
        raise ConfigError(
            f"{field}: with {parameters} there is nothing to train: {missing}; take grafts+head, head or all"
        )


def trained_names(model: nn.Module, parameters: Parameters) -> set[str]:
    """Names of the parameters that are trained under this choice, of those that are trained at all.

    Raises:
        ConfigError: it is not known where the head is.
    """
    names = [name for name, parameter in model.named_parameters() if parameter.requires_grad]
    wanted = TRAINED[parameters]
    if wanted == TRAINED["all"]:
        return set(names)
    head = head_prefixes(model) if "head" in wanted else ()
    return {name for name in names if ("grafts" in wanted and is_graft(name)) or name.startswith(head)}


def head_prefixes(model: nn.Module) -> tuple[str, ...]:
    """What the names of the head's parameters begin with: timm's classifier, else the adapter's `head`.

    Raises:
        ConfigError: neither timm nor an adapter says where the head is.
    """
    classifier = (getattr(model, "pretrained_cfg", None) or {}).get("classifier")
    if classifier:
        return tuple(f"{name}." for name in ([classifier] if isinstance(classifier, str) else classifier))
    try:
        host = find_host(model)
    except HostError as error:
        raise ConfigError(f"train.parameters: it is not known where the head of this model is: {error}") from None
    return tuple(host.adapter.parts(host.core)["head"])


def train_mode(model: nn.Module) -> None:
    """`model.train()`, but for batch norms that are frozen."""
    model.train()
    for module in frozen_norms(model):
        module.eval()


def frozen_norms(model: nn.Module) -> list[nn.Module]:
    """Normalizations with running statistics whose parameters are frozen; without any: where most of the host is."""
    norms = [(name, module) for name, module in model.named_modules() if isinstance(module, _NormBase)]
    if not norms:
        return []
    host = [p.requires_grad for name, p in model.named_parameters() if not is_graft(name)]
    host_is_frozen = 2 * sum(host) < len(host)
    frozen: list[nn.Module] = []
    for name, module in norms:
        own = [parameter.requires_grad for parameter in module.parameters(recurse=False)]
        if not any(own) and (own or (host_is_frozen and not is_graft(name))):
            frozen.append(module)
    return frozen
