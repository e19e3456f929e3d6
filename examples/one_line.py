"""One line of a training script changed: cross-entropy against NONL on handwritten digits.

A small network is trained twice from the same weights. Only the loss and its head differ. The
script prints the test accuracy and the cosines between class prototypes: ten vectors as far apart
as possible have cosines of −1/9 = −0.111.

    python examples/one_line.py
"""

import time
from collections.abc import Callable

import torch
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import Tensor, nn

from protosphere.classifiers import CosineClassifier, LinearClassifier
from protosphere.geometry import cosines
from protosphere.losses import CrossEntropyLoss, NONLLoss

EPOCHS, BATCH_SIZE, SEEDS, NUM_CLASSES, DIM = 40, 128, 3, 10, 32

Classifier = LinearClassifier | CosineClassifier
LOSSES: dict[str, Callable[[], tuple[nn.Module, Classifier]]] = {
    "cross-entropy": lambda: (CrossEntropyLoss(), LinearClassifier(DIM, NUM_CLASSES)),
    "NONL": lambda: (NONLLoss(), CosineClassifier(DIM, NUM_CLASSES, temperature=0.2)),
}


def load_data() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Load 1,797 images of 8 × 8 pixels, a third of them for the test."""
    digits = load_digits()
    arrays = train_test_split(
        digits.data / 16, digits.target, test_size=1 / 3, stratify=digits.target, random_state=0
    )
    x_train, x_test, y_train, y_test = (torch.tensor(array) for array in arrays)
    return x_train.float(), x_test.float(), y_train, y_test


def train(name: str, seed: int, x: Tensor, y: Tensor) -> tuple[nn.Module, Classifier]:
    """Run an ordinary training loop and return the encoder and the head."""
    torch.manual_seed(seed)
    encoder = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, DIM))
    loss, head = LOSSES[name]()  # The line that changes.
    optimizer = torch.optim.AdamW([*encoder.parameters(), *head.parameters()], lr=3e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, EPOCHS)
    for _ in range(EPOCHS):
        for batch in torch.randperm(len(x)).split(BATCH_SIZE):
            optimizer.zero_grad()
            loss(encoder(x[batch]), head, y[batch]).backward()
            optimizer.step()
        schedule.step()
    return encoder, head


def evaluate(encoder: nn.Module, head: Classifier, x: Tensor, y: Tensor) -> tuple[float, Tensor]:
    """Return the accuracy in percent and the cosines between different prototypes."""
    with torch.no_grad():
        accuracy = 100 * (head.predict(encoder(x)) == y).double().mean().item()
        gram = cosines(head.prototypes, head.prototypes)
    return accuracy, gram[~torch.eye(NUM_CLASSES, dtype=torch.bool)]


def main() -> None:
    """Train with both losses and several seeds, and print the results."""
    x_train, x_test, y_train, y_test = load_data()
    print(
        f"handwritten digits: {len(x_train)} training images, {len(x_test)} test images, "
        f"{SEEDS} seeds\n"
    )
    print("loss             test accuracy    cosines between prototypes: mean ± std (min … max)")
    for name in LOSSES:
        start = time.perf_counter()
        results = [
            evaluate(*train(name, seed, x_train, y_train), x_test, y_test) for seed in range(SEEDS)
        ]
        accuracy = torch.tensor([accuracy for accuracy, _ in results])
        between = torch.cat([between for _, between in results])
        print(
            f"{name:15}  {accuracy.mean():5.1f} ± {accuracy.std():3.1f}%    "
            f"{between.mean():+.3f} ± {between.std():.3f} "
            f"({between.min():+.3f} … {between.max():+.3f})"
            f"    [{time.perf_counter() - start:.1f} s]"
        )
    print(f"{'simplex':15}                   {-1 / (NUM_CLASSES - 1):+.3f} ± 0.000")


if __name__ == "__main__":
    main()
