"""Folders of transformers with grafts beside."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import attngraft
from tests.contract.hf.hosts import TINY, off_zero, transformers
from tests.contract.tester import randomize

IMAGES = torch.randn(2, 3, 16, 16, generator=torch.Generator().manual_seed(0))


def classifier() -> Any:
    torch.manual_seed(0)
    return off_zero(transformers.ViTForImageClassification(transformers.ViTConfig(**TINY, num_labels=5))).eval()


def test_a_grafted_model_comes_back_and_the_host_without(tmp_path: Path, recwarn: Any, caplog: Any) -> None:
    model = classifier()
    plain = model(IMAGES).logits
    attngraft.graft(model, "bisa@layers.0 + horizontal + cb_s(init=1, at=both)")
    randomize(model, only_grafts=True)
    expected = model(IMAGES).logits
    attngraft.save_pretrained(model, tmp_path)

    again = attngraft.from_pretrained(tmp_path)
    assert type(again) is transformers.ViTForImageClassification and not again.training
    assert torch.equal(again(IMAGES).logits, expected)
    attngraft.ungraft(again)
    assert torch.equal(again(IMAGES).logits, plain)

    recwarn.clear()
    transformers.logging.enable_propagation()  # so that caplog sees what it says
    with caplog.at_level("WARNING"):
        host, report = transformers.AutoModelForImageClassification.from_pretrained(tmp_path, output_loading_info=True)
    assert torch.equal(host.eval()(IMAGES).logits, plain)
    assert not report["missing_keys"] and not report["unexpected_keys"]
    assert not [record.message for record in caplog.records if "keys" in record.message.lower()]
    assert not [warning for warning in recwarn if "graft" in str(warning.message)]


def test_precision_and_attention_are_passed_on(tmp_path: Path) -> None:
    model = classifier()
    attngraft.graft(model, "horizontal")
    attngraft.save_pretrained(model, tmp_path)
    again = attngraft.from_pretrained(tmp_path, dtype=torch.bfloat16, attn_implementation="eager")
    assert {p.dtype for p in again.parameters()} == {torch.bfloat16}
    assert again.config._attn_implementation == "eager"


def test_a_plain_model_leaves_no_grafts_of_another_behind(tmp_path: Path) -> None:
    model = classifier()
    attngraft.graft(model, "cb_s")
    attngraft.save_pretrained(model, tmp_path)
    attngraft.ungraft(model)
    attngraft.save_pretrained(model, tmp_path)
    assert (tmp_path / "config.json").exists() and not (tmp_path / "grafts.safetensors").exists()
    with pytest.raises(attngraft.GraftFileError, match="no grafts.safetensors next to config.json.*save_pretrained"):
        attngraft.from_pretrained(tmp_path)


def test_a_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(attngraft.GraftFileError, match="nowhere: not a folder"):
        attngraft.from_pretrained(tmp_path / "nowhere")


def test_what_is_no_model_of_transformers_is_refused(tmp_path: Path) -> None:
    with pytest.raises(attngraft.AttngraftError, match="Linear is not a transformers model.*save_grafts"):
        attngraft.save_pretrained(nn.Linear(2, 2), tmp_path)


def test_a_class_that_transformers_lacks_is_named(tmp_path: Path) -> None:
    model = classifier()
    attngraft.graft(model, "cb_s")
    attngraft.save_pretrained(model, tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, "architectures": ["ViTForCooking"]}))
    with pytest.raises(
        attngraft.AttngraftError, match=r"config\.json: no class in architectures \(ViTForCooking\).*model_class"
    ):
        attngraft.from_pretrained(tmp_path)
    again = attngraft.from_pretrained(tmp_path, model_class=transformers.ViTForImageClassification)
    assert torch.equal(again(IMAGES).logits, model(IMAGES).logits)
