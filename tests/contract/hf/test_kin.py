"""Quick parts of the contract for text models whose full contract is slow, or on demand."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.contract.hf import test_bert as bert
from tests.contract.hf import test_marian as marian
from tests.contract.hf import test_t5 as t5
from tests.contract.hf.hosts import TransformersContract

# named through their modules, so that pytest does not collect the contract a second time here
KIN = [
    bert.TestBertAsDecoder,
    bert.TestRoberta,
    bert.TestXLMRoberta,
    bert.TestCamembert,
    bert.TestElectra,
    bert.TestModernBert,
    marian.TestBart,
    marian.TestM2M100,
    marian.TestMBart,
    t5.TestGatedT5,
    t5.TestMT5Encoder,
]


@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize("contract", KIN)
def test_without_grafts_it_is_the_host(contract: type[TransformersContract], fused: bool) -> None:
    """Outputs and gradients match bit for bit, and every site is found."""
    held, host = contract(), contract().make_again()
    held.test_every_site_is_found(host)
    held.test_patched_class_without_grafts_is_the_host(host, held.given(host), fused, training=True)


@pytest.mark.parametrize("contract", KIN)
def test_a_graft_comes_and_goes(contract: type[TransformersContract], tmp_path: Path) -> None:
    host = contract().make_again()
    spec = next(spec for spec in contract.specs if spec not in contract.refused)
    contract().test_graft(host, contract().given(host), contract.placed(spec), tmp_path)
