"""The errors of a run on corrupted images in a few numbers, and what they are divided by."""

import re
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import NamedTuple

from protosphere.data.corruptions import CORRUPTIONS
from protosphere.evaluation.corruptions import (
    ALEXNET,
    Reference,
    average_errors,
    corruption_errors,
    errors_by_severity,
    find_unordered,
    mean_corruption_error,
    relative_corruption_error,
)
from protosphere.studies.corruptions import CLEAN, CorruptionRow

_WORDNET_ID = re.compile(r"n\d{8}")


class CorruptionSummary(NamedTuple):
    """The errors of a run in a few numbers, all fractions.

    Attributes:
        clean_error: Error on clean images, if they are there.
        errors: Error of each corruption, averaged over the severities that were measured.
        mean_error: Mean of these over the corruptions that count, the four extra ones left out;
            None without any.
        normalized_errors: Errors divided by those of the reference (CE_c), of the 15 corruptions
            that have all severities.
        mce: Mean corruption error; None without a reference or with a corruption missing.
        relative_mce: The same of the errors that corruptions add to the clean error.
        by_severity: Error at each severity, averaged over the corruptions that count.
        unordered: Pairs of neighboring severities whose errors decrease, by corruption.
        class_means_clean_error: Error of class means on clean images, if it was asked for.
        class_means_mean_error: Error of class means, averaged as ``mean_error``.
    """

    clean_error: float | None
    errors: dict[str, float]
    mean_error: float | None
    normalized_errors: dict[str, float]
    mce: float | None
    relative_mce: float | None
    by_severity: dict[int, float]
    unordered: dict[str, list[tuple[int, int]]]
    class_means_clean_error: float | None
    class_means_mean_error: float | None


def reference_of(name: str, rows: Sequence[CorruptionRow]) -> Reference:
    """Return the errors of a run as those that others are divided by.

    Args:
        name: Name of the baseline.
        rows: Its errors.
    """
    errors = {(row.corruption, row.severity): row.error for row in rows if row.severity}
    clean = [row.error for row in rows if row.corruption == CLEAN]
    return Reference(name, average_errors(errors), clean_error=clean[0] if clean else None)


def summarize_corruptions(
    rows: Sequence[CorruptionRow], reference: Reference | None = None
) -> CorruptionSummary:
    """Summarize the errors of a run.

    Args:
        rows: What :func:`run_corruptions` returns.
        reference: Errors to divide by for mCE.
    """
    table = {(row.corruption, row.severity): row.error for row in rows if row.severity}
    severities = sorted({severity for _, severity in table})
    errors = average_errors(table, severities=severities)
    # mCE is defined by all five severities.
    complete = average_errors(table)
    clean = [row for row in rows if row.corruption == CLEAN]
    clean_error = clean[0].error if clean else None
    nearest = {
        (row.corruption, row.severity): row.class_means_error
        for row in rows
        if row.class_means_error is not None and row.severity
    }
    return CorruptionSummary(
        clean_error=clean_error,
        errors=errors,
        mean_error=_mean_of_counted(errors),
        normalized_errors={} if reference is None else corruption_errors(complete, reference),
        mce=None if reference is None else mean_corruption_error(complete, reference),
        relative_mce=None
        if reference is None
        else relative_corruption_error(complete, clean_error, reference),
        by_severity=errors_by_severity(table),
        unordered=find_unordered(table),
        class_means_clean_error=clean[0].class_means_error if clean else None,
        class_means_mean_error=_mean_of_counted(average_errors(nearest, severities=severities)),
    )


def find_reference(class_names: Sequence[str]) -> Reference | None:
    """Return AlexNet's published errors if classes are those of ImageNet, otherwise None.

    Args:
        class_names: Names of the classes, WordNet identifiers for those of ImageNet.
    """
    is_imagenet = len(class_names) == 1000 and all(map(_WORDNET_ID.match, class_names))
    return ALEXNET if is_imagenet else None


def _mean_of_counted(errors: Mapping[str, float]) -> float | None:
    counted = [error for name, error in errors.items() if name in CORRUPTIONS]
    return fmean(counted) if counted else None
