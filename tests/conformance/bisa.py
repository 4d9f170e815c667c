"""Vectors of bi-directional attention."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from attngraft.attention.geometry import Projection
from attngraft.mechanisms.bisa import BidirectionalAttention, MixVariant, inverse_attention
from tests.conformance.vector import Builder, Built, Slot, Vector

#: a vector's parameter -> ours
NAMES = {
    "inverse_query": "both.inverse.query.linear",
    "inverse_value": "both.inverse.value.linear",
    "hyper": "both.inverse.transform.weight",
    "mlp.fc1": "both.inverse.transform.expand",
    "mlp.fc2": "both.inverse.transform.contract",
    "mix_logit": "both.logit",
    "query": "query.linear",
    "key": "key.linear",
    "value": "value.linear",
    "proj": "proj.linear",
}


class Biased(nn.Module):
    """The layer with the vector's learned position bias, if it has one, and the mask of shifted windows."""

    def __init__(self, vector: Vector) -> None:
        super().__init__()
        config = vector.config
        self.attention = attention(vector)
        kind = config.get("position_bias")
        self.window, self.regions = config.get("window"), config.get("window_regions")
        if kind == "full":
            self.position_bias = nn.Parameter(torch.zeros(vector.state_shapes["position_bias"]))
        elif kind == "table":
            self.position_bias_table = nn.Parameter(torch.zeros(vector.state_shapes["position_bias_table"]))
        self.kind = kind

    def bias(self) -> Tensor | None:
        found = None
        if self.kind == "full":
            found = self.position_bias.unsqueeze(0)
        elif self.kind == "table":
            found = self.position_bias_table[relative_rows(self.window)].permute(2, 0, 1).unsqueeze(0)
        if self.regions is not None:
            regions = torch.tensor(self.regions)
            mask = -100.0 * (regions.unsqueeze(1) != regions.unsqueeze(2)).unsqueeze(1)
            found = mask if found is None else found + mask.to(found.dtype)
        return found

    def forward(self, tokens: Tensor) -> Tensor:
        return self.attention(tokens, bias=self.bias())


def relative_rows(window: int) -> Tensor:
    """Return the table row of each query and key, by their offset, (N, N)."""
    place = torch.cartesian_prod(torch.arange(window), torch.arange(window))
    offset = place.unsqueeze(1) - place.unsqueeze(0) + window - 1
    return offset[..., 0] * (2 * window - 1) + offset[..., 1]


def variant(vector: Vector) -> MixVariant:
    config, kind = vector.config, vector.kind
    if kind in ("inverse_then_self", "self_then_inverse"):
        return MixVariant(order=kind)
    share = 0.0 if kind == "misa" else config["lambda"]
    return MixVariant(
        weight=0.5 if share == "learned" else share,
        learned=share == "learned",
        norm=config.get("instance_norm", False),
        transform=config.get("transform", "hyper"),
    )


def attention(vector: Vector) -> BidirectionalAttention:
    config = vector.config
    return BidirectionalAttention(
        config["dim"],
        config["num_heads"],
        key_dim=config["key_dim"],
        hyper_dim=config["hyper_dim"],
        value_dim=config["value_dim"],
        variant=variant(vector),
        mlp_hidden=config.get("mlp_hidden"),
        scale=config.get("scale"),
        projection=Projection(bias=config.get("bias", True)),
    )


def slot(key: str) -> Slot:
    for theirs, ours in NAMES.items():
        if key == theirs or key.startswith(f"{theirs}."):
            return Slot(f"attention.{ours}{key.removeprefix(theirs)}")
    return Slot(key)


def layer(vector: Vector) -> Built:
    module = Biased(vector)
    return Built(module, lambda tokens: {"tokens": module(tokens)}, slot)


def op(vector: Vector) -> Built:
    module = nn.Module()
    module.hyper = nn.Parameter(torch.zeros(vector.state_shapes["hyper"]))
    visible = None
    if "masked_pairs" in vector.config:
        visible = torch.ones(vector.config["masked_shape"], dtype=torch.bool)
        visible[tuple(torch.tensor(vector.config["masked_pairs"]).T)] = False

    def outputs(query: Tensor, key: Tensor, query_hat: Tensor, value_hat: Tensor) -> dict[str, Tensor]:
        scale = vector.config.get("scale")
        found = inverse_attention(query, key, query_hat, value_hat, module.hyper, visible=visible, scale=scale)
        return {"out": found}

    return Built(module, outputs)


BUILDERS: dict[str, Builder] = {
    "bisa": layer,
    "inverse_attention_op": op,
    "inverse_then_self": layer,
    "misa": layer,
    "self_then_inverse": layer,
}
