"""torch's fused layer kernels run in hosts without grafts and never bypass a graft."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import attngraft
from attngraft.errors import UsageError
from attngraft.hosts import find_host
from tests.contract.tester import assert_same_host, snapshot

X = torch.randn(2, 7, 16, generator=torch.Generator().manual_seed(3))
PADDING = torch.arange(7) >= torch.tensor([[7], [4]])


def _layer(**options: Any) -> nn.TransformerEncoderLayer:
    torch.manual_seed(0)
    return nn.TransformerEncoderLayer(16, 4, 24, 0.1, batch_first=True, **options).eval()


def _encoder() -> nn.TransformerEncoder:
    torch.manual_seed(0)
    return nn.TransformerEncoder(_layer(), 2).eval()


HOSTS: dict[str, tuple[Callable[[], nn.Module], Callable[[nn.Module], Any]]] = {
    "attention": (lambda: nn.MultiheadAttention(16, 4, batch_first=True).eval(), lambda host: host(X, X, X)[0]),
    "layer": (_layer, lambda host: host(X)),
    "layer with padding": (_layer, lambda host: host(X, src_key_padding_mask=PADDING)),
    "encoder": (_encoder, lambda host: host(X)),
    "encoder with padding": (_encoder, lambda host: host(X, src_key_padding_mask=PADDING)),
}
KERNELS = ("_transformer_encoder_layer_fwd", "_native_multi_head_attention", "_nested_tensor_from_mask")


@pytest.fixture(params=HOSTS)
def case(request: pytest.FixtureRequest) -> tuple[nn.Module, Callable[[nn.Module], Tensor]]:
    make, call = HOSTS[request.param]
    return make(), call


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Record which of torch's kernels run."""
    found: list[str] = []

    def watch(name: str) -> Callable[..., Any]:
        kernel = getattr(torch, name)

        def watched(*arguments: Any, **options: Any) -> Any:
            found.append(name)
            return kernel(*arguments, **options)

        return watched

    for name in KERNELS:
        monkeypatch.setattr(torch, name, watch(name))
    return found


@pytest.mark.parametrize(
    "spec", ["horizontal + vertical", "toy_flatten", "toy_scale(start=0.5, stage='attn.end')@last:1"]
)
def test_no_kernel_goes_past_a_graft(case: Any, seen: list[str], spec: str) -> None:
    host, call = case
    before = snapshot(host)
    with torch.no_grad():
        plain = call(host)
        assert seen  # the host alone uses them
        attngraft.graft(host, spec)
        seen.clear()
        found = call(host)
    wholly = "last" not in spec
    assert not seen or not (wholly or "_nested_tensor_from_mask" in seen)
    torch.testing.assert_close(found, call(host))  # with gradients there is no fast path
    assert not torch.allclose(found, plain, atol=1e-3)
    attngraft.ungraft(host)
    assert_same_host(host, before)
    seen.clear()
    with torch.no_grad():
        assert torch.equal(call(host), plain)
    assert seen


@pytest.mark.parametrize("spec", ["cb_s(init=1, position=mid)", "toy_scale(start=0.5, stage='mlp.front')@layers.1"])
def test_nor_past_one_in_the_mlp(spec: str) -> None:
    host = _encoder()
    attngraft.graft(host, spec)
    with torch.no_grad():
        torch.testing.assert_close(found := host(X), host.train().eval()(X))
    torch.testing.assert_close(found, host(X))
    assert not torch.allclose(found, _encoder()(X), atol=1e-3)


def test_recording_keeps_the_kernel_and_its_rounding(case: Any, seen: list[str]) -> None:
    host, call = case
    with torch.no_grad():
        plain = call(host)
        seen.clear()
        with attngraft.record(host) as recording:
            found = call(host)
    assert seen
    assert torch.equal(found, plain)
    for site, tensors in recording.items():
        assert ("mlp.end" if site.endswith("linear1") else "weights") in tensors
    assert list(recording) == [site.path for site in find_host(host).sites]
    assert all(len(recording.calls(site, name)) == 1 for site, tensors in recording.items() for name in tensors)


def test_the_recorded_map_of_a_padded_batch_hides_padding() -> None:
    host = _encoder()
    with torch.no_grad(), attngraft.record(host, ["weights"]) as recording:
        host(X, src_key_padding_mask=PADDING)
    for site in ("layers.0.self_attn", "layers.1.self_attn"):
        weights = recording[site]["weights"]
        assert weights.shape == (2, 4, 7, 7)
        assert not weights[1, :, :, 4:].any()
        assert weights[0].all()


def test_recording_a_grafted_host_listens_once() -> None:
    host = _encoder()
    attngraft.graft(host, "horizontal")
    with torch.no_grad(), attngraft.record(host) as recording:
        host(X)
    assert len(recording.calls("layers.0.self_attn", "horizontal.alpha")) == 1
    assert "mlp.end" in recording["layers.1.linear1"]


def test_nested_tensors_are_refused() -> None:
    nested = torch.nested.nested_tensor([X[0], X[1, :4]])
    host = _layer()
    with torch.no_grad():
        assert host(nested).is_nested
        attngraft.graft(host, "horizontal")
        with pytest.raises(UsageError, match="bypasses grafts; pass a padded tensor"):
            host(nested)
    attention = nn.MultiheadAttention(16, 4, batch_first=True).eval()
    attngraft.graft(attention, "horizontal")
    with torch.no_grad(), pytest.raises(UsageError, match="bypasses grafts; pass padded tensors"):
        attention(nested, nested, nested)


def test_a_layer_that_inherits_the_kernel_is_refused() -> None:
    class Mine(nn.TransformerEncoderLayer):
        """A user-defined layer that may bypass its attention."""

    with pytest.raises(attngraft.HostError, match="is in a Mine, which inherits torch's fast path"):
        attngraft.graft(nn.TransformerEncoder(Mine(16, 4, batch_first=True), 1), "horizontal")
