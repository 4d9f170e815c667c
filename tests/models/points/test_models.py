"""Point models: sizes, symmetries, and the options of BiXT that the paper leaves open."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from attngraft.errors import UsageError
from attngraft.models.points.bixt import BiXTPointParts, BiXTPoints
from attngraft.models.points.pointmlp import PointMLP, PointMLPParts, checkpoint_filter_fn
from attngraft.models.points.pointnet import PointNet, PointNet2
from attngraft.tensors import meta_device

SMALL = {"embed_dim": 24, "depth": 4, "num_heads": 3, "num_latents": 5, "num_classes": 4}
CLASSIFIERS: dict[str, Callable[[], nn.Module]] = {
    "naive": lambda: BiXTPoints(**SMALL),
    "group": lambda: BiXTPoints(**SMALL, group="refine", neighbors=6),
    "hierarchy": lambda: BiXTPoints(**SMALL, group="hierarchy", neighbors=6),
    "normals": lambda: BiXTPoints(**SMALL, in_chans=6),
    "pointnet": lambda: PointNet(num_classes=4),
    "pointnet2": lambda: PointNet2(num_classes=4),
    "pointmlp": lambda: PointMLP(num_classes=4, embed_dim=8, neighbors=6, blocks=(1, 1, 1, 1)),
}
PARTS: dict[str, Callable[[], nn.Module]] = {
    "naive": lambda: BiXTPointParts(**SMALL, categories=3),
    "one layer": lambda: BiXTPointParts(**{**SMALL, "depth": 1}, categories=3),
    "both": lambda: BiXTPointParts(**SMALL, categories=3, last="both", use_category=True),
    "group": lambda: BiXTPointParts(**SMALL, categories=3, group="refine", neighbors=6),
    "decoder": lambda: BiXTPointParts(
        **SMALL, categories=3, group="hierarchy", neighbors=6, reducers=(2, 2, 2, 2), decoder=(16, 16, 16, 16)
    ),
    "pointmlp": lambda: PointMLPParts(
        num_classes=4, categories=3, embed_dim=8, neighbors=6, reducers=(2, 2, 2, 2), decoder=(16, 16, 16, 16)
    ),
}


def random(model: nn.Module) -> nn.Module:
    """Give every parameter a value, in evaluation mode."""
    torch.manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return model.eval()


def clouds(model: nn.Module, number: int = 128) -> Tensor:
    """Return two clouds in the unit ball; point 0 stays first, where farthest point sampling starts."""
    points = torch.randn(2, number, getattr(model, "in_chans"), generator=torch.Generator().manual_seed(1))  # noqa: B009
    return points / points[..., :3].norm(dim=-1, keepdim=True).amax(dim=1, keepdim=True)


def shuffled(number: int) -> Tensor:
    order = torch.randperm(number - 1, generator=torch.Generator().manual_seed(2)) + 1
    return torch.cat([torch.zeros(1, dtype=torch.int64), order])


def parameters(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


@pytest.mark.parametrize(
    ("model", "number"),
    [
        (lambda: BiXTPoints(), 14_794_408),
        (lambda: BiXTPoints(depth=4), 4_710_568),
        (lambda: BiXTPointParts(), 14_369_906),
        (lambda: BiXTPointParts(last="both"), 15_185_138),
        (lambda: BiXTPointParts(use_category=True), 14_369_906 + 3_264),
        (lambda: PointMLP(), 13_238_504),
        (lambda: PointMLPParts(), 16_755_594),
        (
            lambda: PointNet(
                num_classes=10, widths=(64, 64, 128, 512), hidden=(256, 128), transforms=False, bias=False
            ),
            245_450,
        ),
    ],
)
def test_numbers_of_parameters(model: Callable[[], nn.Module], number: int) -> None:
    with meta_device():
        assert parameters(model()) == number


@pytest.mark.parametrize("name", [name for name in CLASSIFIERS if name != "pointnet2"])
def test_classes_do_not_depend_on_the_order_of_points(name: str) -> None:
    model = random(CLASSIFIERS[name]())
    points = clouds(model)
    torch.testing.assert_close(model(points), model(points[:, shuffled(128)]), atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("name", PARTS)
def test_parts_follow_the_order_of_points(name: str) -> None:
    model = random(PARTS[name]())
    points, category, order = clouds(model), torch.tensor([0, 2]), shuffled(128)
    expected = model(points, category)
    assert expected.shape == (2, 128, 4)
    torch.testing.assert_close(model(points[:, order], category), expected[:, order], atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("name", CLASSIFIERS)
def test_the_number_of_points_is_free(name: str) -> None:
    model = random(CLASSIFIERS[name]())
    for number in (512, 2048) if name in ("hierarchy", "pointmlp") else (200, 300):
        assert model(clouds(model, number)).shape == (2, 4)


@pytest.mark.parametrize("name", PARTS)
def test_every_parameter_of_parts_has_a_gradient(name: str) -> None:
    model = PARTS[name]().train()
    model(clouds(model), torch.tensor([0, 2])).square().sum().backward()
    without = [name for name, parameter in model.named_parameters() if parameter.grad is None]
    if name == "both":  # the last update of the latents has no effect, as the text of the paper has it
        assert without
        assert all(each.startswith("blocks.3.") for each in without)
    else:
        assert without == []


def test_a_new_group_leaves_the_model_as_it_was() -> None:
    plain, grouped = BiXTPoints(**SMALL), BiXTPoints(**SMALL, group="refine", neighbors=6)
    with torch.no_grad():
        plain.classifier[-1].weight.normal_()
    missing, unexpected = grouped.load_state_dict(plain.state_dict(), strict=False)
    assert all(name.startswith("groups.") for name in missing)
    assert unexpected == []
    points = clouds(plain)
    for train in (True, False):
        assert torch.equal(plain.train(train)(points), grouped.train(train)(points))


def test_translation_moves_no_group() -> None:
    model = random(BiXTPoints(**SMALL, group="refine", neighbors=6))
    (group, *_), points = model.groups, clouds(model).double()
    tokens = torch.randn(2, 128, 24, dtype=torch.double)
    group.double()
    from attngraft.models.points.neighborhoods import neighborhoods

    found = [group(each, tokens, neighborhoods(each, anchors=None, neighbors=6)) for each in (points, points + 0.25)]
    torch.testing.assert_close(found[0], found[1])


@pytest.mark.parametrize(
    "create",
    [
        pytest.param(lambda: BiXTPoints(**SMALL, group="refine", neighbors=4), marks=pytest.mark.slow, id="bixt"),
        pytest.param(
            lambda: PointNet(num_classes=4, widths=(16, 16, 64), hidden=(32,), transforms=False, drop_rate=0.0),
            id="pointnet",
        ),
    ],
)
def test_a_few_clouds_are_learned(create: Callable[[], nn.Module]) -> None:
    torch.manual_seed(0)
    model = create().train()
    points, labels = torch.randn(32, 24, 3).tanh(), torch.arange(32) % 4
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for _ in range(150):
        loss = nn.functional.cross_entropy(model(points), labels)
        if loss < 0.3:
            break
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert float(loss.detach()) < 0.3


@pytest.mark.parametrize("name", CLASSIFIERS)
def test_models_run_in_mixed_precision(name: str) -> None:
    model = CLASSIFIERS[name]().train()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = model(clouds(model))
        found.float().square().sum().backward()
    assert found.isfinite().all()
    assert all(each.grad is None or each.grad.isfinite().all() for each in model.parameters())


def test_a_new_head_has_the_given_classes() -> None:
    for name, create in CLASSIFIERS.items():
        model = create()
        model.reset_classifier(7)
        assert model.eval()(clouds(model)).shape == (2, 7), name
        model.reset_classifier(0)
        assert model(clouds(model)).shape[0] == 2


def test_states_of_the_authors_load() -> None:
    model = PARTS["pointmlp"]()
    theirs = {f"module.{name.removeprefix('decoder.')}": value for name, value in model.state_dict().items()}
    assert "module.decode_list.0.fuse.net.0.weight" in theirs
    model.load_state_dict(checkpoint_filter_fn(theirs, model))


def test_clouds_of_another_kind_are_refused() -> None:
    with pytest.raises(UsageError, match=r"takes clouds \(B, N, 3\) of coordinates, not \(2, 5, 6\)"):
        CLASSIFIERS["naive"]()(torch.zeros(2, 5, 6))
    with pytest.raises(UsageError, match="these clouds have 5 points, but 6 are needed"):
        CLASSIFIERS["group"]()(torch.zeros(2, 5, 3))
    with pytest.raises(UsageError, match="depth and neighbors must be 1 or more, not 4 and 0"):
        BiXTPoints(**SMALL, group="refine", neighbors=0)
    with pytest.raises(UsageError, match="num_latents of BiXT must be from 1 to 16,384, not 0"):
        BiXTPoints(**SMALL | {"num_latents": 0})
    with pytest.raises(UsageError, match="a reducer for each of the 4 layers, not 2"):
        BiXTPoints(**SMALL, group="hierarchy", reducers=(2, 2))
