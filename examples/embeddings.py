"""Classify embeddings of a pretrained network with class means, without training.

Handwritten digits are embedded with a timm backbone, and class means of the embeddings classify new
digits; a class that was held out is added afterwards. The embeddings were not trained for class
means: whitening divides the variation within classes out of them, and comes close to logistic
regression on the same embeddings, or passes it, without training.

    python examples/embeddings.py               # random weights: no download
    python examples/embeddings.py --pretrained  # ImageNet weights from timm
"""

import sys
import time

import numpy as np
import timm
import torch
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import train_test_split

from protosphere.classifiers import PrototypeClassifier


@torch.no_grad()
def embed(images: np.ndarray, *, pretrained: bool) -> np.ndarray:
    """Return features of a ResNet-18, one row per image."""
    torch.manual_seed(0)
    pixels = torch.from_numpy(images).float()[:, None] / 16
    pixels = torch.nn.functional.interpolate(pixels, size=32, mode="bilinear").expand(-1, 3, -1, -1)
    if pretrained:
        model = timm.create_model("resnet18", pretrained=True, num_classes=0)
    else:  # Random weights, with the batch statistics of some images.
        model = timm.create_model("resnet18", num_classes=0, zero_init_last=False)
        for module in model.modules():
            if isinstance(module, torch.nn.BatchNorm2d):
                module.momentum = 1.0
        model(pixels[:256])
    return torch.cat([model.eval()(batch) for batch in pixels.split(256)]).numpy()


def main() -> None:
    """Embed the digits, compare three classifiers and add a class."""
    digits = load_digits()
    features = embed(digits.images, pretrained="--pretrained" in sys.argv)
    features -= features.mean(0)  # Outputs of a ReLU have a large common component.
    x_train, x_test, y_train, y_test = train_test_split(
        features, digits.target, test_size=1 / 3, random_state=0
    )
    print(f"{len(x_train)} training and {len(x_test)} test embeddings, dim {features.shape[1]}")
    classifiers = {
        "class means": PrototypeClassifier(),
        "whitened class means": PrototypeClassifier(whitening="shrunk"),
        "logistic regression": LogisticRegression(max_iter=2000),
    }
    for name, classifier in classifiers.items():
        start = time.perf_counter()
        classifier.fit(x_train, y_train)
        seconds = time.perf_counter() - start
        accuracy = 100 * classifier.score(x_test, y_test)
        print(f"{name:20} {accuracy:5.1f}%, fitted in {seconds:.3f} s")
    is_nine = y_train == 9
    classifier = PrototypeClassifier(whitening="shrunk").fit(x_train[~is_nine], y_train[~is_nine])
    before = 100 * classifier.score(x_test, y_test)
    classifier.add_class(9, x_train[is_nine])
    after = 100 * classifier.score(x_test, y_test)
    print(f"whitened, without class 9: {before:.1f}%, after adding it: {after:.1f}%")


if __name__ == "__main__":
    main()
