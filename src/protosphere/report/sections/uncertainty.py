"""The section on uncertainty: calibration of confidences, and detection of other images."""

from protosphere.report.benchmark_rows import (
    group_results,
    number_images,
    read_benchmarks,
    seed_note,
)
from protosphere.report.calibration import draw_reliability, show_calibration
from protosphere.report.content import Block, Section
from protosphere.report.detection import show_detection
from protosphere.report.method_plots import method_styles
from protosphere.report.sources import ReportData


def create_section(report: ReportData) -> Section | None:
    """Return the section, or None if no run has measured calibration or detection.

    Args:
        report: The report.
    """
    calibration, notes = read_benchmarks(
        report, "calibration", texts=("classifier", "state"), numbers=("ece",)
    )
    bins, bin_notes = read_benchmarks(
        report, "reliability", texts=("classifier", "state"), numbers=("lower", "upper")
    )
    ood, ood_notes = read_benchmarks(report, "ood", texts=("against", "score"))
    ood = number_images(ood, "against", lambda _, row: row.get("fingerprint"))
    if not calibration and not bins and not ood:
        return None
    styles = method_styles(report)
    blocks: list[Block] = []
    if calibration:
        blocks += show_calibration(group_results(calibration, test_setting="report"))
    if bins:
        blocks += draw_reliability(group_results(bins, test_setting="report"), styles)
    if ood:
        blocks += show_detection(group_results(ood, test_setting="known"), styles)
    return Section(
        "uncertainty",
        "Calibration and out-of-distribution detection",
        "Whether confidences are as high as accuracies, before and after the logits are divided by "
        "a fitted temperature, and how well scores tell images of other data from those of the "
        "run.",
        (
            *blocks,
            *seed_note(group_results([*calibration, *bins, *ood])),
            *notes,
            *bin_notes,
            *ood_notes,
        ),
    )
