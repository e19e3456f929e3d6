"""The paper's theorem: free features collapse to the simplex under every normalized loss.

There is no network and no data: the features themselves are the parameters, together with the
prototypes. Each loss optimizes them from a random start, and three distances to neural collapse are
printed: of samples to their class mean, of the cosines between means to −1/(K−1), and of prototypes
to means. With a ReLU on the features negative cosines are impossible, and the means become
orthogonal instead. Prototypes have no ReLU and still form a simplex, so that a distance to the
means remains.

    python examples/free_features.py
"""

import torch
from rich.progress import track
from torch import Tensor

from protosphere.geometry import cosines, normalize
from protosphere.losses import nonl_loss, normface_loss, ntce_loss, prototype_loss, scl_loss

CLASSES, EACH, DIM, TEMPERATURE, STEPS = 6, 5, 12, 0.2, 1500
LABELS = torch.arange(CLASSES * EACH) % CLASSES

LOSSES = {
    "NormFace": lambda x, w: normface_loss(x, w, LABELS, temperature=TEMPERATURE),
    "NTCE": lambda x, w: ntce_loss(x, w, LABELS, temperature=TEMPERATURE),
    "NONL": lambda x, w: nonl_loss(x, w, LABELS, temperature=TEMPERATURE),
    "NONL, row": lambda x, w: nonl_loss(
        x, w, LABELS, temperature=TEMPERATURE, negatives="prototypes"
    ),
    "NONL, both": lambda x, w: nonl_loss(x, w, LABELS, temperature=TEMPERATURE, negatives="both"),
    "SCL": lambda x, _: scl_loss(x, LABELS, temperature=TEMPERATURE),
    "prototype loss": lambda x, _: prototype_loss(x, LABELS, temperature=TEMPERATURE),
}


def descend(loss: str, *, non_negative: bool, steps: int = STEPS) -> tuple[Tensor, Tensor]:
    """Optimize free features and prototypes, normalized after every step."""
    torch.manual_seed(0)
    free = torch.rand(CLASSES, DIM)[LABELS] + 0.3 * torch.rand(len(LABELS), DIM)
    if not non_negative:
        free = torch.randn(len(LABELS), DIM)
    free, prototypes = (
        free.double().requires_grad_(),
        torch.randn(CLASSES, DIM).double().requires_grad_(),
    )
    optimizer = torch.optim.Adam([free, prototypes], lr=0.05)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    for _ in range(steps):
        optimizer.zero_grad()
        LOSSES[loss](free.relu() if non_negative else free, prototypes).backward()
        optimizer.step()
        schedule.step()
        with torch.no_grad():
            free.copy_(normalize(free))
            prototypes.copy_(normalize(prototypes))
    return normalize(free.relu() if non_negative else free).detach(), prototypes.detach()


def distances(features: Tensor, prototypes: Tensor, expected: float) -> tuple[float, float, float]:
    """Return the largest distance of samples to means, cosines to expected, prototypes to means."""
    means = torch.stack([features[c == LABELS].mean(0) for c in range(CLASSES)])
    between = cosines(means, means)[~torch.eye(CLASSES, dtype=torch.bool)]
    return (
        float((features - means[LABELS]).norm(dim=1).max()),
        float((between - expected).abs().max()),
        float((prototypes - normalize(means)).norm(dim=1).max()),
    )


def main() -> None:
    """Optimize under every loss, with and without ReLU, and print the distances."""
    runs = [(loss, relu) for relu in (False, True) for loss in LOSSES]
    results = {
        (loss, relu): distances(
            *descend(loss, non_negative=relu), 0.0 if relu else -1 / (CLASSES - 1)
        )
        for loss, relu in track(runs, description="optimizing", transient=True)
    }
    print(
        f"{CLASSES} classes of {EACH} free features in {DIM} dimensions, "
        f"temperature {TEMPERATURE}, {STEPS} steps"
    )
    for relu in (False, True):
        goal = (
            "free features: the simplex, cosines −0.2"
            if not relu
            else "with ReLU: an orthogonal frame, cosines 0"
        )
        print(f"\n{goal}")
        print(f"{'':16}{'sample – mean':>15}{'cosine – goal':>15}{'prototype – mean':>18}")
        for loss in LOSSES:
            spread, angle, duality = results[loss, relu]
            has_prototypes = loss not in ("SCL", "prototype loss")
            last = f"{duality:18.0e}" if has_prototypes else f"{'–':>18}"
            print(f"{loss:16}{spread:15.0e}{angle:15.0e}{last}")
    remains = (2 - 2 * (1 - 1 / CLASSES) ** 0.5) ** 0.5
    print(
        "Prototypes have no ReLU and form a simplex; its smallest distance to orthogonal means is "
        f"{remains:.2f}."
    )


if __name__ == "__main__":
    main()
