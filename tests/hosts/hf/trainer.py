"""Train a grafted model with transformers' Trainer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from tests.contract.hf.hosts import transformers


def trained(model: Any, data: list[dict[str, Any]], folder: Path, *, steps: int = 1) -> set[str]:
    """Train `model` on all of `data` in each step, with gradient checkpointing; return the names of changed parameters."""
    before = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    arguments = transformers.TrainingArguments(
        output_dir=str(folder),
        max_steps=steps,
        per_device_train_batch_size=len(data),
        learning_rate=0.1,
        gradient_checkpointing=True,
        report_to=[],
        use_cpu=True,
        disable_tqdm=True,
        save_strategy="no",
    )
    transformers.Trainer(model=model, args=arguments, train_dataset=data).train()
    return {name for name, parameter in model.named_parameters() if not torch.equal(parameter, before[name])}
