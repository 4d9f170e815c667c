"""Checkpoints of grafted models in transformers' Trainer, which it resumes from and `from_pretrained` reads."""

from pathlib import Path
from typing import Any

from torch import nn

from attngraft.errors import UsageError
from attngraft.files import write_atomically
from attngraft.grafting.apply import grafted, pin_unused
from attngraft.grafting.io import graft_bytes
from attngraft.hosts import find_host
from attngraft.models.transformers_folder import GRAFTS

try:
    from transformers import TrainerCallback
except ImportError:  # the class is listed without transformers as well
    TrainerCallback = object


class GraftCheckpoints(TrainerCallback):
    """Callback for `transformers.Trainer` that makes checkpoints of grafted models exactly resumable.

        trainer = Trainer(model, arguments, train_dataset=data, callbacks=[attngraft.GraftCheckpoints()])
        trainer.train(resume_from_checkpoint=True)

    Every checkpoint gets `grafts.safetensors`, so that `attngraft.from_pretrained` can read it, and weights under the
    model's own names. Trainer alone saves some models (ViT, for example) under names of older releases and does not find
    them on resume or when it loads the best checkpoint: it warns of missing keys and continues from the weights in memory.
    Parameters that grafts leave unused are protected from weight decay (`attngraft.pin_unused`).

    Raises:
        UsageError: sharded weights (FSDP, DeepSpeed), a hyperparameter search with checkpoints in other folders, or an
            incomplete checkpoint to resume from.
    """

    def __init__(self) -> None:
        self._pinned: Any = None  #: the optimizer with protected parameters

    def on_train_begin(self, args: Any, state: Any, control: Any, **known: Any) -> None:
        """Refuse runs that could not resume, and protect unused parameters in the optimizer."""
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
        optimizer = known.get("optimizer")
        if optimizer is not None and optimizer is not self._pinned:
            pin_unused(getattr(optimizer, "optimizer", optimizer), model)  # accelerate's wrapper has no hooks
            self._pinned = optimizer

    def on_save(self, args: Any, state: Any, control: Any, **known: Any) -> None:
        """Complete the checkpoint that was just written; the graft file is last and marks it as complete."""
        model: Any = known["model"]
        if not args.should_save:
            return
        folder = _folder(args, state)
        if not folder.is_dir():
            raise UsageError(
                f"{folder}: missing; GraftCheckpoints supports only checkpoints in this folder (no hyperparameter search)"
            )
        model.save_pretrained(str(folder), state_dict=model.state_dict(), save_original_format=False)
        if _has_grafts(model):
            write_atomically(folder / GRAFTS, graft_bytes(find_host(model)))


def _folder(args: Any, state: Any) -> Path:
    return Path(args.output_dir) / f"checkpoint-{state.global_step}"


def _has_grafts(model: nn.Module) -> bool:
    return any(True for _ in grafted(model))
