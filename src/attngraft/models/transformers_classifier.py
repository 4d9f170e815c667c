"""Image classifiers of Hugging Face's transformers, with the interface of timm's models."""

import inspect
import math
from typing import Any

import torch
import torch.nn.functional as F
from timm.layers import resample_abs_pos_embed, to_2tuple
from timm.models import generate_default_cfgs, register_model, register_notrace_module
from timm.models._features import feature_take_indices
from torch import Tensor, nn

from attngraft.downloads import without_hub
from attngraft.models.transformers_folder import checked_fields, configuration_fields

#: preprocessing of transformers' image processor for ViT
default_cfgs = generate_default_cfgs(
    {
        "transformers_classifier": {
            "num_classes": 1000,
            "input_size": (3, 224, 224),
            "crop_pct": 1.0,
            "interpolation": "bilinear",
            "fixed_input_size": True,
            "mean": (0.5, 0.5, 0.5),
            "std": (0.5, 0.5, 0.5),
            "classifier": "model.classifier",
        }
    }
)


class TransformersClassifier(nn.Module):
    """A transformers model with the interface of timm's models: images to logits (B, classes).

    `model` is the wrapped model, with the rest of transformers' interface (`output_attentions`, ...).
    """

    def __init__(self, model: Any, *, pretrained_cfg: dict[str, Any]) -> None:
        super().__init__()
        register_notrace_module(type(model))  # torch.fx cannot trace its forward
        self.model = model
        self.num_classes: int = model.config.num_labels
        self.pretrained_cfg = self.default_cfg = pretrained_cfg

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = self.model(pixel_values=images).logits
        return logits

    def get_classifier(self) -> nn.Module:
        """Return the last layer."""
        layer: nn.Module = self.model.classifier
        return layer

    @property
    def feature_info(self) -> list[dict[str, Any]]:
        """Channels and stride of the maps of `forward_intermediates`: of each stage of a Swin, or of each layer.

        Patches of 14 pixels count as 16, because images are resized for them.
        """
        config = self.model.config
        if hasattr(config, "depths"):
            stages = range(len(config.depths))
            return [{"num_chs": config.embed_dim * 2**i, "reduction": config.patch_size * 2**i} for i in stages]
        if not hasattr(config, "patch_size") or not hasattr(config, "num_hidden_layers"):
            return []
        stride = 2 ** round(math.log2(config.patch_size))
        return [{"num_chs": config.hidden_size, "reduction": stride}] * config.num_hidden_layers

    def forward_intermediates(
        self, images: Tensor, indices: Any = None, *, norm: bool = False, output_fmt: str = "NCHW", **other: Any
    ) -> list[Tensor]:
        """Return feature maps (B, C, Y, X) of selected layers without prefix tokens, or of a Swin's stages before merging.

        Position embeddings are interpolated. Without `norm`, and always only the maps, as timm's `intermediates_only`.

        Args:
            images: (B, C, H, W), whose sides are multiples of the stride.
            indices: a number n for the last n, a list, or None for all.
        """
        base, info = self.model.base_model, self.feature_info
        taken = feature_take_indices(len(info), indices)[0]
        if hasattr(self.model.config, "depths"):
            x, grid = base.embeddings(images, interpolate_pos_encoding=True)
            flags = {"output_hidden_states": True, "output_hidden_states_before_downsampling": True}
            found = base.encoder(x, grid, always_partition=True, return_dict=True, **flags).reshaped_hidden_states[1:]
            return [found[index] for index in taken]
        patch, stride = self.model.config.patch_size, info[0]["reduction"]
        rows, columns = (side // stride for side in images.shape[-2:])
        if patch != stride:
            images = F.interpolate(images, (rows * patch, columns * patch), mode="bilinear", antialias=True)
        resized = "interpolate_pos_encoding" in inspect.signature(base.forward).parameters
        given = {"interpolate_pos_encoding": True} if resized else {}
        layers = base(images, output_hidden_states=True, return_dict=True, **given).hidden_states[1:]
        maps = [layers[index][:, -rows * columns :].transpose(1, 2) for index in taken]
        return [each.unflatten(2, (rows, columns)) for each in maps]

    def prune_intermediate_layers(
        self, indices: Any = 1, prune_norm: bool = False, prune_head: bool = True
    ) -> list[int]:
        """Remove the classifier and the final norm, which the maps do not use; layers are kept."""
        for name in ("classifier", "cls_classifier", "distillation_classifier"):
            if prune_head and hasattr(self.model, name):
                setattr(self.model, name, nn.Identity())
        if prune_norm and hasattr(self.model.base_model, "layernorm"):
            self.model.base_model.layernorm = nn.Identity()
        mask_token = getattr(self.model.base_model.embeddings, "mask_token", None)  # of pretraining
        if prune_head and mask_token is not None:
            mask_token.requires_grad_(False)
        taken: list[int] = feature_take_indices(len(self.feature_info), indices)[0]
        return taken

    def set_grad_checkpointing(self, enable: bool = True) -> None:
        """Enable activation checkpointing."""
        verb = "enable" if enable else "disable"
        names = (
            f"activation_checkpointing_{verb}",
            f"gradient_checkpointing_{verb}",
        )  # the second name in older releases
        next(getattr(self.model, name) for name in names if hasattr(self.model, name))()

    @torch.jit.ignore
    def no_weight_decay(self) -> set[str]:
        """Return the names of special tokens and position embeddings, as in timm's ViT."""
        ends = ("token", "tokens", "position_embeddings")
        return {name for name, _ in self.named_parameters() if name.endswith(ends)}

    @torch.jit.ignore
    def group_matcher(self, coarse: bool = False) -> dict[str, Any]:
        """Return patterns for layer-wise decay: embeddings, one group per layer, remaining parameters."""
        layers = [(r"^model\..*?\.layers?\.(\d+)\.", None), (r"^model\.\w+\.\w*layernorm\.", (99999,))]
        return {"stem": r"^model\..*embeddings\.", "blocks": layers}


@register_model
def transformers_classifier(
    pretrained: bool = False,
    *,
    model_type: str = "vit",
    num_classes: int = 1000,
    img_size: int | None = None,
    in_chans: int | None = None,
    pretrained_cfg: Any = None,
    pretrained_cfg_overlay: Any = None,
    cache_dir: Any = None,
    **config: Any,
) -> TransformersClassifier:
    """Create an untrained transformers image classifier from its configuration.

        attngraft compare --host transformers_classifier --host-arg model_type=dinov2 --host-arg hidden_size=192 ...

    Args:
        pretrained: not supported; `--weights FOLDER` (`attngraft.create_model(..., weights=FOLDER)`) loads weights and
            arguments from a folder written by transformers' `save_pretrained`.
        model_type: a configuration for which transformers has an image classifier: vit, deit, dinov2, swin, ...
        num_classes, img_size, in_chans: timm's names for `num_labels`, `image_size` (224), `num_channels` (3).
        pretrained_cfg_overlay: preprocessing of images: mean, std, interpolation, crop_pct, crop_mode, input_size.
        pretrained_cfg, cache_dir: passed by timm's factory and ignored.
        config: other fields of the configuration (hidden_size, num_hidden_layers, num_attention_heads, ...).

    Raises:
        ValueError: `pretrained` is set, transformers is missing or has no such model, or the configuration has no such
            field.
    """
    if pretrained:
        raise ValueError(
            "pretrained is not supported; pass a folder that save_pretrained() wrote: --weights FOLDER (host.weights)"
        )
    try:
        import transformers  # optional and slow to import
    except ImportError:
        raise ValueError("this model requires transformers; run pip install 'attngraft[hf]'") from None
    settings = {**config, "num_labels": num_classes}
    settings |= {} if img_size is None else {"image_size": img_size}
    settings |= {} if in_chans is None else {"num_channels": in_chans}
    known = configuration_fields(transformers, model_type)
    sizes = {name: value for name, value in {"image_size": 224, "num_channels": 3}.items() if name in known}
    settings = {**sizes, **checked_fields(transformers, model_type, settings)}
    with without_hub():  # a configuration may name a backbone whose weights transformers would download
        plain = transformers.AutoConfig.for_model(model_type, architectures=[], **settings)
        model = transformers.AutoModelForImageClassification.from_config(plain)
    own = default_cfgs["transformers_classifier"].default.to_dict()
    size = (settings.get("num_channels", 3), *to_2tuple(settings.get("image_size", 224)))
    shown = {name: value for name, value in (pretrained_cfg_overlay or {}).items() if value is not None}
    if img_size is not None:
        shown.pop("input_size", None)
    cfg = {**own, "input_size": size, **shown, "num_classes": num_classes}
    return TransformersClassifier(model, pretrained_cfg=cfg)


def checkpoint_filter_fn(state: dict[str, Tensor], model: TransformersClassifier) -> dict[str, Tensor]:
    """Add missing prefixes `model.`, and resample position embeddings for the model's image size."""
    own = model.state_dict()
    if not any(name in own for name in state):
        state = {f"model.{name}": value for name, value in state.items()}
    config = model.model.config
    for name, value in own.items():
        stored = state.get(name)
        if not name.endswith(".position_embeddings") or stored is None or stored.shape == value.shape:
            continue
        sides = zip(to_2tuple(config.image_size), to_2tuple(config.patch_size), strict=True)
        rows, columns = (side // patch for side, patch in sides)
        prefix = value.shape[1] - rows * columns
        state[name] = resample_abs_pos_embed(stored, new_size=[rows, columns], num_prefix_tokens=prefix)
    return state
