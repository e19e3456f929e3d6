"""The catalog: selection, resolvable formulas, the table of the documentation, no torch."""

import inspect
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from protosphere.geometry import simplex_etf
from protosphere.metrics import CATALOG, CHEAP, MetricDefinition, measure
from protosphere.metrics.catalog import at_collapse, select
from protosphere.metrics.compute import MetricInputs

DOCUMENT = Path(__file__).parents[2] / "docs" / "metrics.md"


def _table_row(name: str, row: MetricDefinition) -> str:
    """The line of a metric in the documentation."""
    collapse = row.at_collapse.text if row.at_collapse else "undefined"
    non_negative = row.non_negative.text if row.non_negative else "same"
    cells = (f"`{name}`", row.formula, row.description, collapse, non_negative, row.group)
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def test_the_documentation_has_the_row_of_every_metric_in_order() -> None:
    lines = [line for line in DOCUMENT.read_text().splitlines() if line.startswith("| `")]
    expected = [_table_row(name, row) for name, row in CATALOG.items()]
    assert lines == expected, "update the tables of docs/metrics.md to:\n" + "\n".join(expected)


def test_the_documentation_has_each_metric_under_its_condition() -> None:
    sections = DOCUMENT.read_text().split("\n## ")
    for name, row in CATALOG.items():
        section = next(section for section in sections if f"| `{name}` |" in section)
        assert section.startswith(row.condition), name


@pytest.mark.parametrize("name", CATALOG)
def test_every_formula_is_documented_and_takes_the_inputs_of_its_row(name: str) -> None:
    row = CATALOG[name]
    function = row.resolve()
    assert "At collapse" in (function.__doc__ or "")
    inspect.signature(function).bind(*row.inputs)
    for attribute in row.inputs:
        assert attribute in MetricInputs.__annotations__ or hasattr(MetricInputs, attribute)


def test_needs_follow_from_the_inputs() -> None:
    assert CATALOG["nc1_ratio"].needs == frozenset()
    assert CATALOG["nc4_agreement"].needs == {"prototypes", "samples"}
    assert CATALOG["bias_offset"].needs == {"prototypes", "bias"}
    assert set(CATALOG) - set(CHEAP) == {"nc1_trace", "intra_effective_rank", "nc4_agreement"}


def test_selection_keeps_the_order_of_the_catalog() -> None:
    assert select("all") == tuple(CATALOG)
    assert select("cheap") == CHEAP
    assert select(["unc3", "nc1_ratio"]) == ("nc1_ratio", "unc3")
    assert set(select("alignment")) == {
        "instance_alignment",
        "weight_class_alignment",
        "weight_instance_alignment",
    }


def _measure_near_collapse(noise: float) -> dict[str, float]:
    """Measure a simplex of ten classes with noise on samples, class means, prototypes and bias."""
    generator = torch.Generator().manual_seed(0)

    def draw(*shape: int) -> torch.Tensor:
        return noise * torch.randn(*shape, generator=generator, dtype=torch.float64)

    frame, labels = simplex_etf(10, 30).double(), torch.arange(200) % 10
    features = (frame + draw(10, 30))[labels] + draw(200, 30)
    return measure(features, labels, frame + draw(10, 30), bias=draw(10), space="raw")


def test_directions_lead_to_collapse() -> None:
    near, far = _measure_near_collapse(0.05), _measure_near_collapse(0.3)
    without_direction = {name for name, row in CATALOG.items() if row.direction is None}
    assert without_direction == {"mir_published", "hdr_published"}
    assert set(near) == set(far) == set(CATALOG) - without_direction
    # Its value depends on the shape of a covariance, not on its size.
    for name in sorted(set(near) - {"intra_effective_rank"}):
        direction, target = CATALOG[name].direction, at_collapse(name, 10)
        assert target is not None
        assert abs(near[name] - target) < abs(far[name] - target), name
        if direction != "target":
            assert (near[name] > far[name]) == (direction == "higher"), name
    assert {name for name, row in CATALOG.items() if row.direction == "target"} == {"mir"}


@pytest.mark.bad_input
@pytest.mark.parametrize(
    ("metrics", "message"),
    [
        ("everything", r"metrics must be 'all', 'cheap', groups \(alignment, .*got 'everything'"),
        ("nc1_trase", "got 'nc1_trase'; did you mean 'nc1_trace'?"),
        (["cdnv", "alignments"], "got 'alignments'; did you mean 'alignment'?"),
        ([], "metrics must name at least one metric, got an empty list"),
        ([3], "got 3"),
    ],
)
def test_bad_selections(metrics: str | list[str], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        select(metrics)


@pytest.mark.whole_program
def test_catalog_verdicts_and_convergence_do_not_import_torch() -> None:
    code = (
        "import sys; from protosphere.metrics import CATALOG, catalog, convergence, verdicts; "
        "assert catalog.attainable('mir', 10, 512) > 0.9; "
        "assert not {'torch', 'numpy'} & set(sys.modules), 'imported'"
    )
    command = [sys.executable, "-c", code]
    result = subprocess.run(command, check=False, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
