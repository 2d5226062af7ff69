"""From bytes to standardised float64 inputs, as in the paper's published code."""

from __future__ import annotations

import numpy as np
from PIL import Image

MNIST_MEAN, MNIST_STD = 0.1307, 0.3081
CIFAR10_GREY_MEAN, CIFAR10_GREY_STD = 0.4799, 0.2396
# Mean and standard deviation of each colour over the 50000 training images of CIFAR-10, red, green, blue.
CIFAR10_MEAN, CIFAR10_STD = (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)
# Mean and standard deviation over all bytes of the 50000 training images and over those of the 10000 test images.
CIFAR10_PIXELS = ((120.70756512, 64.15007589), (121.52915475, 64.06097012))


def standardise(
    images: np.ndarray, mean: float | tuple[float, ...], std: float | tuple[float, ...], *, flat: bool
) -> np.ndarray:
    """(x/255 - mean)/std per channel; `(n, height, width, channels)`, or `(n, features)` if `flat`.

    The features of a flat image run over rows, then columns, then channels.
    """
    result: np.ndarray = (images / 255.0 - np.asarray(mean)) / np.asarray(std)
    return result.reshape(len(result), int(np.prod(result.shape[1:]))) if flat else result


def resize(images: np.ndarray, size: int) -> np.ndarray:
    """Pillow's bilinear resize of 8-bit images to size x size, which torchvision's `Resize` applies to them."""
    if images.shape[1:3] == (size, size):
        return images
    result = np.empty((len(images), size, size, images.shape[3]), dtype=np.uint8)
    for row, image in zip(result, images, strict=True):
        row[...] = np.asarray(Image.fromarray(image).resize((size, size), Image.Resampling.BILINEAR))
    return result


def to_grey(images: np.ndarray) -> np.ndarray:
    """Pillow's conversion of RGB to 8-bit luminance, which torchvision's `Grayscale` applies; one channel is left."""
    result = np.empty((*images.shape[:3], 1), dtype=np.uint8)
    for row, image in zip(result, images, strict=True):
        row[..., 0] = np.asarray(Image.fromarray(image).convert("L"))
    return result
