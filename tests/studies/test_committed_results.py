"""The results in the repository are of the present kinds of rows."""

from pathlib import Path

import pytest

from protosphere.runs.results import list_results, read_result
from protosphere.studies.calibration import CalibrationRow, ReliabilityRow
from protosphere.studies.convergence import ConvergenceRow, CurveRow
from protosphere.studies.corruptions import CorruptionRow
from protosphere.studies.label_noise import LabelNoiseRow
from protosphere.studies.long_tail import LongTailRow
from protosphere.studies.ood import OodRow
from protosphere.studies.transfer import TransferRow

RESULTS = Path(__file__).parents[2] / "benchmarks" / "results" / "benefits"
ROWS: dict[str, type] = {
    "calibration": CalibrationRow,
    "convergence": ConvergenceRow,
    "convergence_curves": CurveRow,
    "corruptions": CorruptionRow,
    "few-shot": TransferRow,
    "label_noise": LabelNoiseRow,
    "long_tail": LongTailRow,
    "ood": OodRow,
    "reliability": ReliabilityRow,
    "transfer": TransferRow,
}


@pytest.mark.parametrize("folder", sorted(RESULTS.iterdir()), ids=lambda path: path.name)
def test_results_can_be_read(folder: Path) -> None:
    paths = list_results(folder)
    assert paths
    for path in paths:
        (row_type,) = {
            kind
            for name, kind in ROWS.items()
            if path.stem == name or path.stem.startswith(f"{name}-")
        }
        assert read_result(path, row_type).rows
