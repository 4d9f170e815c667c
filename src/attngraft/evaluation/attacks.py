"""Gradient attacks on pixels between 0 and 1, before normalization."""

from collections.abc import Callable

import torch
from torch import Tensor

from attngraft.errors import UsageError

#: from pixels (B, ...) between 0 and 1 to the loss that the attack increases, summed over the images
Loss = Callable[[Tensor], Tensor]


def fgsm(loss: Loss, pixels: Tensor, *, epsilon: float) -> Tensor:
    """One step of the fast gradient sign method: clamp(x + epsilon sign(dL/dx), 0, 1) (Goodfellow et al. 2015).

        normalize = torchvision.transforms.v2.Normalize(mean, std)
        attacked = fgsm(
            lambda x: F.cross_entropy(model(normalize(x)), labels, reduction="sum"), pixels, epsilon=1 / 255
        )

    The model should be in eval mode. `torch.autocast` around the call is disabled for the gradient, which would underflow in
    fp16 where the model is confident; autocast within `loss` is not affected. Gradients of parameters do not change.

    Args:
        loss: of the images, for any task (one label, several, one per pixel).
        pixels: images between 0 and 1.
        epsilon: largest change of a pixel, on the same scale; not stated in CB's Table 8, 1/255 to 8/255 are usual.

    Raises:
        UsageError: pixels lie outside of 0 to 1, or epsilon is negative.
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
    """Projected gradient descent, in the largest norm (Madry et al. 2018):

        x_0 = clamp(x + u, 0, 1);  x_t+1 = clamp(x + clamp(x_t + step sign(dL/dx_t) - x, -epsilon, epsilon), 0, 1)

    Args:
        loss: as in `fgsm`.
        pixels: images between 0 and 1.
        epsilon: largest change of a pixel.
        step: per pixel; default: 2.5 epsilon / steps, which can reach every corner.
        steps: number of steps.
        generator: of the random start u, uniform between -epsilon and epsilon; None: u = 0.
        start: u / epsilon, instead of a generator, for starts that do not depend on the batch.

    Raises:
        UsageError: as `fgsm`, or no steps.
    """
    _check(pixels, epsilon)
    if steps < 1:
        raise UsageError(f"steps={steps}: give one or more")
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
    """Signs of the loss's gradient, in full precision."""
    with torch.enable_grad(), torch.autocast(pixels.device.type, enabled=False):
        moved = pixels.detach().clone().requires_grad_()
        (gradient,) = torch.autograd.grad(loss(moved).sum(), moved)
    return gradient.sign()


def _check(pixels: Tensor, epsilon: float) -> None:
    if epsilon < 0:
        raise UsageError(
            f"epsilon={epsilon}: give a number of 0 or more, on pixels between 0 and 1 (1/255, for example)"
        )
    low, high = pixels.aminmax()
    if not (low >= 0 and high <= 1):
        raise UsageError(
            f"pixels lie between {float(low):g} and {float(high):g}; attacks take images between 0 and 1, unnormalized"
        )
