"""Tokenizers and local patch interaction."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

from attngraft.errors import UsageError
from attngraft.models.bixt.tokenizers import (
    ConvolutionalEmbedding,
    LocalPatchInteraction,
    PatchEmbedding,
    make_tokenizer,
    square,
    token_grid,
)


@pytest.mark.parametrize(("patch", "stride"), [(4, 4), (4, 2), (8, 2), (2, 2), (5, 1)])
def test_a_token_is_a_linear_map_of_its_patch(patch: int, stride: int) -> None:
    torch.manual_seed(0)
    module = PatchEmbedding(patch, stride, in_chans=2, dim=3)
    images = torch.randn(1, 2, 8, 16)
    tokens = module(images)
    rows, columns = token_grid((8, 16), stride)
    assert tokens.shape == (1, rows * columns, 3)
    border = (patch - stride) // 2
    padded = F.pad(images, (border,) * 4)
    for row, column in ((0, 0), (rows - 1, 1), (1, columns - 1)):
        seen = padded[0, :, row * stride : row * stride + patch, column * stride : column * stride + patch]
        expected = module.proj.weight.flatten(1) @ seen.flatten() + module.proj.bias
        torch.testing.assert_close(tokens[0, row * columns + column], expected)


@pytest.mark.parametrize(("patch", "widths"), [(4, [4, 8]), (8, [2, 4, 8]), (16, [1, 2, 4, 8])])
def test_the_convolutional_tokenizer(patch: int, widths: list[int]) -> None:
    module = ConvolutionalEmbedding(patch, in_chans=2, dim=8).eval()
    assert module(torch.randn(2, 2, 32, 16)).shape == (2, 32 * 16 // patch**2, 8)
    shapes = {name: tuple(value.shape) for name, value in module.named_parameters()}
    before = 2
    for index, width in enumerate(widths):
        assert shapes.pop(f"proj.{2 * index}.0.weight") == (width, before, 3, 3)
        assert shapes.pop(f"proj.{2 * index}.1.weight") == shapes.pop(f"proj.{2 * index}.1.bias") == (width,)
        before = width
    assert not shapes
    assert not isinstance(module.proj[-1], torch.nn.GELU)


@pytest.mark.parametrize("norm", ["bn", "ln"])
def test_local_patch_interaction_is_its_equation(norm: str) -> None:
    torch.manual_seed(0)
    module = LocalPatchInteraction(4, norm=norm).eval()
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.normal_()
    tokens = torch.randn(2, 15, 4)
    maps = tokens.transpose(1, 2).reshape(2, 4, 3, 5)
    maps = F.gelu(F.conv2d(maps, module.conv1.weight, module.conv1.bias, padding=1, groups=4))
    if norm == "bn":
        maps = F.batch_norm(maps, torch.zeros(4), torch.ones(4), module.bn.weight, module.bn.bias)
    else:
        maps = F.layer_norm(maps.permute(0, 2, 3, 1), (4,), module.bn.weight, module.bn.bias).permute(0, 3, 1, 2)
    maps = F.conv2d(maps, module.conv2.weight, module.conv2.bias, padding=1, groups=4)
    torch.testing.assert_close(module(tokens, (3, 5)), maps.flatten(2).transpose(1, 2))


def test_tokens_without_a_grid_are_a_square() -> None:
    module = LocalPatchInteraction(4).eval()
    tokens = torch.randn(1, 9, 4)
    assert torch.equal(module(tokens), module(tokens, (3, 3)))
    with pytest.raises(UsageError, match="10 tokens do not form a square grid"):
        square(10)


def test_what_cannot_be() -> None:
    with pytest.raises(UsageError, match="patches of 4 at stride 3"):
        PatchEmbedding(4, 3)
    with pytest.raises(UsageError, match="patches of 4 at stride 8"):
        PatchEmbedding(4, 8)
    with pytest.raises(UsageError, match="must be 4, 8 or 16, not 32"):
        ConvolutionalEmbedding(32)
    with pytest.raises(UsageError, match="require a width that can be halved 3 times"):
        ConvolutionalEmbedding(16, dim=12)
    with pytest.raises(UsageError, match="stride must equal its patch size, 16, not 8"):
        make_tokenizer("conv", 16, 8, in_chans=3, dim=16)
    with pytest.raises(UsageError, match="tokenizer of BiXT must be 'linear' or 'conv', not 'mlp'"):
        make_tokenizer("mlp", 16, in_chans=3, dim=16)
    with pytest.raises(UsageError, match="norm of BiXT must be 'bn' or 'ln'"):
        LocalPatchInteraction(4, norm="gn")
    with pytest.raises(UsageError, match="images of 30 x 32 are not divisible by the stride 8"):
        token_grid((30, 32), 8)
