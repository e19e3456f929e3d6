"""A classifier from somebody else's embeddings: class means on the features of a timm backbone.

Nothing is trained. Handwritten digits go through a network as it comes (with weights from the hub if you ask for them),
and class means of its outputs classify new ones; a class that was held back is added afterwards. Logistic regression on
the same features stands beside it.

    python examples/embeddings.py               # a network with random weights: no download
    python examples/embeddings.py --pretrained  # timm's weights for ImageNet
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
def embeddings(images: np.ndarray, *, pretrained: bool) -> np.ndarray:
    """Features of a ResNet-18, one row an image."""
    torch.manual_seed(0)
    pixels = torch.from_numpy(images).float()[:, None] / 16
    pixels = torch.nn.functional.interpolate(pixels, size=32, mode="bilinear").expand(-1, 3, -1, -1)
    if pretrained:
        model = timm.create_model("resnet18", pretrained=True, num_classes=0)
    else:  # Random weights, and batch norms that have seen some images.
        model = timm.create_model("resnet18", num_classes=0, zero_init_last=False)
        for module in model.modules():
            if isinstance(module, torch.nn.BatchNorm2d):
                module.momentum = 1.0
        model(pixels[:256])
    return torch.cat([model.eval()(part) for part in pixels.split(256)]).numpy()


def main() -> None:
    """Embed, fit, compare, add a class."""
    digits = load_digits()
    features = embeddings(digits.images, pretrained="--pretrained" in sys.argv)
    features = features - features.mean(
        0
    )  # Outputs of a ReLU share a direction; what differs is what counts.
    x_train, x_test, y_train, y_test = train_test_split(
        features, digits.target, test_size=1 / 3, random_state=0
    )
    print(
        f"{len(x_train)} embeddings in {features.shape[1]} dimensions to fit, {len(x_test)} to test"
    )
    for classifier in (PrototypeClassifier(), LogisticRegression(max_iter=2000)):
        start = time.perf_counter()
        classifier.fit(x_train, y_train)
        seconds = time.perf_counter() - start
        print(
            f"{type(classifier).__name__:20} {100 * classifier.score(x_test, y_test):5.1f} %  fitted in {seconds:.3f} s"
        )
    without = PrototypeClassifier().fit(x_train[y_train != 9], y_train[y_train != 9])
    before = without.score(x_test, y_test)
    without.add_class(9, x_train[y_train == 9])
    print(
        f"without the nines {100 * before:5.1f} %, and {100 * without.score(x_test, y_test):5.1f} % once they are added"
    )


if __name__ == "__main__":
    main()
