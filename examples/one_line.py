"""One line of a training script changed: cross-entropy against NONL on handwritten digits.

A small network, twice, from the same weights. The only difference is the loss. It prints the test accuracy and how the
class prototypes stand to each other: ten vectors as far apart as can be have cosines of −1/9 = −0.111.

    python examples/one_line.py
"""

import time

import torch
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import Tensor, nn

from protosphere.geometry import cosines
from protosphere.losses import cross_entropy_loss, nonl_loss

EPOCHS, BATCH, SEEDS, CLASSES, DIM = 40, 128, 3, 10, 32

LOSSES = {
    "cross-entropy": lambda features, head, labels: cross_entropy_loss(
        features, head.weight, labels, bias=head.bias
    ),
    "NONL": lambda features, head, labels: nonl_loss(
        features, head.weight, labels, temperature=0.2
    ),
}


def data() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """1,797 images of 8 × 8 pixels, a third of them held out for the test."""
    digits = load_digits()
    parts = train_test_split(
        digits.data / 16, digits.target, test_size=1 / 3, stratify=digits.target, random_state=0
    )
    x_train, x_test, y_train, y_test = (torch.tensor(part) for part in parts)
    return x_train.float(), x_test.float(), y_train, y_test


def train(loss: str, seed: int, x: Tensor, y: Tensor) -> tuple[nn.Module, nn.Linear]:
    """An ordinary training loop; the line with the loss is the one that changes."""
    torch.manual_seed(seed)
    encoder = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, DIM))
    head = nn.Linear(DIM, CLASSES)
    optimizer = torch.optim.AdamW([*encoder.parameters(), *head.parameters()], lr=3e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, EPOCHS)
    for _ in range(EPOCHS):
        for batch in torch.randperm(len(x)).split(BATCH):
            optimizer.zero_grad()
            LOSSES[loss](encoder(x[batch]), head, y[batch]).backward()
            optimizer.step()
        schedule.step()
    return encoder, head


def describe(
    loss: str, encoder: nn.Module, head: nn.Linear, x: Tensor, y: Tensor
) -> tuple[float, Tensor]:
    """Test accuracy (in percent) and the cosines between different prototypes."""
    with torch.no_grad():
        features = encoder(x)
        logits = head(features) if loss == "cross-entropy" else cosines(features, head.weight)
        accuracy = 100 * (logits.argmax(1) == y).double().mean().item()
        between = cosines(head.weight, head.weight)[~torch.eye(CLASSES, dtype=torch.bool)]
    return accuracy, between


def main() -> None:
    """Train both, several seeds each, and print what came out."""
    x_train, x_test, y_train, y_test = data()
    print(
        f"handwritten digits: {len(x_train)} images to train on, {len(x_test)} to test on, {SEEDS} seeds\n"
    )
    print(
        "loss             test accuracy    cosines between prototypes: mean ± deviation (smallest … largest)"
    )
    for loss in LOSSES:
        start = time.perf_counter()
        results = [
            describe(loss, *train(loss, seed, x_train, y_train), x_test, y_test)
            for seed in range(SEEDS)
        ]
        accuracy = torch.tensor([accuracy for accuracy, _ in results])
        between = torch.cat([between for _, between in results])
        print(
            f"{loss:15}  {accuracy.mean():5.1f} ± {accuracy.std():3.1f} %    "
            f"{between.mean():+.3f} ± {between.std():.3f} ({between.min():+.3f} … {between.max():+.3f})"
            f"    [{time.perf_counter() - start:.1f} s]"
        )
    print(f"{'simplex':15}                   {-1 / (CLASSES - 1):+.3f} ± 0.000")


if __name__ == "__main__":
    main()
