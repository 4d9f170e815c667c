"""Grafted models under transformers' Trainer: stopped, resumed, and read from its checkpoints."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import attngraft
from attngraft.grafting.apply import unused_parts
from tests.contract.hf.hosts import TINY, transformers

GRAFTS = "horizontal + bisa@layers.0 + cb_s"
NAMES = {"grafts.safetensors", "config.json", "model.safetensors"}


def classifier(graft: str | None = GRAFTS) -> Any:
    torch.manual_seed(0)
    model = transformers.ViTForImageClassification(transformers.ViTConfig(**TINY, num_labels=5))
    if graft is not None:
        attngraft.graft(model, graft)
    return model


def examples(count: int = 12) -> list[dict[str, Any]]:
    images = torch.randn(count, 3, 16, 16, generator=torch.Generator().manual_seed(1))
    return [{"pixel_values": image, "labels": index % 5} for index, image in enumerate(images)]


def trainer(model: nn.Module, folder: Path, *, callbacks: tuple[Any, ...] = (), **settings: Any) -> Any:
    arguments = transformers.TrainingArguments(
        output_dir=str(folder),
        per_device_train_batch_size=2,
        per_device_eval_batch_size=4,
        num_train_epochs=1,
        learning_rate=0.01,
        report_to=[],
        use_cpu=True,
        disable_tqdm=True,
        **{"save_steps": 3, **settings},
    )
    return transformers.Trainer(
        model,
        arguments,
        train_dataset=examples(),
        eval_dataset=examples(4),
        callbacks=[attngraft.GraftCheckpoints(), *callbacks],
    )


class StopAfter(transformers.TrainerCallback):  # type: ignore[misc]
    """Stops a run after its first checkpoint, as somebody who turns the machine off."""

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        control.should_training_stop = True


def same(model: nn.Module, other: nn.Module | dict[str, Tensor]) -> bool:
    state = other.state_dict() if isinstance(other, nn.Module) else other
    mine = model.state_dict()
    return mine.keys() == state.keys() and all(torch.equal(mine[name], state[name]) for name in mine)


@pytest.mark.parametrize("graft", [GRAFTS, None])
def test_a_run_that_was_stopped_comes_to_the_same_weights(tmp_path: Path, graft: str | None) -> None:
    whole = classifier(graft)
    trainer(whole, tmp_path / "whole").train()

    trainer(classifier(graft), tmp_path / "cut", callbacks=(StopAfter(),)).train()
    assert sorted(path.name for path in (tmp_path / "cut").iterdir()) == ["checkpoint-3"]
    again = classifier(graft)
    if graft is not None:
        torch.manual_seed(7)
        for name, parameter in again.named_parameters():  # whatever a fresh model holds is not what it goes on from
            if ".grafts." in name:
                nn.init.normal_(parameter)
    trainer(again, tmp_path / "cut").train(resume_from_checkpoint=True)
    assert same(again, whole)
    assert (tmp_path / "cut" / "checkpoint-6" / "grafts.safetensors").exists() is (graft is not None)


def test_its_checkpoints_are_read(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    model = classifier()
    trainer(model, tmp_path, save_total_limit=1).train()
    (folder,) = tmp_path.iterdir()  # of two checkpoints the last
    assert folder.name == "checkpoint-6" and {path.name for path in folder.iterdir()} > NAMES
    caplog.clear()
    transformers.logging.enable_propagation()
    with caplog.at_level("WARNING"):
        again = attngraft.from_pretrained(folder)
    assert not caplog.records and not again.training
    assert type(again) is transformers.ViTForImageClassification
    assert same(again, model)
    attngraft.ungraft(again)
    host = transformers.AutoModelForImageClassification.from_pretrained(folder)
    assert same(again, host)


def test_the_best_checkpoint_is_taken_with_its_grafts(tmp_path: Path) -> None:
    model, seen = classifier(), []

    def measure(_: Any) -> dict[str, float]:
        seen.append({name: value.clone() for name, value in model.state_dict().items()})
        return {"turn": float(len(seen) == 1)}  # the first is the best

    run = trainer(
        model,
        tmp_path,
        save_steps=2,
        eval_steps=2,
        eval_strategy="steps",
        save_total_limit=2,
        load_best_model_at_end=True,
        metric_for_best_model="turn",
        greater_is_better=True,
    )
    run.compute_metrics = measure
    run.train()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["checkpoint-2", "checkpoint-6"]
    assert len(seen) == 3 and same(model, seen[0]) and not same(model, seen[2])
    assert same(attngraft.from_pretrained(run.state.best_model_checkpoint), seen[0])
    assert same(attngraft.from_pretrained(tmp_path / "checkpoint-6"), seen[2])
    attngraft.save_pretrained(run.model, tmp_path / "kept")
    assert same(attngraft.from_pretrained(tmp_path / "kept"), seen[0])


def test_what_a_graft_leaves_unused_is_not_decayed(tmp_path: Path) -> None:
    model = classifier("uniform_heads(count=1)@layers.0")
    parts = [part.clone() for _, part in unused_parts(model)]
    trainer(model, tmp_path, weight_decay=0.5, save_strategy="no").train()
    assert parts and all(torch.equal(now, before) for (_, now), before in zip(unused_parts(model), parts, strict=True))


def test_a_checkpoint_that_was_cut_off_is_refused(tmp_path: Path) -> None:
    trainer(classifier(), tmp_path, callbacks=(StopAfter(),)).train()
    (tmp_path / "checkpoint-3" / "grafts.safetensors").unlink()
    with pytest.raises(attngraft.AttngraftError, match=r"checkpoint-3: no grafts.safetensors.*earlier one"):
        trainer(classifier(), tmp_path).train(resume_from_checkpoint=True)


def test_sharded_weights_are_refused(tmp_path: Path) -> None:
    run = trainer(classifier(), tmp_path)
    run.args.fsdp = ["full_shard"]
    with pytest.raises(attngraft.AttngraftError, match=r"sharded weights .FSDP, DeepSpeed. .*DDP"):
        attngraft.GraftCheckpoints().on_train_begin(run.args, run.state, run.control, model=run.model)


def test_frozen_grafts_are_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    arguments, state = SimpleNamespace(output_dir=str(tmp_path)), SimpleNamespace(global_step=0)
    model = classifier()
    attngraft.GraftCheckpoints().on_train_begin(arguments, state, None, model=model)
    assert not caplog.messages
    attngraft.GraftCheckpoints().on_train_begin(arguments, state, None, model=model.requires_grad_(False))
    assert "the grafts are not trained: all of their parameters are frozen" in caplog.text
    attngraft.GraftCheckpoints().on_train_begin(arguments, state, None, model=classifier("cb").requires_grad_(False))
    assert len(caplog.messages) == 1  # cb has no parameters


def with_lora() -> Any:
    peft = pytest.importorskip("peft", reason="needs peft: pip install peft")
    torch.manual_seed(2)
    config = peft.LoraConfig(r=2, target_modules=["q_proj"], modules_to_save=["classifier"])
    model = peft.get_peft_model(classifier(graft=None), config)
    attngraft.graft(model, GRAFTS)
    return model


def test_lora_and_grafts_are_resumed(tmp_path: Path) -> None:
    whole = with_lora()
    trainer(whole, tmp_path / "whole").train()

    trainer(with_lora(), tmp_path / "cut", callbacks=(StopAfter(),)).train()
    again = with_lora()
    trainer(again, tmp_path / "cut").train(resume_from_checkpoint=True)
    assert same(again, whole)


def test_lora_and_grafts_of_the_best_checkpoint(tmp_path: Path) -> None:
    model = with_lora()
    seen: list[dict[str, Tensor]] = []

    def measure(_: Any) -> dict[str, float]:  # the first of two is the best
        seen.append({name: value.clone() for name, value in model.state_dict().items()})
        return {"turn": -float(len(seen))}

    best = {"load_best_model_at_end": True, "metric_for_best_model": "turn", "greater_is_better": True}
    run = trainer(model, tmp_path, eval_steps=3, eval_strategy="steps", **best)
    run.compute_metrics = measure
    run.train()
    assert len(seen) == 2 and same(model, seen[0]) and not same(model, seen[1])
