"""Weight decay where grafts are large: matrices and the hypernetwork have it, lambda, norms and position biases do not."""

from __future__ import annotations

import pytest

from attngraft.training.build import build_model
from attngraft.training.optimizer import create_optimizer
from attngraft.training.recipe import recipe_from_dict

LEVIT = {"name": "levit_128s", "args": {"img_size": 48, "stem_type": "s16", "embed_dim": [16, 24], "key_dim": 4}}
LEVIT["args"] |= {"depth": [1, 1], "num_heads": [2, 3]}  # type: ignore[operator]
SWIN = {"name": "swin_tiny_patch4_window7_224", "args": {"img_size": 32, "patch_size": 2, "window_size": 4}}
SWIN["args"] |= {"embed_dim": 16, "depths": [1], "num_heads": [2]}  # type: ignore[operator]
VIT = {"name": "vit_tiny_patch16_224", "args": {"img_size": 16, "patch_size": 8, "embed_dim": 16, "num_heads": 2}}
VIT["args"] |= {"depth": 1}  # type: ignore[operator]
HOSTS = {"levit": LEVIT, "swin": SWIN, "vit": VIT}
#: site with the graft; what of it has weight decay, what has none
MAPS = ("inverse.query.linear.weight", "inverse.value.linear.weight")
NORMS = tuple(f"inverse.{side}.norm.{kind}" for side in ("query", "value") for kind in ("weight", "bias"))
BIASES = ("inverse.query.linear.bias", "inverse.value.linear.bias")
SITES = {
    "levit": ("stages.0.blocks.0.attn", NORMS, ("attention_biases", "qkv.bn.weight", "proj.ln.bn.bias")),
    "swin": ("layers.0.blocks.0.attn", BIASES, ("relative_position_bias_table", "qkv.bias")),
    "vit": ("blocks.0.attn", BIASES, ("qkv.bias",)),
}
TRANSFORMS = {
    "hyper": (("inverse.transform.weight",), ()),
    "mlp": tuple(
        tuple(f"inverse.transform.{layer}.{kind}" for layer in ("expand", "contract")) for kind in ("weight", "bias")
    ),
}


@pytest.mark.parametrize("transform", TRANSFORMS)
@pytest.mark.parametrize("host", HOSTS)
def test_the_hypernetwork_is_decayed_and_lambda_norms_and_biases_are_not(host: str, transform: str) -> None:
    """The hypernetwork has three axes, the position biases of LeViT and Swin have two: axes alone do not tell."""
    site, bare, of_host = SITES[host]
    graft = f"bisa(learned=true, norm=true, transform={transform})@{site}"
    sections = {"host": HOSTS[host], "graft": graft, "optimizer": {"weight_decay": 0.1, "graft_weight_decay": 0.7}}
    recipe = recipe_from_dict(sections | {"schedule": {"epochs": 2, "warmup_epochs": 0}})
    model = build_model(recipe, {"num_classes": 3})
    names = {parameter: name for name, parameter in model.named_parameters()}
    decays = {
        names[parameter]: group["weight_decay"]
        for group in create_optimizer(model, recipe).param_groups
        for parameter in group["params"]
    }
    assert decays.keys() == set(names.values())
    decayed, biases = TRANSFORMS[transform]
    expected = dict.fromkeys((*MAPS, *decayed), 0.7) | dict.fromkeys((*bare, *biases, "logit"), 0.0)
    prefix = f"{site}.grafts.bisa."
    assert {name.removeprefix(prefix): decay for name, decay in decays.items() if prefix in name} == expected
    projection = "qkv.linear.weight" if host == "levit" else "qkv.weight"
    assert decays[f"{site}.{projection}"] == 0.1
    assert {decays[f"{site}.{name}"] for name in of_host} == {0.0}
    if host == "levit":  # those of the subsampling attention too
        biases_of_places = [name for name in decays if name.endswith("attention_biases")]
        assert len(biases_of_places) == 3
        assert {decays[name] for name in biases_of_places} == {0.0}
