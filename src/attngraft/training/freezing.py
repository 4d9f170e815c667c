"""Selection of a grafted host's trained parameters by epoch, and behavior of frozen modules.

A frozen parameter has `requires_grad=False` before the first forward pass, so autograd computes nothing below the first
layer that is trained. A batch norm whose own parameters are frozen also keeps its running statistics and normalizes with
them as in evaluation, so a frozen host's outputs for an image do not depend on the batch. Dropout and stochastic depth
remain as the recipe sets them.
"""

from collections.abc import Container

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm, _NormBase

from attngraft.attention import is_graft
from attngraft.errors import ConfigError
from attngraft.hosts import ModelParts, model_parts
from attngraft.training.recipe import TRAINED, Parameters, Recipe


def freeze(model: nn.Module, parameters: Parameters, parts: ModelParts | None = None) -> None:
    """Train only `parameters` of `model`. Parameters that a graft leaves unused stay untrained.

    Args:
        model: the model.
        parameters: as in `train.parameters` of the recipe.
        parts: from `Task.parts`; None: from `model_parts`.

    Raises:
        ConfigError: no parameter would be trained, or the head of the model is unknown.
    """
    if parameters == "all":
        return
    trained = trained_names(model, parameters, parts)
    _refuse_nothing(trained, parameters, field="train.parameters")
    for name, parameter in model.named_parameters():
        if name not in trained:
            parameter.requires_grad_(False)


def trained_names(model: nn.Module, parameters: Parameters, parts: ModelParts | None = None) -> set[str]:
    """Return the names of the parameters to train; `head` includes modules added by the task.

    Raises:
        ConfigError: the head of the model is unknown.
    """
    names = {name for name, parameter in model.named_parameters() if parameter.requires_grad}
    selected = TRAINED[parameters]
    if selected == TRAINED["all"]:
        return names
    trained = {name for name in names if is_graft(name)} if "grafts" in selected else set()
    if "head" in selected:
        parts = parts or model_parts(model)
        if parts.unknown:
            raise ConfigError(
                "train.parameters: the head of this model is unknown; set model.pretrained_cfg['classifier'] to the name of "
                f"its last layer, or train all parameters. {parts.unknown}"
            )
        trained |= {name for name in names if parts.of(name) != "host"}
    return trained


def _refuse_nothing(names: set[str], parameters: str, *, field: str) -> None:
    if not names:
        missing = "the graft adds no parameters" if parameters == "grafts" else "the model has no head"
        raise ConfigError(f"{field}: {parameters} leaves nothing to train: {missing}; use grafts+head, head or all")


class FreezingSchedule:
    """The trained parameters of each stage of a run.

    The optimizer has the parameters of all stages from the start. Parameters that a stage does not train have no gradient,
    so optimizers skip them, weight decay included. Does nothing if all stages train the same parameters.

    Raises:
        ConfigError: a stage has nothing to train, or the head of the model is unknown.
    """

    def __init__(self, model: nn.Module, recipe: Recipe | None = None, parts: ModelParts | None = None) -> None:
        every = {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
        self._parameters: dict[str, nn.Parameter] = {}
        self._frozen: list[set[str]] = []  # by stage
        for stage in () if recipe is None else recipe.all_stages:
            if stage.parameters is None:
                self._frozen.append(set())
                continue
            trained = trained_names(model, stage.parameters, parts)
            where = "train.first" if recipe is not None and recipe.train.first else f"stages.{stage.name}"
            _refuse_nothing(trained, stage.parameters, field=f"{where}.parameters")
            self._frozen.append(every.keys() - trained)
        if any(self._frozen):
            self._parameters = every

    def enter(self, stage: int) -> None:
        """Set `requires_grad` of all parameters for a stage (from 0)."""
        for name, parameter in self._parameters.items():
            parameter.requires_grad_(name not in self._frozen[stage])

    def enter_trained(self, trained: Container[str]) -> None:
        """Set `requires_grad` only for `trained`, the parameters with optimizer states in a checkpoint."""
        for name, parameter in self._parameters.items():
            parameter.requires_grad_(name in trained)


def train_mode(model: nn.Module) -> None:
    """Call `model.train()`, then put frozen batch norms back into evaluation mode."""
    model.train()
    for module in frozen_norms(model):
        module.eval()


def frozen_norms(model: nn.Module) -> list[nn.Module]:
    """Return the normalizations with running statistics whose parameters are frozen.

    Normalizations without parameters count as frozen if most of the host's parameters are frozen.
    """
    norms = [(name, module) for name, module in model.named_modules() if isinstance(module, _NormBase)]
    if not norms:
        return []
    host = [p.requires_grad for name, p in model.named_parameters() if not is_graft(name)]
    host_is_frozen = 2 * sum(host) < len(host)
    frozen: list[nn.Module] = []
    for name, module in norms:
        trained = [parameter.requires_grad for parameter in module.parameters(recurse=False)]
        if not any(trained) and (trained or (host_is_frozen and not is_graft(name))):
            frozen.append(module)
    return frozen


def trained_batch_norms(model: nn.Module) -> list[nn.Module]:
    """Return the batch norms that normalize by the batch during training: all except the frozen ones."""
    frozen = set(frozen_norms(model))
    return [module for module in model.modules() if isinstance(module, _BatchNorm) and module not in frozen]


def batch_norm_examples(model: nn.Module, recipe: Recipe, *, processes: int) -> int | None:
    """Return the number of examples in a batch norm's statistics; None if all of an update's, or no batch norms.

    In training, a batch norm uses mean and variance of one micro-batch in one process. Apart from random draws, this is
    the only effect of cutting a batch into micro-batches.
    """
    norms, train = trained_batch_norms(model), recipe.train
    if not norms:
        return None
    synchronized = all(isinstance(norm, nn.SyncBatchNorm) for norm in norms)
    parts = train.accumulate * (1 if synchronized else processes)
    return train.batch_size // parts if parts > 1 else None
