"""Train the runs that the results of several benchmarks still lack, the most important first.

These are the runs of verdict.py, dynamics.py and reproduction.py, as each of them would train them,
and those of benefits.py with label smoothing under label noise.
In one queue, the next run starts up while another one trains, also from one benchmark to the next.
Runs that were interrupted continue.

    python benchmarks/missing_runs.py DATA --runs RUNS [--seconds 500]
    python benchmarks/missing_runs.py DATA --runs RUNS --collect

DATA holds cifar10.npz and cifar100.npz with x_train, y_train, x_test and y_test. ``--collect``
does what it does in each of them.
"""

from pathlib import Path

import benefits
import dynamics
import reproduction
import verdict
from jobs import Job, is_trained, main


def missing_jobs() -> list[Job]:
    """Return the jobs whose records are not among the results."""
    smoothing = [job for job in benefits.missing_jobs() if job.group == "label-noise-smoothing"]
    return [
        *verdict.missing_jobs(),
        *dynamics.missing_jobs(),
        *smoothing,
        *reproduction.missing_jobs(),
    ]


def collect(runs: Path) -> None:
    """Add the complete runs to the results of their benchmarks.

    Args:
        runs: Folder of the runs.
    """
    verdict.collect(runs)
    if any(is_trained(runs / job.name) for job in dynamics.jobs()):
        dynamics.collect(runs)
    benefits.collect(runs)
    reproduction.collect(runs)


if __name__ == "__main__":
    main(__doc__, missing_jobs, collect)
