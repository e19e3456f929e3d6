"""What run folders need to be read: a report must not wait for torch."""

import subprocess
import sys

import pytest

pytestmark = pytest.mark.whole_program


@pytest.mark.parametrize(
    ("modules", "absent"),
    [
        ("protosphere.runs", {"torch", "numpy"}),
        ("protosphere.runs.folder, protosphere.runs.metadata", {"torch", "numpy"}),
        ("protosphere.runs.comparison", {"torch", "numpy"}),
        ("protosphere.runs.arrays", {"torch"}),
    ],
)
def test_reading_a_run_does_not_load_torch(modules: str, absent: set[str]) -> None:
    check = (
        f"import sys, {modules}\n"
        f"loaded = set({sorted(absent)}) & set(sys.modules)\n"
        "assert not loaded, loaded"
    )
    subprocess.run([sys.executable, "-c", check], check=True, capture_output=True)
