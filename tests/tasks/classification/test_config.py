"""The task section: what is read, and what every refusal says."""

from __future__ import annotations

from typing import Any

import pytest

from attngraft.errors import ConfigError
from attngraft.tasks.classification import Classification


def _read(**sections: Any) -> Classification:
    sections.setdefault("data", {"source": "digits"})
    return Classification.from_config(sections, seed=0)


def test_defaults_and_the_name_of_the_task() -> None:
    task = _read(name="classification")
    assert task.config.augment.crop == "auto"
    assert task.config.loss.smoothing == 0.1
    assert not task.config.augment.mixes


@pytest.mark.parametrize("policy", ["rand-m9-mstd0.5-inc1", "3a", "original", "v0-mstd0.5", "augmix-m5-w4-d2"])
def test_policies_of_timm_are_taken(policy: str) -> None:
    assert _read(augment={"auto_augment": policy}).config.augment.auto_augment == policy


@pytest.mark.parametrize(
    ("sections", "message"),
    [
        ({"data": {}}, r"task\.data\.source: missing"),
        ({"data": None}, r"task\.data: expected a section"),
        (
            {"dta": {}},
            r"task\.dta: unknown field \(did you mean data\?\); allowed: data, augment, loss, metrics, sampling",
        ),
        (
            {"data": {"source": "x", "val_fractoin": 1}},
            r"task\.data\.val_fractoin: unknown field \(did you mean val_fr",
        ),
        ({"loss": {"class_weights": "balnced"}}, r"task\.loss\.class_weights: 'balnced' is not a choice"),
        ({"loss": {"class_weights": {"a": -1}}}, r"task\.loss\.class_weights: must not be negative, got -1.0 for 'a'"),
        ({"loss": {"class_weights": {}}}, r"task\.loss\.class_weights: is empty"),
        ({"loss": {"effective_beta": 1.0}}, r"task\.loss\.effective_beta: must lie between 0 and 1"),
        ({"sampling": "even"}, r"task\.sampling: 'even' is not a choice.*balanced, sqrt"),
        ({"data": {"source": 3}}, r"task\.data\.source: expected text, found 3"),
        ({"data": {"source": " "}}, r"task\.data\.source: is empty"),
        ({"data": {"source": "x", "val_fraction": 1.0}}, r"task\.data\.val_fraction: must lie between 0\.000001 and 1"),
        ({"data": {"source": "x", "val_fraction": 5e-324}}, r"task\.data\.val_fraction: must lie between 0\.000001"),
        ({"data": {"source": "x", "split_seed": 2**32}}, r"task\.data\.split_seed: must lie between 0 and 2\^32 - 1"),
        (
            {"data": {"source": "x", "val_fraction": 0.1, "val_split": "v"}},
            r"val_fraction: cannot be combined with val_split.* only one",
        ),
        ({"data": {"source": "x", "split_seed": -1}}, r"task\.data\.split_seed: must lie between 0 and 2"),
        ({"data": {"source": "x", "classes": ["a", "a"]}}, r"task\.data\.classes: contains a class twice"),
        ({"data": {"source": "x", "classes": ["a"]}}, r"task\.data\.classes: must name at least two"),
        ({"augment": {"crop": "random"}}, r"task\.augment\.crop: 'random' is not a choice.*auto, resized, pad, center"),
        ({"augment": {"hflip": 2}}, r"task\.augment\.hflip: must be a probability"),
        ({"augment": {"mixup": -0.1}}, r"task\.augment\.mixup: must not be negative"),
        ({"augment": {"scale": [0.5, 0.2]}}, r"task\.augment\.scale: must be two increasing positive numbers up to 1"),
        ({"augment": {"ratio": [0, 1]}}, r"task\.augment\.ratio: must be two increasing positive numbers; got"),
        ({"augment": {"padding": -1}}, r"task\.augment\.padding: must not be negative"),
        ({"augment": {"repeats": 0}}, r"task\.augment\.repeats: must lie between 1 and 1000"),
        ({"augment": {"erasing_mode": "noise"}}, r"task\.augment\.erasing_mode: 'noise' is not a choice"),
        (
            {"augment": {"color_jitter": [0.1, 0.2]}},
            r"task\.augment\.color_jitter: must be one strength, or three or four",
        ),
        ({"augment": {"mix_off_epoch": -1}}, r"task\.augment\.mix_off_epoch: must not"),
        ({"augment": {"interpolation": "cubic"}}, r"task\.augment\.interpolation: unknown 'cubic'"),
        ({"augment": {"interpolation": "random", "crop": "pad"}}, r"interpolation: random requires crop=resized"),
        ({"augment": {"auto_augment": "rnad-m9"}}, r"task\.augment\.auto_augment: timm cannot read 'rnad-m9'"),
        ({"augment": {"auto_augment": "rand-q9"}}, r"task\.augment\.auto_augment: timm cannot read 'rand-q9'"),
        ({"loss": {"name": "focal"}}, r"task\.loss\.name: 'focal' is not a choice.*cross_entropy, bce"),
        ({"loss": {"smoothing": 1}}, r"task\.loss\.smoothing: must lie in"),
        ({"loss": {"target_threshold": 0.2}}, r"task\.loss\.target_threshold: applies to loss bce"),
        ({"loss": {"sum_classes": True}}, r"task\.loss\.sum_classes: applies to loss bce"),
        ({"metrics": {"predictions": "all"}}, r"task\.metrics\.predictions: 'all' is not a choice"),
    ],
)
def test_refusals_name_the_field(sections: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        _read(**sections)
