"""The corruptions one image at a time, from their definitions, with scalar loops, scipy and Pillow.

An image is a uint8 array (height, width, 3), ``u`` the uniform numbers of the image, and ``c`` its
constants in the published order.
"""

import colorsys
import io
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from PIL import Image
from scipy import ndimage, stats

Array = np.ndarray


def truncate(values: Array) -> Array:
    """Clip to [0, 1] and truncate to levels; 1e-6 keeps rounding from taking off a level."""
    return np.floor(np.clip(values, 0, 1) * 255 + 1e-6).astype(np.uint8)


def _per_channel(function: Callable[[Array], Array], image: Array) -> Array:
    return np.stack([function(image[..., channel]) for channel in range(image.shape[2])], axis=2)


def _as_image(u: Array, image: Array) -> Array:
    height, width, channels = image.shape
    return u.reshape(channels, height, width).transpose(1, 2, 0)


def gaussian_noise(image: Array, u: Array, c: float) -> Array:
    return truncate(image / 255 + stats.norm.ppf(_as_image(u, image)) * c)


def speckle_noise(image: Array, u: Array, c: float) -> Array:
    return truncate(image / 255 * (1 + stats.norm.ppf(_as_image(u, image)) * c))


def shot_noise(image: Array, u: Array, c: float) -> Array:
    return truncate(stats.poisson.ppf(_as_image(u, image), image / 255 * c) / c)


def impulse_noise(image: Array, u: Array, c: float) -> Array:
    changed = image.copy()
    numbers = _as_image(u, image)
    for place in np.ndindex(image.shape):
        if numbers[place] <= c:
            changed[place] = 255 if numbers[place] <= c / 2 else 0
    return changed


def gaussian_blur(image: Array, u: Array, c: float) -> Array:
    return truncate(_blurred(image / 255, c))


def _blurred(values: Array, sigma: float) -> Array:
    return _per_channel(
        lambda plane: ndimage.gaussian_filter(plane, sigma, mode="nearest", truncate=4), values
    )


def defocus_blur(image: Array, u: Array, c: Sequence[float]) -> Array:
    kernel = _disk(*c)
    return truncate(
        _per_channel(lambda plane: ndimage.correlate(plane, kernel, mode="mirror"), image / 255)
    )


def _disk(radius: float, sigma: float) -> Array:
    half, reach = (8, 1) if radius <= 8 else (int(radius), 2)
    side = range(-half, half + 1)
    kernel = np.array([[float(x * x + y * y <= radius**2) for x in side] for y in side])
    kernel /= kernel.sum()
    weights = np.array([math.exp(-(d * d) / (2 * sigma**2)) for d in range(-reach, reach + 1)])
    for axis in (0, 1):
        kernel = ndimage.correlate1d(kernel, weights / weights.sum(), axis, mode="mirror")
    return kernel


def glass_blur(image: Array, u: Array, c: Sequence[Any]) -> Array:
    sigma, reach, iterations = c
    height, width, _ = image.shape
    x = truncate(_blurred(image / 255, sigma))
    shifts = np.floor(u * 2 * reach).astype(int) - reach
    shifts = shifts.reshape(iterations, 2, height, width)
    for i in range(iterations):
        for h in range(height - reach, reach, -1):
            for w in range(width - reach, reach, -1):
                h2, w2 = h + shifts[i, 0, h, w], w + shifts[i, 1, h, w]
                # The published line; its right-hand sides are views, not copies.
                x[h, w], x[h2, w2] = x[h2, w2], x[h, w]
    return truncate(_blurred(x / 255, sigma))


def motion_blur(image: Array, u: Array, c: Sequence[float]) -> Array:
    return _line_blur(image, -45 + 90 * u[0], *c)


def _line_blur(image: Array, degrees: float, radius: float, sigma: float) -> Array:
    height, width, _ = image.shape
    taps = range(2 * int(radius) + 1)
    weights = np.array([math.exp(-(i * i) / (2 * sigma**2)) for i in taps])
    weights /= weights.sum()
    angle = math.radians(degrees)
    blurred = np.zeros(image.shape)
    for i in taps:
        rows = np.arange(height) + math.ceil(i * math.sin(angle) - 0.5)
        columns = np.arange(width) + math.ceil(i * math.cos(angle) - 0.5)
        place = np.ix_(rows.clip(0, height - 1), columns.clip(0, width - 1))
        blurred += weights[i] * image[place]
    return np.round(blurred).astype(np.uint8)


def zoom_blur(image: Array, u: Array, c: Sequence[float]) -> Array:
    values = image / 255
    factors = np.arange(1, *c)
    return truncate((values + sum(_magnified(values, f) for f in factors)) / (len(factors) + 1))


def _magnified(values: Array, factor: float) -> Array:
    for axis in (0, 1):
        size = values.shape[axis]
        crop = int(np.ceil(size / factor))
        start = (size - crop) // 2
        values = values.take(range(start, start + crop), axis)
        zooms = [factor if a == axis else 1 for a in range(values.ndim)]
        values = ndimage.zoom(values, zooms, order=1)
        trim = (values.shape[axis] - size) // 2
        values = values.take(range(trim, trim + size), axis)
    return values


def snow(image: Array, u: Array, c: Sequence[float]) -> Array:
    mean, deviation, factor, threshold, radius, sigma, weight = c
    height, width, _ = image.shape
    layer = stats.norm.ppf(u[:-1], mean, deviation).reshape(height, width)
    layer = _magnified(layer, factor)
    layer[layer < threshold] = 0
    blurred = _line_blur(truncate(layer)[..., None], -135 + 90 * u[-1], radius, sigma) / 255
    x = image / 255
    gray = 0.299 * x[..., :1] + 0.587 * x[..., 1:2] + 0.114 * x[..., 2:]
    x = weight * x + (1 - weight) * np.maximum(x, gray * 1.5 + 0.5)
    return truncate(x + blurred + np.rot90(blurred, k=2))


def frost(image: Array, u: Array, c: Sequence[Any]) -> Array:
    image_weight, texture_weight, textures = c
    height, width, _ = image.shape
    texture = textures[int(u[0] * len(textures))]
    top = int(u[1] * (texture.shape[0] - height))
    left = int(u[2] * (texture.shape[1] - width))
    crop = texture[top : top + height, left : left + width]
    return truncate((image_weight * image.astype(float) + texture_weight * crop) / 255)


def fog(image: Array, u: Array, c: Sequence[float]) -> Array:
    amount, decay = c
    height, width, _ = image.shape
    values = image / 255
    highest = values.max()
    values = values + amount * _diamond_square(u, decay)[:height, :width, None]
    return truncate(values * highest / (highest + amount))


def _diamond_square(u: Array, decay: float) -> Array:
    side = math.isqrt(len(u) + 1)
    heights = np.full((side, side), np.nan)
    heights[0, 0] = 0
    numbers = iter(u)
    step, wibble = side, 100.0
    while step >= 2:
        half = step // 2
        around = {"center": [(-half, -half), (-half, half), (half, -half), (half, half)]}
        around["edge"] = [(-half, 0), (half, 0), (0, -half), (0, half)]
        for top, left, kind in ((half, half, "center"), (0, half, "edge"), (half, 0, "edge")):
            for y in range(top, side, step):
                for x in range(left, side, step):
                    known = [heights[(y + b) % side, (x + a) % side] for b, a in around[kind]]
                    heights[y, x] = sum(known) / 4 + wibble * wibble * (2 * next(numbers) - 1)
        step, wibble = half, wibble / decay
    heights -= heights.min()
    return heights / heights.max()


def _map_hsv(
    image: Array, change: Callable[[float, float, float], tuple[float, float, float]]
) -> Array:
    changed = np.empty(image.shape)
    for place in np.ndindex(image.shape[:2]):
        changed[place] = colorsys.hsv_to_rgb(*change(*colorsys.rgb_to_hsv(*(image[place] / 255))))
    return truncate(changed)


def brightness(image: Array, u: Array, c: float) -> Array:
    return _map_hsv(image, lambda h, s, v: (h, s, min(v + c, 1)))


def saturate(image: Array, u: Array, c: Sequence[float]) -> Array:
    return _map_hsv(image, lambda h, s, v: (h, min(max(s * c[0] + c[1], 0), 1), v))


def contrast(image: Array, u: Array, c: float) -> Array:
    means = (image / 255).mean((0, 1), keepdims=True)
    return truncate((image / 255 - means) * c + means)


def pixelate(image: Array, u: Array, c: float) -> Array:
    height, width, _ = image.shape
    small = Image.fromarray(image).resize((int(width * c), int(height * c)), Image.Resampling.BOX)
    return np.asarray(small.resize((width, height), Image.Resampling.BOX))


def jpeg_compression(image: Array, u: Array, c: int) -> Array:
    stream = io.BytesIO()
    Image.fromarray(image).save(stream, "JPEG", quality=c)
    return np.asarray(Image.open(stream))


def elastic_transform(image: Array, u: Array, c: Sequence[float]) -> Array:
    """The constants are in pixels."""
    amplitude, sigma, shift = c
    height, width, _ = image.shape
    center, side = np.array([height // 2, width // 2]), min(height, width) // 3
    corners = np.array([center + side, center + np.array([side, -side]), center - side])
    moved = corners + shift * (2 * u[:6].reshape(3, 2) - 1)
    # Six equations for a matrix that takes every corner to where it is moved.
    forward = np.linalg.solve(np.c_[corners, np.ones(3)], moved).T
    back = np.linalg.inv(np.vstack([forward, [0, 0, 1]]))
    y, x = np.mgrid[:height, :width]
    from_x, from_y, _ = np.tensordot(back, np.stack([x, y, np.ones_like(x)]), 1)
    values = _sampled(image / 255, from_y, from_x, "mirror")
    fields = (2 * u[6:] - 1).reshape(2, height, width)
    dx, dy = (
        amplitude * ndimage.gaussian_filter(field, sigma, mode="reflect", truncate=3)
        for field in fields
    )
    return truncate(_sampled(values, y + dy, x + dx, "reflect"))


def _sampled(values: Array, y: Array, x: Array, mode: str) -> Array:
    return _per_channel(
        lambda plane: ndimage.map_coordinates(plane, [y, x], order=1, mode=mode), values
    )
