"""ModernBERT: tokens hidden by distance and tokens hidden by padding."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import attngraft
from tests.contract.hf.hosts import off_zero, transformers
from tests.contract.hf.test_bert import MODERN
from tests.contract.tester import randomize
from tests.hosts.hf.checks import check_dropout_is_the_hosts

IDS = torch.randint(2, 40, (2, 12), generator=torch.Generator().manual_seed(0))
HIDES = torch.tensor([[1] * 10 + [0] * 2, [1] * 12])


def made(implementation: str = "sdpa", **changes: Any) -> Any:
    torch.manual_seed(0)
    config = transformers.ModernBertConfig(**(MODERN | changes), attn_implementation=implementation, num_labels=3)
    return off_zero(transformers.ModernBertForSequenceClassification(config)).eval()


@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
@pytest.mark.parametrize("spec", ["horizontal + vertical", "toy_flatten", "bisa(norm=true)", "misa"])
def test_padding_changes_nothing(spec: str, implementation: str) -> None:
    model = made(implementation)
    attngraft.graft(model, spec)
    randomize(model, only_grafts=True)
    padded = model(IDS, attention_mask=HIDES).logits
    torch.testing.assert_close(padded[:1], model(IDS[:1, :10]).logits, rtol=1e-5, atol=1e-6)
    assert not torch.allclose(padded[0], model(IDS).logits[0])


@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
@pytest.mark.parametrize("spec", ["cb", "cb(at=attention)", "se(reduction=2)"])
@pytest.mark.parametrize("where", ["layers.0", "layers.1"])
def test_a_window_is_no_padding_for_what_averages_over_all_tokens(where: str, spec: str, implementation: str) -> None:
    model = made(implementation)
    plain = model(IDS).logits
    attngraft.graft(model, f"{spec}@{where}")
    assert not torch.equal(model(IDS).logits, plain)
    with pytest.raises(attngraft.AttngraftError, match="does not support this call with a padding mask"):
        model(IDS, attention_mask=HIDES)
    attngraft.ungraft(model)
    assert torch.equal(model(IDS).logits, plain)


def test_layers_see_what_is_near() -> None:
    model = made()
    attngraft.graft(model, "toy_flatten")
    with attngraft.record(model, ["weights"]) as recording:
        model(IDS)
    assert bool((recording["layers.0.attn"]["weights"] > 0).all())
    near = (torch.arange(12)[:, None] - torch.arange(12)).abs() <= MODERN["local_attention"] // 2
    assert torch.equal(recording["layers.1.attn"]["weights"] > 0, near.expand(2, 3, -1, -1))


@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
def test_dropout_falls_as_without_grafts(implementation: str) -> None:
    model = made(implementation, attention_dropout=0.3, mlp_dropout=0.3).train()
    check_dropout_is_the_hosts(model, IDS, ["heads", "tokens", "attn.end", "mlp.front", "mlp.end"])


def test_the_middle_of_a_gated_mlp_and_other_attention_functions_are_refused() -> None:
    model = made()
    with pytest.raises(attngraft.HostError, match="gated and has no plain hidden layer"):
        attngraft.graft(model, "cb(position=mid)")
    model.config._attn_implementation = "flash_attention_2"
    with pytest.raises(attngraft.HostError, match="flash_attention_2"):
        attngraft.graft(model, "bisa")
