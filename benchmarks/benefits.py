"""Train on CIFAR and run the benchmarks of ``protosphere benchmark`` on every run, in one go.

Each job trains one recipe and benchmarks the run with the commands that users have. Jobs run
several at a time, in the order of their list. A job that was interrupted continues where it
stopped, also within its training.

    python benchmarks/benefits.py DATA --runs RUNS [--group long-tail ...] [--seconds 500]

DATA holds cifar10.npz, cifar100.npz and, for transfer, flowers102.npz and fashion-mnist.npz with
x_train, y_train, x_test and y_test. ``--collect`` copies the records, without weights, to
results/benefits; runs whose records are there already are not run again.
"""

import shutil
from pathlib import Path

import harness
from jobs import Job, is_trained, main
from protosphere.studies.convergence import read_log, run_convergence

RESULTS = harness.RESULTS / "benefits"
RECORDS = ("recipe.yaml", "machine.json", "metrics.jsonl", "data.json", "classes.json")
METHODS = ("ce", "ntce", "nonl")
NOISE_METHODS = ("ce", "normface", "ntce", "nonl")
# Label smoothing of cross-entropy under label noise, beside none.
NOISE_SMOOTHINGS = (0.2, 0.5)
LONG_TAIL_METHODS = ("ce", "normface", "ntce", "nonl", "etf-dr")


def _schedule(epochs: int, *, every: int | None = None) -> tuple[str, ...]:
    """Return overrides for the number of epochs, with an evaluation every so many epochs."""
    return (
        f"schedule.epochs={epochs}",
        f"evaluation={{every: {every or epochs}, metrics: all}}",
        f"checkpoint={{every: {max(epochs // 5, 1)}, keep: 1}}",
    )


def jobs() -> list[Job]:
    """Return all jobs, the most important first."""
    found = []
    for group, seed, ratio in (
        ("long-tail", 42, 0.01),
        ("long-tail-second-seed", 43, 0.01),
        ("long-tail-ratios", 42, 0.1),
        ("long-tail-ratios", 42, 0.02),
    ):
        found += [
            Job(
                group,
                f"cifar100-lt-{ratio}-{method}-{seed}",
                f"cifar100-lt-{method}",
                "cifar100",
                (f"data.long_tail={ratio}", f"seed={seed}", *_schedule(200)),
                (("long-tail",), ("calibration",)),
            )
            for method in LONG_TAIL_METHODS
        ]
    transfer = ("transfer", "--shots", "1,5,20", "--to")
    found += [
        Job(
            "cifar100",
            f"cifar100-{method}",
            f"cifar100-{method}",
            "cifar100",
            _schedule(100, every=4),
            (
                ("corruptions", "--extra"),
                ("ood", "--against", "DATA/cifar10.npz"),
                ("calibration",),
                (*transfer, "DATA/cifar10.npz"),
                (*transfer, "DATA/flowers102.npz"),
                (*transfer, "DATA/fashion-mnist.npz"),
            ),
        )
        for method in METHODS
    ]
    found += [
        Job(
            "label-noise",
            f"cifar100-noise-{fraction}-{method}",
            f"cifar100-{method}",
            "cifar100",
            (f"data.label_noise={{name: symmetric, fraction: {fraction}}}", *_schedule(60)),
            (("label-noise",),),
        )
        for fraction in (0.4, 0.2)
        for method in NOISE_METHODS
    ]
    found += [
        Job(
            "label-noise-smoothing",
            f"cifar100-noise-{fraction}-ce-smoothing-{smoothing}",
            "cifar100-ce",
            "cifar100",
            (
                f"data.label_noise={{name: symmetric, fraction: {fraction}}}",
                f"loss.label_smoothing={smoothing}",
                *_schedule(60),
            ),
            (("label-noise",),),
        )
        for fraction in (0.4, 0.2)
        for smoothing in NOISE_SMOOTHINGS
    ]
    found += [
        Job(
            "cifar10",
            f"cifar10-{method}",
            f"cifar10-{method}",
            "cifar10",
            _schedule(60),
            (
                ("ood", "--against", "DATA/cifar100.npz"),
                ("calibration",),
                (*transfer, "DATA/cifar100.npz"),
                (*transfer, "DATA/fashion-mnist.npz"),
            ),
        )
        for method in METHODS
    ]
    found += [
        Job(
            "coarse-to-fine",
            f"cifar100-coarse-{method}",
            f"cifar100-{method}",
            "cifar100",
            ("data.class_groups=cifar100-superclasses", *_schedule(60)),
            (("transfer", "--shots", "1,5,20", "--to", "fine"),),
        )
        for method in METHODS
    ]
    found += [
        Job(
            "long-tail-cifar10",
            f"cifar10-lt-0.01-{method}-42",
            f"cifar10-lt-{method}",
            "cifar10",
            _schedule(200),
            (("long-tail",),),
        )
        for method in LONG_TAIL_METHODS
    ]
    # The recipes have the paper's temperatures, 0.3 for NormFace and 0.2 for NTCE.
    found += [
        Job(
            "long-tail-temperature",
            f"cifar100-lt-0.01-{method}-t0.1-{seed}",
            f"cifar100-lt-{method}",
            "cifar100",
            ("loss.temperature=0.1", f"seed={seed}", *_schedule(200)),
            (("long-tail",),),
        )
        for seed in (42, 43)
        for method in ("normface", "ntce")
    ]
    # Runs whose features benchmarks/whitening.py classifies; nothing else is measured on them.
    found += [
        Job("features", f"features-{method}", f"cifar100-{method}", "cifar100", _schedule(60))
        for method in ("ce", "scl")
    ]
    return found


def missing_jobs() -> list[Job]:
    """Return the jobs whose records are not among the results."""
    return [job for job in jobs() if not (RESULTS / job.name).exists()]


def collect(runs: Path) -> None:
    """Copy the records of completed runs, without weights and features, to the results."""
    for job in jobs():
        folder, target = runs / job.name, RESULTS / job.name
        if not (folder / "done").exists() or not job.benchmarks or not is_trained(folder):
            continue
        shutil.rmtree(target, ignore_errors=True)
        (target / "benchmarks").mkdir(parents=True)
        for name in RECORDS:
            shutil.copy(folder / name, target)
        for path in (folder / "benchmarks").glob("*.json"):
            shutil.copy(path, target / "benchmarks")
    baseline = read_log(RESULTS / "cifar100-ce")
    for method in METHODS:
        if (RESULTS / f"cifar100-{method}").exists():
            run_convergence(read_log(RESULTS / f"cifar100-{method}"), baseline=baseline)


if __name__ == "__main__":
    main(__doc__, missing_jobs, collect)
