"""The catalog of metrics: definition, formula and optimal values of each in one row. Pure Python.

To add a metric: write its function in ``formulas.py``, add a row here, its definition to the
oracle in ``tests/support/collapse_oracle.py`` and its line to the table in ``docs/metrics.md``.
"""

import difflib
from collections.abc import Sequence

from protosphere.metrics.definition import (
    FULL_RANK,
    LOG_KERNEL,
    MIR,
    NON_NEGATIVE_ALIGNMENT,
    ONE,
    PUBLISHED_HDR,
    PUBLISHED_MIR,
    SIMPLEX_RANK,
    ZERO,
    MetricDefinition,
    Sign,
)

CATALOG: dict[str, MetricDefinition] = {
    "nc1_ratio": MetricDefinition(
        "NC1",
        "nc1",
        "tr Σ_W / tr Σ_B",
        "within-class variance over between-class variance",
        "formulas.nc1_ratio",
        ("statistics", "means"),
        ZERO,
    ),
    "nc1_trace": MetricDefinition(
        "NC1",
        "nc1",
        "tr(Σ_W Σ_B⁺)/K",
        "within-class variance relative to each between-class direction",
        "formulas.nc1_trace",
        ("statistics", "means", "projected_scatter"),
        ZERO,
    ),
    "cdnv": MetricDefinition(
        "NC1",
        "nc1",
        "mean (v_c+v_c′)/(2‖μ_c−μ_c′‖²)",
        "class-distance normalized variance, averaged over pairs of classes",
        "formulas.cdnv",
        ("statistics", "means"),
        ZERO,
    ),
    "instance_alignment": MetricDefinition(
        "NC1",
        "alignment",
        "mean ‖u_i − u_j‖², y_i = y_j",
        "squared distance between samples of the same class",
        "formulas.instance_alignment",
        ("statistics",),
        ZERO,
    ),
    "intra_effective_rank": MetricDefinition(
        "NC1",
        "intra",
        "mean_c erank Cov(u − μ_c)",
        "effective rank of a class covariance (shape, not size; grows with the number of samples)",
        "formulas.intra_effective_rank",
        ("statistics", "class_spectra"),
        ZERO,
    ),
    "inter_effective_rank": MetricDefinition(
        "NC2",
        "ranks",
        "erank Cov(μ_c)",
        "effective rank of the class means",
        "formulas.between_effective_rank",
        ("means",),
        SIMPLEX_RANK,
        "means",
        low_dim=FULL_RANK,
    ),
    "nc2_norms": MetricDefinition(
        "NC2",
        "nc2",
        "std/mean of ‖v_c‖",
        "variation of the norms of centered class means",
        "formulas.nc2_norms",
        ("means",),
        ZERO,
        "means",
        low_dim=ZERO,
    ),
    "nc2_angles": MetricDefinition(
        "NC2",
        "nc2",
        "std of cos(v_c, v_c′), c≠c′",
        "variation of the cosines between centered class means",
        "formulas.nc2_angles",
        ("means",),
        ZERO,
        "means",
    ),
    "nc2_simplex": MetricDefinition(
        "NC2",
        "nc2",
        "mean |cos(v_c, v_c′) + 1/(K−1)|",
        "distance of the cosines between centered class means from a simplex",
        "formulas.nc2_simplex",
        ("means",),
        ZERO,
        "means",
    ),
    "nc2_coherence": MetricDefinition(
        "NC2",
        "nc2",
        "max cos(v_c, v_c′) + 1/(K−1)",
        "similarity of the two most similar classes, beyond that of a simplex",
        "formulas.nc2_coherence",
        ("means",),
        ZERO,
        "means",
    ),
    "nc2_gram": MetricDefinition(
        "NC2",
        "nc2",
        "‖G/‖G‖ − (I−11ᵀ/K)/√(K−1)‖",
        "distance of the Gram matrix of centered class means from a simplex",
        "formulas.nc2_gram",
        ("means",),
        ZERO,
        "means",
    ),
    "gnc2_mean": MetricDefinition(
        "NC2",
        "generalized",
        "mean ln 1/‖v_c−v_c′‖",
        "log kernel of the directions of class means, lower is more uniform",
        "formulas.gnc2_mean",
        ("means",),
        LOG_KERNEL,
        "means",
    ),
    "gnc2_variance": MetricDefinition(
        "NC2",
        "generalized",
        "var ln 1/‖v_c−v_c′‖",
        "variance of the log kernel over pairs of classes",
        "formulas.gnc2_variance",
        ("means",),
        ZERO,
        "means",
    ),
    "weights_effective_rank": MetricDefinition(
        "NC2",
        "ranks",
        "erank Cov(w_c)",
        "effective rank of the prototypes",
        "formulas.between_effective_rank",
        ("weights",),
        SIMPLEX_RANK,
        "prototypes",
        low_dim=FULL_RANK,
    ),
    "nc2_norms_weights": MetricDefinition(
        "NC2",
        "nc2",
        "std/mean of ‖v_c‖",
        "variation of the norms of centered prototypes",
        "formulas.nc2_norms",
        ("weights",),
        ZERO,
        "prototypes",
        low_dim=ZERO,
    ),
    "nc2_angles_weights": MetricDefinition(
        "NC2",
        "nc2",
        "std of cos(v_c, v_c′), c≠c′",
        "variation of the cosines between centered prototypes",
        "formulas.nc2_angles",
        ("weights",),
        ZERO,
        "prototypes",
    ),
    "nc2_simplex_weights": MetricDefinition(
        "NC2",
        "nc2",
        "mean |cos(v_c, v_c′) + 1/(K−1)|",
        "distance of the cosines between centered prototypes from a simplex",
        "formulas.nc2_simplex",
        ("weights",),
        ZERO,
        "prototypes",
    ),
    "nc2_gram_weights": MetricDefinition(
        "NC2",
        "nc2",
        "‖G/‖G‖ − (I−11ᵀ/K)/√(K−1)‖",
        "distance of the Gram matrix of centered prototypes from a simplex",
        "formulas.nc2_gram",
        ("weights",),
        ZERO,
        "prototypes",
    ),
    "weight_class_alignment": MetricDefinition(
        "NC3",
        "alignment",
        "mean ‖w_c − μ_c/‖μ_c‖‖²",
        "squared distance between prototypes and class means",
        "formulas.weight_class_alignment",
        ("weights", "means", "space"),
        ZERO,
        "means and prototypes",
        NON_NEGATIVE_ALIGNMENT,
        low_dim=ZERO,
    ),
    "weight_instance_alignment": MetricDefinition(
        "NC3",
        "alignment",
        "mean ‖w_{y_i} − u_i‖²",
        "squared distance between samples and the prototypes of their classes",
        "formulas.weight_instance_alignment",
        ("statistics", "weights"),
        ZERO,
        "means and prototypes",
        NON_NEGATIVE_ALIGNMENT,
        low_dim=ZERO,
    ),
    "nc3_cosine": MetricDefinition(
        "NC3",
        "nc3",
        "mean 1 − cos(w_c, v_c)",
        "cosine distance between prototypes and centered class means",
        "formulas.nc3_cosine",
        ("weights", "means"),
        ZERO,
        "means and prototypes",
        low_dim=ZERO,
    ),
    "nc3_duality": MetricDefinition(
        "NC3",
        "nc3",
        "‖W/‖W‖ − M/‖M‖‖²",
        "distance between prototypes and centered class means as matrices",
        "formulas.nc3_duality",
        ("weights", "means"),
        ZERO,
        "means and prototypes",
        low_dim=ZERO,
    ),
    "unc3": MetricDefinition(
        "NC3",
        "generalized",
        "var cos(w_c, v_c)",
        "variance over classes of the cosine between prototype and centered class mean",
        "formulas.unc3",
        ("weights", "means"),
        ZERO,
        "means and prototypes",
        low_dim=ZERO,
    ),
    "mir": MetricDefinition(
        "NC3",
        "information",
        "(H_W+H_M−H_WM)/min(H_W, H_M)",
        "matrix mutual information ratio of class means and prototypes",
        "information.mir",
        ("information",),
        MIR,
        "means and prototypes",
        min_classes=3,
    ),
    "hdr": MetricDefinition(
        "NC3",
        "information",
        "|H_W−H_M|/max(H_W, H_M)",
        "matrix entropy difference ratio of class means and prototypes",
        "information.hdr",
        ("information",),
        ZERO,
        "means and prototypes",
        low_dim=ZERO,
        min_classes=3,
    ),
    "mir_published": MetricDefinition(
        "NC3",
        "information",
        "MIR as computed for the paper's table",
        "mutual information ratio for comparison with published values",
        "information.mir",
        ("published_information",),
        None,
        "means and prototypes",
        PUBLISHED_MIR,
        min_classes=3,
    ),
    "hdr_published": MetricDefinition(
        "NC3",
        "information",
        "HDR as computed for the paper's table",
        "entropy difference ratio for comparison with published values",
        "information.hdr",
        ("published_information",),
        None,
        "means and prototypes",
        PUBLISHED_HDR,
        min_classes=3,
    ),
    "nc4_agreement": MetricDefinition(
        "NC4",
        "nc4",
        "P(argmax_c w_c·u = argmin_c ‖u−μ_c‖)",
        "fraction of samples that the head assigns to the nearest class mean",
        "formulas.nc4_agreement",
        ("weights", "agreement"),
        ONE,
    ),
    "bias_spread": MetricDefinition(
        "NC4",
        "nc4",
        "std(b)",
        "standard deviation of the biases",
        "formulas.bias_spread",
        ("head_bias",),
        ZERO,
    ),
    "bias_offset": MetricDefinition(
        "NC4",
        "nc4",
        "‖Wμ_G + b‖",
        "norm of the logits of the global mean",
        "formulas.bias_offset",
        ("head_bias", "weights", "means"),
        ZERO,
    ),
}
"""All metrics by name, each with its definition and formula."""

CHEAP: tuple[str, ...] = tuple(
    name for name, row in CATALOG.items() if not row.needs & {"pooled", "per_class", "samples"}
)
"""Metrics that class sums suffice for: they cost nothing next to computing the features."""


def select(metrics: str | Sequence[str]) -> tuple[str, ...]:
    """Return the metric names that a selection stands for, in the order of the catalog.

    Args:
        metrics: ``"all"``, ``"cheap"``, a group or a metric name, or a sequence of these.

    Raises:
        ValueError: The selection is empty or contains an unknown name.

    >>> select(["nc3", "cdnv"])
    ('cdnv', 'nc3_cosine', 'nc3_duality')
    """
    selection = [metrics] if isinstance(metrics, str) else list(metrics)
    if not selection:
        raise ValueError("metrics must name at least one metric, got an empty list")
    groups = sorted({row.group for row in CATALOG.values()})
    known = ["all", "cheap", *groups, *CATALOG]
    for name in selection:
        if name not in known:
            close = difflib.get_close_matches(str(name), known, n=1)
            hint = f"; did you mean {close[0]!r}?" if close else ""
            raise ValueError(
                f"metrics must be 'all', 'cheap', groups ({', '.join(groups)}) or metric names, "
                f"got {name!r}{hint}"
            )
    return tuple(
        name
        for name, row in CATALOG.items()
        if {"all", name, row.group} & set(selection) or ("cheap" in selection and name in CHEAP)
    )


def at_collapse(name: str, num_classes: int) -> float | None:
    """Return the value of a metric at neural collapse; None if it is undefined there.

    >>> at_collapse("inter_effective_rank", 10)
    9.0
    """
    return CATALOG[name].value_at_collapse(num_classes)


def attainable(name: str, num_classes: int, dim: int, *, sign: Sign = "any") -> float | None:
    """Return the best value of a metric that such features can reach; None if it is unknown.

    Args:
        name: Metric name.
        num_classes: Number of classes K.
        dim: Dimension d of the features.
        sign: ``"non-negative"`` for features that end in a ReLU.

    >>> round(attainable("weight_class_alignment", 10, 512, sign="non-negative"), 3)
    0.103
    >>> attainable("inter_effective_rank", 100, 64)
    64.0
    """
    return CATALOG[name].best_value(num_classes, dim, sign=sign)
