"""How a model of images is used away from its data."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from attngraft.tasks.images.inputs import HostInput
from attngraft.tasks.task import Serving


def image_serving(
    facts: Mapping[str, Any], *, model_data_config: Mapping[str, Any], activation: Literal["softmax", "sigmoid"]
) -> Serving:
    """What `Task.serving` returns for models of images, with evaluation's view as the input."""
    host = HostInput.from_model(model_data_config)
    return Serving(
        kind="images",
        input={
            "size": [host.channels, host.height, host.width],
            "mean": list(host.mean),
            "std": list(host.std),
            "interpolation": host.interpolation,
            "crop_pct": facts["input"]["eval_crop_pct"],  # decided by the size of the images it was trained on
            "crop_mode": host.crop_mode,
        },
        activation=activation,
        classes=tuple(facts["classes"]),
    )
