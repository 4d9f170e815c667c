"""Known attention classes of timm that no adapter supports, with the reason."""

from collections.abc import Mapping

from torch import nn

_CONV_ATTENTION = (
    "convolutions downsample its map before the q, k and v projections and upsample it after attention, so the branch has "
    "no fixed set of tokens"
)
_PARALLEL = (
    "its MLP and its attention run in parallel: one projection makes the hidden units and q, k and v, and both are added as "
    "one branch"
)
_DIFFERENCE = "its map is the difference of two softmaxes, so its rows do not sum to one"

#: qualified name of a timm class -> reason why no adapter supports it
UNREAD: Mapping[str, str] = {
    "timm.layers.attention2d.MultiQueryAttention2d": (
        "all heads share one key and one value (multi-query), with convolutions between its projections; its blocks have no "
        "MLP"
    ),
    "timm.layers.attention_pool2d.AttentionPool2d": (
        "it is a pooling head: its only query is the mean of the map, and no block surrounds it"
    ),
    "timm.layers.bottleneck_attn.BottleneckAttn": (
        "it replaces a convolution in a ResNet bottleneck: no output projection, no residual branch, no MLP"
    ),
    "timm.layers.diff_attention.DiffAttention": _DIFFERENCE,
    "timm.layers.global_context.GlobalContext": (
        "its softmax weighs one average of the map that gates channels: no queries, no attention map"
    ),
    "timm.layers.halo_attn.HaloAttn": (
        "it replaces a convolution in a ResNet bottleneck: its blocks attend to overlapping halos, without output "
        "projection, residual branch or MLP"
    ),
    "timm.layers.lambda_layer.LambdaLayer": (
        "it is linear attention: one softmax over the tokens for all queries, no attention map; it replaces a convolution "
        "in a ResNet bottleneck, without an MLP"
    ),
    "timm.models.cpubone.ConvAttention": _CONV_ATTENTION,
    "timm.models.efficientformer_v2.Attention2d": (
        "its heads are mixed around the softmax (talking heads), and a convolution of the values is added to the heads"
    ),
    "timm.models.efficientvim.HSMSSD": (
        "it is a state space model: one softmax over the tokens for all queries, no attention map"
    ),
    "timm.models.efficientvit_msra.CascadedGroupAttention": (
        "its heads run one after another, each on the output of the previous head"
    ),
    "timm.models.iformer.SHMA": (
        "its values are sigmoids, and a gate multiplies its single head before a projection with a batch norm"
    ),
    "timm.models.lowformer.ConvAttention": _CONV_ATTENTION,
    "timm.models.shvit.SHSA": (
        "its single head attends over some of the channels; the others join only before the output projection"
    ),
    "timm.models.vision_transformer.DiffParallelScalingBlock": f"{_PARALLEL}; {_DIFFERENCE}",
    "timm.models.vision_transformer.ParallelScalingBlock": _PARALLEL,
    "timm.models.vision_transformer.ParallelThingsBlock": (
        "it adds several parallel attentions as one branch, and several parallel MLPs as another"
    ),
}


def why_unread(model: nn.Module) -> str | None:
    """Return the unsupported attention classes in `model`, each with the reason; None if there are none."""
    reasons = {type(module).__name__: reason for module in model.modules() if (reason := reason_of(module)) is not None}
    return "; ".join(f"{name}: {why}" for name, why in reasons.items()) or None


def reason_of(module: nn.Module) -> str | None:
    """Return why no adapter supports a module of this exact class; None if the class is not listed."""
    return UNREAD.get(f"{type(module).__module__}.{type(module).__qualname__}")
