"""Photometric distortion of training images, as of the dense tasks in the papers."""

import numpy as np
import torch
from torch import Tensor
from torchvision.transforms.v2 import functional as F


def recolored(image: Tensor, random: np.random.Generator) -> Tensor:
    """Change brightness by up to 32 of 255, contrast and saturation by 0.5 to 1.5, and hue by up to 18 of 180 degrees.

    Each change has a probability of 0.5; contrast comes before or after saturation and hue. Gray images keep no hue.
    """
    draws, first = random.random(4) < 0.5, random.random() < 0.5
    brightness, contrast, saturation, hue = random.uniform((-32, 0.5, 0.5, -0.1), (32, 1.5, 1.5, 0.1))
    if draws[0]:
        image = (image.float() + float(brightness)).clamp(0, 255).to(torch.uint8)
    for of_contrast in (first, not first):
        if of_contrast and draws[1]:
            image = (image.float() * float(contrast)).clamp(0, 255).to(torch.uint8)
        if not of_contrast and image.shape[0] == 3:
            if draws[2]:
                image = F.adjust_saturation(image, float(saturation))
            if draws[3]:
                image = F.adjust_hue(image, float(hue))
    return image
