"""The losses against the usual code: seconds and memory of forward plus backward pass.

python benchmarks/losses.py
"""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from harness import Case, run
from protosphere.losses import nonl_loss, normface_loss, ntce_loss, scl_loss

TEMPERATURE = 0.1
WIDE = (8192, 1000, 2048)  # samples, classes, dimensions: ImageNet on a ResNet-50
MANY = (8192, 50_000, 256)  # so many classes that the matrix of logits is the problem
USUAL = (512, 100, 512)  # CIFAR-100 on a ResNet-18
VIEWS = (1024, 100, 128)  # CIFAR-100, two views of 512 images after a projection


def _case(shape: tuple[int, int, int], loss: Callable[[Tensor, Tensor, Tensor], Tensor]) -> Case:
    def make() -> Callable[[], None]:
        samples, classes, dim = shape
        device = "cuda" if torch.cuda.is_available() else "cpu"
        generator = torch.Generator().manual_seed(0)
        features = torch.randn(samples, dim, generator=generator).to(device).requires_grad_()
        prototypes = torch.randn(classes, dim, generator=generator).to(device).requires_grad_()
        labels = torch.randint(0, classes, (samples,), generator=generator).to(device)

        def step() -> None:
            loss(features, prototypes, labels).backward()
            # So that the memory of the next step is measured from the inputs alone.
            features.grad = prototypes.grad = None

        return step

    return make


def _ntce_by_matrix(features: Tensor, prototypes: Tensor, labels: Tensor) -> Tensor:
    """The paper's formula as it reads: an M × M matrix of prototypes against samples."""
    anchors = F.normalize(prototypes)[labels]
    logits = anchors @ F.normalize(features).T / TEMPERATURE
    return F.cross_entropy(logits, torch.arange(len(labels), device=labels.device))


def _ntce_by_column(features: Tensor, prototypes: Tensor, labels: Tensor) -> Tensor:
    """The plain code that uses that the sum depends on the class only."""
    logits = F.normalize(features) @ F.normalize(prototypes).T / TEMPERATURE
    return (logits.logsumexp(0)[labels] - logits.gather(1, labels[:, None]).squeeze(1)).mean()


def _normface_by_hand(features: Tensor, prototypes: Tensor, labels: Tensor) -> Tensor:
    return F.cross_entropy(F.normalize(features) @ F.normalize(prototypes).T / TEMPERATURE, labels)


def _ours(
    loss: Callable[..., Tensor], form: str = "auto"
) -> Callable[[Tensor, Tensor, Tensor], Tensor]:
    return lambda features, prototypes, labels: loss(
        features, prototypes, labels, temperature=TEMPERATURE, form=form
    )


def _scl_by_hand(features: Tensor, prototypes: Tensor, labels: Tensor) -> Tensor:  # noqa: ARG001
    unit = F.normalize(features)
    logits = unit @ unit.T / TEMPERATURE
    itself = torch.eye(len(labels), dtype=torch.bool, device=labels.device)
    positives = (labels[:, None] == labels) & ~itself
    log_probabilities = logits - logits.masked_fill(itself, -torch.inf).logsumexp(1, keepdim=True)
    sums = torch.where(positives, log_probabilities, 0).sum(1)
    return -(sums / positives.sum(1).clamp(min=1)).mean()


def _ours_on_features(
    loss: Callable[..., Tensor],
) -> Callable[[Tensor, Tensor, Tensor], Tensor]:
    return lambda features, _, labels: loss(features, labels, temperature=TEMPERATURE)


CASES: dict[str, Case] = {
    "wide/ntce/matrix": _case(WIDE, _ntce_by_matrix),
    "wide/ntce/column": _case(WIDE, _ntce_by_column),
    "wide/ntce/protosphere": _case(WIDE, _ours(ntce_loss)),
    "many/normface/by hand": _case(MANY, _normface_by_hand),
    "many/normface/eager": _case(MANY, _ours(normface_loss, "eager")),
    "many/normface/chunked": _case(MANY, _ours(normface_loss, "chunked")),
    "many/nonl/eager": _case(MANY, _ours(nonl_loss, "eager")),
    "many/nonl/chunked": _case(MANY, _ours(nonl_loss, "chunked")),
    "usual/normface/by hand": _case(USUAL, _normface_by_hand),
    "usual/normface/protosphere": _case(USUAL, _ours(normface_loss)),
    "usual/ntce/matrix": _case(USUAL, _ntce_by_matrix),
    "usual/ntce/protosphere": _case(USUAL, _ours(ntce_loss)),
    "usual/nonl/protosphere": _case(USUAL, _ours(nonl_loss)),
    "views/scl/by hand": _case(VIEWS, _scl_by_hand),
    "views/scl/protosphere": _case(VIEWS, _ours_on_features(scl_loss)),
}

# What is compared: (title, shape, our case, case of the rival).
COMPARISONS = (
    ("NTCE, against the M × M matrix", WIDE, "wide/ntce/protosphere", "wide/ntce/matrix"),
    ("NTCE, against plain columns", WIDE, "wide/ntce/protosphere", "wide/ntce/column"),
    ("NormFace, chunked against eager", MANY, "many/normface/chunked", "many/normface/eager"),
    (
        "NormFace, chunked against `F.cross_entropy`",
        MANY,
        "many/normface/chunked",
        "many/normface/by hand",
    ),
    ("NONL, chunked against eager", MANY, "many/nonl/chunked", "many/nonl/eager"),
    ("NTCE, against the M × M matrix", USUAL, "usual/ntce/protosphere", "usual/ntce/matrix"),
    (
        "NormFace, against `F.cross_entropy`",
        USUAL,
        "usual/normface/protosphere",
        "usual/normface/by hand",
    ),
    ("SCL, against plain code", VIEWS, "views/scl/protosphere", "views/scl/by hand"),
)


def table(record: dict[str, Any]) -> str:
    """Return the comparisons as a Markdown table."""
    lines = [
        "| forward + backward | M, K, d | seconds | rival | times as fast "
        "| extra memory | rival | fraction |",
        "|---|---|---:|---:|---:|---:|---:|---:|",
    ]
    for title, shape, ours, rival in COMPARISONS:
        a, b = record["cases"][ours], record["cases"][rival]
        fraction = a["peak_mib"] / b["peak_mib"] if b["peak_mib"] else 1.0
        lines.append(
            f"| {title} | {', '.join(f'{size:,}' for size in shape)} "
            f"| {a['seconds']:.3g} | {b['seconds']:.3g} "
            f"| **{b['seconds'] / a['seconds']:.1f}×** "
            f"| {a['peak_mib']:,.0f} MiB | {b['peak_mib']:,.0f} MiB | {fraction:.2f} |"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    run("losses", CASES, table)
