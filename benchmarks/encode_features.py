"""Write the features of images through a timm model, for benchmarks/whitening.py.

The images are an .npz file with x_train, x_test (uint8, images × height × width × 3), y_train and
y_test. A long-tailed training set keeps n_max · ratio^(c/(K − 1)) images of class c.

    python benchmarks/encode_features.py flowers.npz features.npz --weights FILE --size 160
    python benchmarks/encode_features.py cifar100.npz lt.npz --weights FILE --size 96 --ratio 0.01
"""

import argparse

import numpy as np
import timm
import torch
from rich.progress import track
from safetensors.torch import load_file
from torch import nn

_BATCH = 64


def create_model(name: str, weights: str | None) -> nn.Module:
    """Return a timm model without its classifier, from a file of weights or timm's own."""
    model: nn.Module = timm.create_model(name, pretrained=weights is None, num_classes=0)
    if weights is not None:
        missing, _ = model.load_state_dict(load_file(weights), strict=False)
        if missing:
            raise SystemExit(f"{weights} must have the weights of {name}, without {missing[0]}")
    device = "cuda" if torch.cuda.is_available() else "cpu"
    return model.eval().to(device, memory_format=torch.channels_last)


@torch.inference_mode()
def encode(model: nn.Module, images: np.ndarray, *, size: int) -> np.ndarray:
    """Return the features of uint8 images, resized to a square."""
    config = model.pretrained_cfg
    device = next(model.parameters()).device
    mean, std = (torch.tensor(config[key], device=device)[:, None, None] for key in ("mean", "std"))
    features = []
    for start in track(range(0, len(images), _BATCH), description="encoding", transient=True):
        rows = torch.from_numpy(np.ascontiguousarray(images[start : start + _BATCH])).to(device)
        pixels = nn.functional.interpolate(
            rows.permute(0, 3, 1, 2).float() / 255,
            size=(size, size),
            mode="bicubic",
            antialias=True,
        )
        features.append(model((pixels.clamp(0, 1) - mean) / std).float().cpu())
    return torch.cat(features).numpy()


def choose(labels: np.ndarray, *, limit: int | None, ratio: float | None) -> np.ndarray:
    """Return the indices of a random part, or of a long-tailed one."""
    order = np.random.default_rng(0).permutation(len(labels))[:limit]
    if ratio is None:
        return np.sort(order)
    classes, counts = np.unique(labels[order], return_counts=True)
    kept = [
        order[labels[order] == name][
            : max(1, int(counts.max() * ratio ** (i / (len(classes) - 1))))
        ]
        for i, name in enumerate(classes)
    ]
    return np.sort(np.concatenate(kept))


def main() -> None:
    """Encode the images of a file and write the features."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("images", help="file of images (.npz)")
    parser.add_argument("out", help="file to write (.npz)")
    parser.add_argument("--model", default="tf_efficientnet_lite0", help="name of a timm model")
    parser.add_argument("--weights", help="file of its weights (.safetensors)")
    parser.add_argument("--size", type=int, default=160, help="size that images are resized to")
    parser.add_argument("--train", type=int, help="number of training images")
    parser.add_argument("--test", type=int, help="number of test images")
    parser.add_argument("--ratio", type=float, help="smallest over largest class, long-tailed")
    arguments = parser.parse_args()
    model = create_model(arguments.model, arguments.weights)
    arrays: dict[str, np.ndarray] = {}
    with np.load(arguments.images) as file:
        for split, limit, ratio in (
            ("train", arguments.train, arguments.ratio),
            ("test", arguments.test, None),
        ):
            labels = file[f"y_{split}"]
            indices = choose(labels, limit=limit, ratio=ratio)
            images = file[f"x_{split}"][indices]
            arrays[f"features_{split}"] = encode(model, images, size=arguments.size)
            arrays[f"labels_{split}"] = labels[indices].astype(np.int64)
    np.savez(arguments.out, **arrays)


if __name__ == "__main__":
    main()
