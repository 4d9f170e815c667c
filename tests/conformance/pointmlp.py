"""Vectors of PointMLP's layers, which form BiXT's point-cloud models."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from attngraft.models.points.layers import AffineGroup, FeaturePropagation, Stage
from tests.conformance.vector import Builder, Built, Vector


def grouping(vector: Vector) -> dict[str, Any]:
    config = vector.config
    return {
        "anchors": config["groups"],
        "neighbors": config["kneighbors"],
        "normalize": config["normalize"],
        "use_xyz": config["use_xyz"],
    }


def grouper(vector: Vector) -> Built:
    module = AffineGroup(vector.config["channel"], **grouping(vector))

    def outputs(xyz: Tensor, points: Tensor) -> dict[str, Tensor]:
        anchors, groups = module(xyz, points)
        return {"anchor_xyz": anchors, "group_max": groups.amax(dim=2), "group_mean": groups.mean(dim=2)}

    return Built(module, outputs)


def stage(vector: Vector) -> Built:
    config = vector.config
    module = Stage(
        config["channel"],
        config["out_channels"],
        **grouping(vector),
        pre_blocks=config["pre_blocks"],
        pos_blocks=config["pos_blocks"],
        bias=config["bias"],
    )

    def outputs(xyz: Tensor, points: Tensor) -> dict[str, Tensor]:
        anchors, groups = module.grouper(xyz, points)
        whole = module(xyz, points)[1]
        return {"anchor_xyz": anchors, "pre": module.pre(groups), "pos": whole.transpose(1, 2)}

    return Built(module, outputs)


def feature_propagation(vector: Vector) -> Built:
    config = vector.config
    bias = vector.has("fuse.net.0.bias")
    module = FeaturePropagation(config["in_channel"], config["out_channel"], blocks=config["blocks"], bias=bias)

    def outputs(xyz_fine: Tensor, xyz_coarse: Tensor, feat_fine: Tensor, feat_coarse: Tensor) -> dict[str, Tensor]:
        found = module(xyz_fine, xyz_coarse, feat_fine.transpose(1, 2), feat_coarse.transpose(1, 2))
        return {"features": found.transpose(1, 2)}

    return Built(module, outputs)


BUILDERS: dict[str, Builder] = {
    "pointmlp_feature_propagation": feature_propagation,
    "pointmlp_grouper": grouper,
    "pointmlp_stage": stage,
}
