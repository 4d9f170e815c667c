"""Gradient attacks on pixels between 0 and 1, before normalization."""

from collections.abc import Callable

import torch
from torch import Tensor

from attngraft.errors import UsageError

#: function of pixels (B, ...) between 0 and 1 that returns the loss to increase, summed over the images
Loss = Callable[[Tensor], Tensor]


def fgsm(loss: Loss, pixels: Tensor, *, epsilon: float) -> Tensor:
    """Apply the fast gradient sign method: clamp(x + epsilon sign(dL/dx), 0, 1) (Goodfellow et al. 2015).

        normalize = torchvision.transforms.v2.Normalize(mean, std)
        attacked = fgsm(
            lambda x: F.cross_entropy(model(normalize(x)), labels, reduction="sum"), pixels, epsilon=1 / 255
        )

    The model should be in eval mode. An enclosing `torch.autocast` is disabled, because gradients of confident predictions
    would underflow in fp16; autocast within `loss` is not affected. The `grad` of parameters does not change.

    Args:
        loss: loss as a function of the images, for any task (one label, several labels, one label per pixel).
        pixels: images between 0 and 1.
        epsilon: largest change of a pixel, on the same scale; usually 1/255 to 8/255 (CB's Table 8 does not state it).

    Raises:
        UsageError: pixels are not between 0 and 1, or epsilon is negative.
    """
    _check(pixels, epsilon)
    return (pixels + epsilon * _uphill(loss, pixels)).clamp(0, 1)


def pgd(
    loss: Loss,
    pixels: Tensor,
    *,
    epsilon: float,
    step: float | None = None,
    steps: int = 10,
    generator: torch.Generator | None = None,
    start: Tensor | None = None,
) -> Tensor:
    """Apply projected gradient descent with the L-infinity norm (Madry et al. 2018).

        x_0 = clamp(x + u, 0, 1);  x_t+1 = clamp(x + clamp(x_t + step sign(dL/dx_t) - x, -epsilon, epsilon), 0, 1)

    Args:
        loss: as in `fgsm`.
        pixels: images between 0 and 1.
        epsilon: largest change of a pixel.
        step: step size; default: 2.5 epsilon / steps, with which every corner of the epsilon box can be reached.
        steps: number of steps.
        generator: random generator for the start u, uniform between -epsilon and epsilon; None: u = 0.
        start: u / epsilon, to use instead of a generator if the start must not depend on the batch.

    Raises:
        UsageError: `steps` is less than 1; see also `fgsm`.
    """
    _check(pixels, epsilon)
    if steps < 1:
        raise UsageError(f"steps must be at least 1, got {steps}")
    step = 2.5 * epsilon / steps if step is None else step
    moved = pixels if start is None else (pixels + epsilon * start.to(pixels)).clamp(0, 1)
    if generator is not None:
        noise = torch.rand(pixels.shape, dtype=pixels.dtype, device=generator.device, generator=generator)
        moved = (pixels + epsilon * (2 * noise.to(pixels.device) - 1)).clamp(0, 1)
    for _ in range(steps):
        ahead = moved + step * _uphill(loss, moved)
        moved = (pixels + (ahead - pixels).clamp(-epsilon, epsilon)).clamp(0, 1)
    return moved


def _uphill(loss: Loss, pixels: Tensor) -> Tensor:
    """Return the sign of the loss's gradient, computed without autocast."""
    with torch.enable_grad(), torch.autocast(pixels.device.type, enabled=False):
        moved = pixels.detach().clone().requires_grad_()
        (gradient,) = torch.autograd.grad(loss(moved).sum(), moved)
    return gradient.sign()


def _check(pixels: Tensor, epsilon: float) -> None:
    if epsilon < 0:
        raise UsageError(
            f"epsilon must not be negative, got {epsilon}; it refers to pixels between 0 and 1, for example 1/255"
        )
    low, high = pixels.aminmax()
    if not (low >= 0 and high <= 1):
        raise UsageError(
            f"pixels must be between 0 and 1, got {float(low):g} to {float(high):g}; use images before normalization"
        )
