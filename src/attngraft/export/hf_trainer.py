"""Checkpoints of grafted models in transformers' Trainer, for resuming and for `from_pretrained`."""

import logging
from pathlib import Path
from typing import Any

from torch import nn

from attngraft.attention import is_graft
from attngraft.errors import UsageError
from attngraft.files import refuse_links, write_atomically
from attngraft.grafting.apply import grafted, pin_unused
from attngraft.grafting.io import graft_bytes, read_graft_file
from attngraft.hosts import find_host
from attngraft.models.transformers_folder import GRAFTS

log = logging.getLogger(__name__)

try:
    from transformers import TrainerCallback
except ImportError:  # the class can be imported without transformers
    TrainerCallback = object


class GraftCheckpoints(TrainerCallback):
    """Callback for `transformers.Trainer` that makes checkpoints of grafted models exactly resumable.

        trainer = Trainer(model, arguments, train_dataset=data, callbacks=[attngraft.GraftCheckpoints()])
        trainer.train(resume_from_checkpoint=True)

    It adds `grafts.safetensors` to each checkpoint, so that `attngraft.from_pretrained` can read it, and saves weights under
    the model's own parameter names. Without it, Trainer saves some models (ViT, for example) under the names of older
    releases and does not find them when it resumes or loads the best checkpoint: it warns of missing keys and continues
    with the weights in memory. Parameters that are unused because of grafts are protected from weight decay
    (`attngraft.pin_unused`). If all parameters of the grafts are frozen (peft.get_peft_model freezes them), training starts
    with a warning.

    Raises:
        UsageError: weights are sharded (FSDP, DeepSpeed), a hyperparameter search writes checkpoints to other folders, or
            the checkpoint to resume from is incomplete.
    """

    def __init__(self) -> None:
        self._pinned: Any = None  #: optimizer whose unused parameters are protected

    def on_train_begin(self, args: Any, state: Any, control: Any, **known: Any) -> None:
        """Raise an error if the run cannot be resumed, and protect unused parameters in the optimizer."""
        model: nn.Module = known["model"]
        if getattr(args, "fsdp", None) or getattr(args, "deepspeed", None):
            raise UsageError(
                "GraftCheckpoints: sharded weights (FSDP, DeepSpeed) are not supported; train on one device or with DDP"
            )
        folder = _folder(args, state)
        if state.global_step and folder.is_dir() and _has_grafts(model) and not (folder / GRAFTS).is_file():
            raise UsageError(
                f"{folder}: no {GRAFTS}, so this checkpoint is incomplete, or was made without GraftCheckpoints, and "
                "Trainer may not have loaded its weights; resume from an earlier one"
            )
        if state.global_step and (folder / GRAFTS).is_file():
            _restore(model, folder)
        parameters = [parameter for _, _, _, graft in grafted(model) for parameter in graft.parameters()]
        if parameters and not any(parameter.requires_grad for parameter in parameters):
            log.warning(
                "the grafts are not trained: all of their parameters are frozen. peft.get_peft_model freezes them; graft "
                "its result instead: attngraft.graft(get_peft_model(host, config), spec)"
            )
        optimizer = known.get("optimizer")
        if optimizer is not None and optimizer is not self._pinned:
            pin_unused(getattr(optimizer, "optimizer", optimizer), model)  # accelerate's wrapper has no hooks
            self._pinned = optimizer

    def on_train_end(self, args: Any, state: Any, control: Any, **known: Any) -> None:
        """Load the grafts of the best checkpoint, if Trainer loaded its adapter."""
        if args.load_best_model_at_end and state.best_model_checkpoint is not None:
            _restore(known["model"], Path(state.best_model_checkpoint))

    def on_save(self, args: Any, state: Any, control: Any, **known: Any) -> None:
        """Complete the checkpoint that was just written; the graft file comes last and marks it as complete."""
        model: Any = known["model"]
        if not args.should_save:
            return
        folder = _folder(args, state)
        if not folder.is_dir():
            raise UsageError(
                f"{folder}: Trainer did not write its checkpoint here, as in a hyperparameter search, which "
                "GraftCheckpoints does not support; remove this callback for the search"
            )
        refuse_links(folder)
        model.save_pretrained(str(folder), state_dict=model.state_dict(), save_original_format=False)
        if _has_grafts(model):
            write_atomically(folder / GRAFTS, graft_bytes(find_host(model)))


def _folder(args: Any, state: Any) -> Path:
    return Path(args.output_dir) / f"checkpoint-{state.global_step}"


def _restore(model: Any, folder: Path) -> None:
    """Load the grafts of a checkpoint into a PEFT model, of which Trainer loads only the adapter."""
    if not hasattr(model, "peft_config") or not _has_grafts(model):
        return
    host, (_, tensors) = find_host(model), read_graft_file(folder / GRAFTS)
    names = {host.adapter.canonical(name): name for name in host.core.state_dict() if is_graft(name)}
    if names.keys() != tensors.keys():
        raise UsageError(
            f"{folder / GRAFTS}: the grafts of the checkpoint differ from those of the model; graft the model as it was "
            "when the checkpoint was saved"
        )
    host.core.load_state_dict({names[name]: tensor for name, tensor in tensors.items()}, strict=False)


def _has_grafts(model: nn.Module) -> bool:
    return any(True for _ in grafted(model))
