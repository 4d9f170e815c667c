"""Grafted models under transformers' Trainer: checkpoints that it resumes from and that `from_pretrained` reads."""

from __future__ import annotations

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
except ImportError:  # there is no Trainer to call it then, but the name is listed all the same
    TrainerCallback = object


class GraftCheckpoints(TrainerCallback):
    """What a `transformers.Trainer` needs to train a grafted model, stop, and go on as if it had not stopped.

        trainer = Trainer(model, arguments, train_dataset=data, callbacks=[attngraft.GraftCheckpoints()])
        trainer.train(resume_from_checkpoint=True)

    Every checkpoint gets `grafts.safetensors`, so that `attngraft.from_pretrained` reads it. And its weights are written
    under the names that the model has. Trainer itself writes names of older releases for some models (ViT is one), and
    finds none of them when it goes on or takes the best checkpoint at the end: it then warns of missing keys and trains
    from what the model holds. Weight decay is kept from moving what grafts leave unused (`attngraft.pin_unused`).

    Raises:
        UsageError: the weights are sharded (FSDP, DeepSpeed), a search over hyperparameters keeps its checkpoints elsewhere,
            or the one to go on from was cut off while it was written.
    """

    def __init__(self) -> None:
        self._pinned: Any = None  #: the optimizer whose steps are watched

    def on_train_begin(self, args: Any, state: Any, control: Any, **known: Any) -> None:
        """Refuse what would not be resumed; watch the optimizer."""
        model: nn.Module = known["model"]
        if getattr(args, "fsdp", None) or getattr(args, "deepspeed", None):
            raise UsageError(
                "GraftCheckpoints: sharded weights (FSDP, DeepSpeed) are not written to checkpoints with their grafts; "
                "train on one device or with DDP"
            )
        folder = _folder(args, state)
        if state.global_step and folder.is_dir() and _has_grafts(model) and not (folder / GRAFTS).is_file():
            raise UsageError(
                f"{folder}: there is no {GRAFTS}, so this checkpoint was cut off while it was written, or made without "
                "GraftCheckpoints, and Trainer may have found none of its weights; resume from an earlier one"
            )
        optimizer = known.get("optimizer")
        if optimizer is not None and optimizer is not self._pinned:
            pin_unused(getattr(optimizer, "optimizer", optimizer), model)  # accelerate's wrapper has no hooks
            self._pinned = optimizer

    def on_save(self, args: Any, state: Any, control: Any, **known: Any) -> None:
        """Complete the checkpoint that was just written; the grafts' file comes last, and says that it is whole."""
        model: Any = known["model"]
        if not args.should_save:
            return
        folder = _folder(args, state)
        if not folder.is_dir():
            raise UsageError(f"{folder}: is not there, and GraftCheckpoints knows no other place of a checkpoint")
        model.save_pretrained(str(folder), state_dict=model.state_dict(), save_original_format=False)
        if _has_grafts(model):
            write_atomically(folder / GRAFTS, graft_bytes(find_host(model)))


def _folder(args: Any, state: Any) -> Path:
    return Path(args.output_dir) / f"checkpoint-{state.global_step}"


def _has_grafts(model: nn.Module) -> bool:
    return any(True for _ in grafted(model))
