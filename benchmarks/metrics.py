"""All metrics of 50,000 × 512 features of 100 classes, against their definitions in float64.

The rivals take the singular values of the covariance of each class.

python benchmarks/metrics.py
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from harness import Case, run
from protosphere.metrics import measure

SAMPLES, CLASSES, DIM = 50_000, 100, 512


def _samples() -> tuple[Tensor, Tensor, Tensor]:
    """Return classes with random means and decaying spectra, as trained networks have."""
    generator = torch.Generator().manual_seed(0)
    labels = torch.randint(0, CLASSES, (SAMPLES,), generator=generator)
    centers = torch.randn(CLASSES, DIM, generator=generator)
    decay = torch.logspace(0, -2, DIM)
    features = centers[labels] + torch.randn(SAMPLES, DIM, generator=generator) * decay
    return features, labels, centers + 0.1 * torch.randn(CLASSES, DIM, generator=generator)


def _svdvals_torch(covariance: Tensor) -> Tensor:
    return torch.linalg.svdvals(covariance)


def _svdvals_numpy(covariance: Tensor) -> Tensor:
    return torch.from_numpy(np.linalg.svd(covariance.numpy(), compute_uv=False))


def _full_svd(covariance: Tensor) -> Tensor:
    """As in the authors' code, which also computes the singular vectors."""
    return torch.linalg.svd(covariance)[1]


def _erank(values: Tensor) -> Tensor:
    values = values[values > 0]
    probabilities = values / values.sum()
    return torch.exp(-(probabilities * probabilities.log()).sum())


def _entropy(gram: Tensor) -> Tensor:
    values = torch.linalg.eigvalsh(gram / len(gram))
    values = values[values > 1e-15]
    return -(values * values.log()).sum()


def _information(weights_gram: Tensor, means_gram: Tensor) -> tuple[Tensor, Tensor]:
    w, m = _entropy(weights_gram), _entropy(means_gram)
    joint = _entropy(weights_gram * means_gram)
    return (w + m - joint) / torch.minimum(w, m), (w - m).abs() / torch.maximum(w, m)


def _nc2(vectors: Tensor, suffix: str) -> dict[str, Tensor]:
    centered = vectors - vectors.mean(0)
    unit = torch.nn.functional.normalize(centered)
    different = ~torch.eye(CLASSES, dtype=torch.bool)
    cosines, norms, gram = (unit @ unit.T)[different], centered.norm(dim=1), centered @ centered.T
    simplex = (torch.eye(CLASSES, dtype=torch.float64) - 1 / CLASSES) / (CLASSES - 1) ** 0.5
    return {
        f"nc2_norms{suffix}": norms.std(correction=0) / norms.mean(),
        f"nc2_angles{suffix}": cosines.std(correction=0),
        f"nc2_simplex{suffix}": (cosines + 1 / (CLASSES - 1)).abs().mean(),
        f"nc2_gram{suffix}": (gram / gram.norm() - simplex).norm(),
    }


def _by_definition(
    features: Tensor, labels: Tensor, prototypes: Tensor, spectrum: Callable[[Tensor], Tensor]
) -> dict[str, float]:
    """Return the metrics by their definitions in float64, with the given singular values."""
    normalize = torch.nn.functional.normalize
    u, w = normalize(features.double()), normalize(prototypes.double())
    by_class = [u[labels == c] for c in range(CLASSES)]
    means = torch.stack([rows.mean(0) for rows in by_class])
    centered = means - means.mean(0)
    covariances = [torch.cov(rows.T, correction=0) for rows in by_class]
    within = (
        sum(len(rows) * covariance for rows, covariance in zip(by_class, covariances, strict=True))
        / SAMPLES
    )
    between = centered.T @ centered / CLASSES
    variances = torch.stack([covariance.trace() for covariance in covariances])
    counts = torch.tensor([len(rows) for rows in by_class]).double()
    different = ~torch.eye(CLASSES, dtype=torch.bool)
    unit = normalize(centered)
    kernel = -torch.cdist(unit, unit)[different].log()
    cosines = (w * unit).sum(1)
    weights = normalize(w - w.mean(0))
    shifted = normalize(normalize(means) - normalize(u.mean(0), dim=0))
    mir, hdr = _information(weights @ weights.T, unit @ unit.T)
    mir_published, hdr_published = _information(w @ w.T, shifted @ shifted.T)
    agreement = (u @ w.T).argmax(1) == torch.cdist(u, means).argmin(1)
    result = {
        "nc1_ratio": within.trace() / between.trace(),
        "nc1_trace": (within @ torch.linalg.pinv(between, hermitian=True)).trace() / CLASSES,
        "cdnv": ((variances[:, None] + variances) / (2 * torch.cdist(means, means) ** 2))[
            different
        ].mean(),
        "instance_alignment": (2 * counts**2 * variances).sum() / (counts * (counts - 1)).sum(),
        "intra_effective_rank": torch.stack(
            [_erank(spectrum(covariance)) for covariance in covariances]
        ).mean(),
        "inter_effective_rank": _erank(spectrum(between)),
        "weights_effective_rank": _erank(spectrum(torch.cov(w.T, correction=0))),
        **_nc2(means, ""),
        **_nc2(w, "_weights"),
        "gnc2_mean": kernel.mean(),
        "gnc2_variance": kernel.var(correction=0),
        "weight_class_alignment": (w - normalize(means)).square().sum(1).mean(),
        "weight_instance_alignment": (w[labels] - u).square().sum(1).mean(),
        "nc3_cosine": (1 - cosines).mean(),
        "nc3_duality": (w / w.norm() - centered / centered.norm()).square().sum(),
        "unc3": cosines.var(correction=0),
        "mir": mir,
        "hdr": hdr,
        "mir_published": mir_published,
        "hdr_published": hdr_published,
        "nc4_agreement": agreement.double().mean(),
    }
    return {name: float(value) for name, value in result.items()}


def _case(function: Callable[[Tensor, Tensor, Tensor], Any]) -> Case:
    def make() -> Callable[[], None]:
        samples = _samples()

        def step() -> None:
            function(*samples)

        return step

    return make


def _rival(
    spectrum: Callable[[Tensor], Tensor],
) -> Callable[[Tensor, Tensor, Tensor], dict[str, float]]:
    return lambda features, labels, prototypes: _by_definition(
        features, labels, prototypes, spectrum
    )


CASES: dict[str, Case] = {
    "protosphere": _case(measure),
    "singular values, torch": _case(_rival(_svdvals_torch)),
    "singular values, NumPy": _case(_rival(_svdvals_numpy)),
    "full SVD, torch": _case(_rival(_full_svd)),
}


def _details() -> dict[str, Any]:
    samples = _samples()
    values, expected = measure(*samples), _by_definition(*samples, _svdvals_torch)
    if set(values) != set(expected):
        raise RuntimeError(
            f"both must compute the same metrics, but differ in {set(values) ^ set(expected)}"
        )
    differences = {name: abs(values[name] - value) / abs(value) for name, value in expected.items()}
    worst = max(differences, key=differences.__getitem__)
    return {
        "shape": {"samples": SAMPLES, "classes": CLASSES, "dim": DIM},
        "metrics": len(values),
        "largest_relative_difference": differences[worst],
        "of": worst,
    }


def table(record: dict[str, Any]) -> str:
    """Return the results as a Markdown table."""
    cases = record["cases"]
    ours = cases["protosphere"]
    lines = [
        f"| all {record['metrics']} metrics, 50,000 × 512, 100 classes "
        "| seconds | protosphere is | extra memory |",
        "|---|---:|---:|---:|",
    ]
    for name, case in cases.items():
        ratio = "" if case is ours else f"**{case['seconds'] / ours['seconds']:.1f}×** as fast"
        lines.append(f"| {name} | {case['seconds']:.2f} | {ratio} | {case['peak_mib']:,.0f} MiB |")
    return "\n".join(lines)


if __name__ == "__main__":
    run("metrics", CASES, table, _details)
