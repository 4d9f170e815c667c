"""Attention that no adapter reads: what it is, and why it is not the sentence that grafts stand in."""

from __future__ import annotations

from collections.abc import Mapping

from torch import nn

_CONV_ATTENTION = (
    "convolutions shrink its map before queries, keys and values are made and enlarge it behind them, so the branch has "
    "no tokens of its own from beginning to end"
)

_PARALLEL = (
    "its MLP and its attention stand side by side: one projection makes the hidden units and queries, keys and values, "
    "and both are added as one branch"
)
_DIFFERENCE = "its map is the difference of two softmaxes, which no row of weights that sum to one can be"

#: a class of timm's, with its module -> what keeps an adapter from reading it
UNREAD: Mapping[str, str] = {
    "timm.layers.attention2d.MultiQueryAttention2d": (
        "all heads share one key and one value (multi-query), and convolutions stand among its projections; its blocks have "
        "no MLP of their own"
    ),
    "timm.layers.attention_pool2d.AttentionPool2d": (
        "it pools: one query in front of the classifier, the mean of the map, and no block around it"
    ),
    "timm.layers.bottleneck_attn.BottleneckAttn": (
        "it replaces a convolution in a ResNet's bottleneck: no output projection, no residual branch of its own, no MLP"
    ),
    "timm.layers.diff_attention.DiffAttention": _DIFFERENCE,
    "timm.layers.global_context.GlobalContext": (
        "its softmax weighs one average of the map that gates channels: no queries, no map of pairs"
    ),
    "timm.layers.halo_attn.HaloAttn": (
        "it replaces a convolution in a ResNet's bottleneck: blocks look at halos which overlap, and there is no output "
        "projection, no residual branch of its own, no MLP"
    ),
    "timm.layers.lambda_layer.LambdaLayer": (
        "it is linear: one softmax over the tokens for all queries, no map of pairs; it replaces a convolution in a "
        "ResNet's bottleneck, without an MLP"
    ),
    "timm.models.cpubone.ConvAttention": _CONV_ATTENTION,
    "timm.models.efficientformer_v2.Attention2d": (
        "its heads are mixed around the softmax (talking heads), and a convolution of the values joins the heads"
    ),
    "timm.models.efficientvim.HSMSSD": (
        "it is a state space: one softmax over the tokens for all of them, no map of pairs"
    ),
    "timm.models.efficientvit_msra.CascadedGroupAttention": (
        "its heads run one after the other, each on what the head before it gave, so they never stand side by side"
    ),
    "timm.models.iformer.SHMA": (
        "its values are sigmoids, and a gate multiplies its single head before a projection with a batch norm"
    ),
    "timm.models.lowformer.ConvAttention": _CONV_ATTENTION,
    "timm.models.shvit.SHSA": (
        "its single head sees a part of the channels, and the others join it only before the output projection"
    ),
    "timm.models.vision_transformer.DiffParallelScalingBlock": f"{_PARALLEL}; {_DIFFERENCE}",
    "timm.models.vision_transformer.ParallelScalingBlock": _PARALLEL,
    "timm.models.vision_transformer.ParallelThingsBlock": (
        "it adds several attentions side by side as one branch, and several MLPs as another"
    ),
}


def why_unread(model: nn.Module) -> str | None:
    """What attends in `model` and cannot be read, each class once with the reason; None: nothing known does."""
    found: dict[str, str] = {}
    for module in model.modules():
        why = reason_of(module)
        if why is not None:
            found[type(module).__name__] = why
    return "; ".join(f"{name}: {why}" for name, why in found.items()) or None


def reason_of(module: nn.Module) -> str | None:
    """Why no adapter reads a module of this very class; None: it is none of those that are known."""
    return UNREAD.get(f"{type(module).__module__}.{type(module).__qualname__}")
