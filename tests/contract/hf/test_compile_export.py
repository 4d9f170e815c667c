"""torch.compile(fullgraph=True) and torch.export of grafted models of transformers."""

from __future__ import annotations

import pytest

import attngraft
from tests.contract.hf import test_bert as bert
from tests.contract.hf import test_clip as clip
from tests.contract.hf import test_dino as dino
from tests.contract.hf import test_marian as marian
from tests.contract.hf import test_swin as swin
from tests.contract.hf import test_t5 as t5
from tests.contract.hf import test_vit as vit
from tests.contract.test_compile_export import check_compile, check_export, grafted
from tests.contract.tester import HostContract
from tests.slow import product_but

# named through their modules, so that pytest does not collect the contract a second time here
HOSTS = [vit.TestViT, dino.TestDinov3, clip.TestClip, swin.TestSwin, bert.TestBert]


@pytest.mark.product
def test_a_vit_compiles_with_three_grafts() -> None:  # Swin compiles too, but takes a minute
    check_compile(grafted(vit.TestViT, "bisa@first:1 + horizontal + cb_s(init=0.5)"), backend="aot_eager")


@pytest.mark.slow
def test_a_bert_compiles_with_three_grafts() -> None:
    check_compile(grafted(bert.TestBert, "bisa@first:1 + horizontal + cb_s(init=0.5)"), backend="aot_eager")


@pytest.mark.parametrize("contract", [vit.TestViT, *product_but(HOSTS[1:], [bert.TestBert])])
def test_hosts_export_with_three_grafts(contract: type[HostContract]) -> None:
    check_export(grafted(contract, "bisa + vertical + cb(at=both)"))


@pytest.mark.parametrize("contract", product_but([marian.TestMarian, t5.TestT5], [t5.TestT5]))
def test_encoder_decoders_export_with_three_grafts(contract: type[HostContract]) -> None:
    model = grafted(contract, "bisa@encoder + horizontal + vertical")
    check_export(model)
    attngraft.graft(model, "cb@encoder")
    with pytest.raises(attngraft.AttngraftError, match="with a padding mask"):  # a later mask may hide tokens
        check_export(model)
