"""timm's own tests of its models, on our models and on grafted hosts.

They are tests/test_models.py of timm's repository, which its wheel does not contain; those of TorchScript are left out.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import timm

import attngraft
import attngraft.models  # registers our models
from attngraft.models.points import registration
from tests.contract.test_compile_export import BESIDE, BESIDE_REPLACING, EACH_GRAFT, EACH_REPLACING
from tests.contract.timm.test_vit import NO_CLASS_TOKEN
from tests.slow import product_but

pytestmark = pytest.mark.slow

#: timm's tests, with its batch sizes: of every model,
EVERY = {"forward": 1, "backward": 2, "forward_fx": 1, "backward_fx": 2}
_INTERMEDIATES = {"forward_intermediates": 1, "forward_intermediates_features": 1}
#: of models of maps,
OF_MAPS = {**EVERY, **_INTERMEDIATES, "default_cfgs": 1, "forward_features": 1}
#: and of models of tokens, which timm lists in `NON_STD_FILTERS`
OF_TOKENS = {**EVERY, **_INTERMEDIATES, "default_cfgs_non_std": 1}


def is_ours(name: str) -> bool:
    """Whether attngraft registered the model `name` for images, and it is not one of transformers' models."""
    others = ("transformers_classifier", "mt_transformer", "m2_transformer", *registration.MODELS)
    return timm.models.model_entrypoint(name).__module__.startswith("attngraft.") and name not in others


@pytest.fixture(scope="module")
def timm_tests(shared: Path, pytestconfig: pytest.Config) -> ModuleType:
    path = shared / "peers" / "timm_test_models.py"
    if not path.is_file():
        pytest.skip(f"timm's tests of its models are not at {path}")
    for mark in ("base", "cfg", "features", "fxforward", "fxbackward", "torchscript", "timeout"):
        pytestconfig.addinivalue_line("markers", mark)
    spec = importlib.util.spec_from_file_location("timm_test_models", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def check(
    timm_tests: ModuleType,
    name: str,
    arguments: dict[str, Any],
    graft: str | None,
    tests: dict[str, int],
    *,
    size: int | None = 64,
) -> None:
    """Run timm's tests of the model `name`, created with `arguments` and grafted, on images of `size` or its own size."""
    small = None if size is None else {"input_size": (3, size, size), "pool_size": (size // 32, size // 32)}

    def create_model(name: str, pretrained: bool = False, **others: Any) -> Any:
        model = timm.create_model(name, pretrained, pretrained_cfg_overlay=small, **arguments | others)
        if graft is not None:
            attngraft.graft(model, graft)
        return model

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(timm_tests, "create_model", create_model)
        if small is not None:
            patch.setattr(timm_tests, "_get_input_size", lambda **_: small["input_size"])
        for test, batch in tests.items():
            getattr(timm_tests, f"test_model_{test}")(name, batch)


#: our models, one of each class and form, with few layers
OWN: dict[str, dict[str, Any]] = {
    "bixt_ti_l64_p16": {"depth": 4},
    "bixt_ti_cnv_l64_p16": {"depth": 4},
    "bixt_ti_h3_lpi_l64_p16": {"depth": 4},
    "bixt_ti_l64_p16_ft384": {"depth": 4, "img_size": 64},
    "iterative_sa1_d22_k2": {"depth": 3},
    "sequential_d11": {"depth": 4},
    "elsa_swin_tiny": {"embed_dim": 24, "depths": (1, 1, 1, 2)},
    "elsa_volo_d1": {"img_size": 64, "layers": (1, 1, 1, 2), "embed_dims": (48, 96, 96, 96), "num_heads": (2, 3, 3, 3)},
    "small_mixer": {},
    "t2t_vit_7": {"depth": 3, "embed_dim": 64},
    "t2t_vit_t_14": {"depth": 3, "embed_dim": 96},
    "vit_small_patch16_224_cb_replaced": {"depth": 3},
    "vit_tiny_patch16_224_extra_attention": {"depth": 2},
    "vit_tiny_patch16_224_extra_mlp": {"depth": 2},
}


#: those that differ from another one in an option, which `tests/models` covers
ALIKE = {"bixt_ti_l64_p16", "bixt_ti_l64_p16_ft384", "t2t_vit_t_14", "vit_tiny_patch16_224_extra_mlp"}


@pytest.mark.parametrize("name", product_but(OWN, OWN.keys() - ALIKE))
def test_our_models(timm_tests: ModuleType, name: str) -> None:
    tests = OF_MAPS if name == "elsa_swin_tiny" else OF_TOKENS
    check(timm_tests, name, OWN[name], None, tests, size=32 if name == "small_mixer" else 64)


@pytest.mark.product
@pytest.mark.parametrize("name", [name for name in timm.list_models() if is_ours(name)])
def test_all_our_models(timm_tests: ModuleType, name: str) -> None:
    """At full size."""
    check(timm_tests, name, {}, None, OF_MAPS if name.startswith("elsa_swin") else OF_TOKENS, size=None)


def test_transformers_classifier(timm_tests: ModuleType) -> None:
    """A model of transformers has no features in timm's sense."""
    pytest.importorskip("transformers")
    small = {
        "img_size": 64,
        "hidden_size": 24,
        "num_hidden_layers": 2,
        "num_attention_heads": 3,
        "intermediate_size": 48,
    }
    check(timm_tests, "transformers_classifier", small, None, EVERY)
    check(timm_tests, "transformers_classifier", small, GRAFTS, EVERY)


_VIT: dict[str, Any] = {"embed_dim": 24, "depth": 3, "num_heads": 3}
_SWIN: dict[str, Any] = {"embed_dim": 8, "depths": (2, 1, 1, 1), "num_heads": (2, 2, 2, 2)}
VIT, SWIN = "vit_tiny_patch16_224", "swin_tiny_patch4_window7_224"
#: hosts of many families, as narrow as they can be
HOSTS: dict[str, dict[str, Any]] = {
    VIT: _VIT,
    "deit_tiny_distilled_patch16_224": _VIT,
    "eva02_base_patch16_clip_224": {**_VIT, "img_size": 64},
    "cait_xxs24_224": _VIT,
    "convit_tiny": {**_VIT, "embed_dim": 8, "local_up_to_layer": 2},
    "levit_128s": {"embed_dim": (16, 24, 32), "num_heads": (2, 3, 4), "depth": (1, 1, 1), "key_dim": 4},
    "twins_svt_small": {"embed_dims": (8, 16, 24, 32), "depths": (1, 1, 1, 1), "num_heads": (1, 2, 3, 4)},
    "beit_base_patch16_224": _VIT,
    SWIN: _SWIN,
    "swinv2_tiny_window8_256": _SWIN,
    "pvt_v2_b0": {"embed_dims": (8, 16, 24, 32), "depths": (1, 1, 1, 1), "num_heads": (1, 2, 3, 4)},
    "davit_tiny": {"embed_dims": (8, 16, 24, 32), "depths": (1, 1, 1, 1), "num_heads": (1, 2, 3, 4)},
}
MAPS = (SWIN, "swinv2_tiny_window8_256", "pvt_v2_b0", "davit_tiny")
GRAFTS = "cb_s + horizontal(identity=true)"


#: a host of each kind: two outputs, rotary positions, another resolution in each block, windows, maps; all on demand
CHOSEN = ("deit_tiny_distilled_patch16_224", "eva02_base_patch16_clip_224", "levit_128s", "swinv2_tiny_window8_256")


@pytest.mark.parametrize("name", product_but(HOSTS, (*CHOSEN, "pvt_v2_b0")))
def test_grafted_hosts(timm_tests: ModuleType, name: str) -> None:
    check(timm_tests, name, HOSTS[name], GRAFTS, OF_MAPS if name in MAPS else OF_TOKENS)


#: every graft beside others, on a ViT, or on a Swin if it replaces its attention; on demand, alone and on the Swin too
TOGETHER = [*((VIT, spec) for spec in BESIDE), *((SWIN, spec) for spec in BESIDE_REPLACING)]
EACH = [*((VIT, spec) for spec in EACH_GRAFT), *((SWIN, spec) for spec in EACH_REPLACING)]
ON_SWIN = [(SWIN, spec) for spec in EACH_GRAFT if spec not in NO_CLASS_TOKEN]


@pytest.mark.parametrize(("name", "spec"), product_but(dict.fromkeys([*TOGETHER, *EACH, *ON_SWIN]), TOGETHER))
def test_every_graft(timm_tests: ModuleType, name: str, spec: str) -> None:
    check(timm_tests, name, HOSTS[name], spec, OF_MAPS if name in MAPS else OF_TOKENS)
