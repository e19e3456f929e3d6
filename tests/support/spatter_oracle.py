"""The corruption spatter on one image, from the definitions of OpenCV's functions."""

import heapq
import math
from collections.abc import Sequence

import numpy as np
from scipy import ndimage, stats

from support.corruption_oracles import truncate

Array = np.ndarray


def spatter(image: Array, u: Array, c: Sequence[float]) -> Array:
    mean, deviation, sigma, threshold, strength, is_mud = c
    height, width, _ = image.shape
    liquid = stats.norm.ppf(u, mean, deviation).reshape(height, width)
    liquid = ndimage.gaussian_filter(liquid, sigma, mode="nearest", truncate=4)
    values = image / 255
    if is_mud:
        cover = (liquid > threshold).astype(float)
        cover = ndimage.gaussian_filter(cover, strength, mode="nearest", truncate=4)[..., None]
        cover[cover < 0.8] = 0
        return truncate(values * (1 - cover) + cover * np.array([63, 42, 20]) / 255)
    liquid[liquid < threshold] = 0
    drops = truncate(liquid).astype(float)
    distance = np.minimum(chamfer_distance(canny(drops)), 20)
    smooth = np.floor(ndimage.uniform_filter(distance, 3, mode="mirror") + 1e-6)
    kernel = np.array([[-2, -1, 0], [-1, 1, 1], [0, 1, 2]])
    embossed = ndimage.correlate(equalized(smooth), kernel, mode="mirror").clip(0, 255)
    light = drops * np.round(ndimage.uniform_filter(embossed, 3, mode="mirror"))
    if light.max() > 0:
        light = light / light.max() * strength
    return truncate(values + light[..., None] * np.array([175, 238, 238]) / 255)


def canny(plane: Array) -> Array:
    """Edges with the thresholds 50 and 150."""
    height, width = plane.shape
    gy = ndimage.sobel(plane, 0, mode="nearest")
    gx = ndimage.sobel(plane, 1, mode="nearest")
    size = np.abs(gx) + np.abs(gy)
    around = np.pad(size, 1)
    candidates, stack = set(), []
    for y, x in np.ndindex(height, width):
        m = size[y, x]
        if m <= 50:
            continue
        angle = math.degrees(math.atan2(abs(gy[y, x]), abs(gx[y, x])))
        if angle < 22.5:
            is_peak = m > around[y + 1, x] and m >= around[y + 1, x + 2]
        elif angle > 67.5:
            is_peak = m > around[y, x + 1] and m >= around[y + 2, x + 1]
        else:
            s = -1 if (gx[y, x] < 0) != (gy[y, x] < 0) else 1
            is_peak = m > around[y, x + 1 - s] and m > around[y + 2, x + 1 + s]
        if is_peak:
            candidates.add((y, x))
            if m > 150:
                stack.append((y, x))
    edges = np.zeros((height, width), bool)
    while stack:
        y, x = stack.pop()
        if (y, x) in candidates and not edges[y, x]:
            edges[y, x] = True
            stack += [(y + b, x + a) for b in (-1, 0, 1) for a in (-1, 0, 1)]
    return edges


def chamfer_distance(edges: Array) -> Array:
    """Shortest paths by Dijkstra's algorithm with steps of length 1, 1.4 and 2.1969."""
    height, width = edges.shape
    steps = [
        (y, x, {1: 1.0, 2: 1.4, 5: 2.1969}[y * y + x * x])
        for y in range(-2, 3)
        for x in range(-2, 3)
        if y * y + x * x in (1, 2, 5)
    ]
    distance = np.full(edges.shape, np.inf)
    queue = [(0.0, int(y), int(x)) for y, x in np.argwhere(edges)]
    while queue:
        d, y, x = heapq.heappop(queue)
        if d < distance[y, x]:
            distance[y, x] = d
            for b, a, length in steps:
                if 0 <= y + b < height and 0 <= x + a < width:
                    heapq.heappush(queue, (d + length, y + b, x + a))
    return distance


def equalized(plane: Array) -> Array:
    counts = np.bincount(plane.astype(int).ravel(), minlength=256)
    first = int(np.flatnonzero(counts)[0])
    if counts[first] == plane.size:
        return plane
    table = np.zeros(256)
    total = 0
    for level in range(first + 1, 256):
        total += counts[level]
        table[level] = np.round(total * 255 / (plane.size - counts[first]))
    return table[plane.astype(int)]
