"""Sources of a report with every section: short runs, committed results, a comparison, a sweep."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

from protosphere.runs.comparison import write_comparison
from protosphere.runs.sweeps import SweepRecord, SweepSetting, SweepTrial, write_sweep
from protosphere.studies.compare import compare_runs
from support.report_studies import create_sweep
from support.short_runs import logged_run, short_run

# A class whose name is a script in HTML, in an attribute, and at the end of a script element.
HOSTILE = '</script><img src=x onerror="window.hacked=1"><script>window.hacked=1</script>\'"&amp;'
_RESULTS = Path(__file__).parents[2] / "benchmarks/results/benefits"
_COMMITTED = (
    "cifar100-ce",
    "cifar100-nonl",
    "cifar100-lt-0.01-ce-42",
    "cifar100-lt-0.01-nonl-42",
    "cifar100-noise-0.4-nonl",
)


def write_sources(folder: Path) -> Path:
    """Write sources that together have something for every section of a report.

    Args:
        folder: An empty folder.

    Returns:
        The folder.
    """
    run = short_run(folder / "digits", "nonl", epochs=2)
    names = [HOSTILE, *(f"digit {number}" for number in range(1, 10))]
    (run / "classes.json").write_text(json.dumps(names))
    other = shutil.copytree(run, run.with_name("ce"))
    recipe = (run / "recipe.yaml").read_text()
    (other / "recipe.yaml").write_text(recipe.replace("digits-nonl", "digits-ce"))
    for name in _COMMITTED:
        shutil.copytree(_RESULTS / name, folder / "committed" / name)
    for seed in range(2):
        for loss, accuracy in (("ce", 0.5), ("nonl", 0.6)):
            curves = {"accuracy": [(1, 0.1), (2, accuracy + 0.01 * seed)]}
            settings = (f"seed={seed}", "schedule.epochs=2")
            run = folder / "seeds" / f"{loss}-{seed}"
            logged_run(run, curves, *settings, recipe=f"digits-{loss}")
    write_comparison(folder / "seeds/comparison.json", compare_runs([folder / "seeds"]))
    (folder / "sweep").mkdir()
    write_sweep(folder / "sweep", _sweep())
    return folder


def _sweep() -> SweepRecord:
    rates, temperatures = (0.1, 0.3, 1.0), (0.05, 0.1)
    trials = tuple(
        SweepTrial(
            number=number,
            state="complete",
            settings={"optimizer.lr": rate, "loss.temperature": temperature},
            value=0.9 - 0.2 * rate - temperature,
            evaluations=((1, 0.5), (2, 0.9 - 0.2 * rate - temperature)),
        )
        for number, (rate, temperature) in enumerate(
            (rate, temperature) for rate in rates for temperature in temperatures
        )
    )
    settings = (
        SweepSetting("optimizer.lr", "grid", rates),
        SweepSetting("loss.temperature", "grid", temperatures),
    )
    return replace(create_sweep(), num_trials=len(trials), settings=settings, trials=trials)
