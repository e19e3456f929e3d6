"""The paper's expected behaviors EB1 to EB6, checked on the records of runs."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any, Literal

from protosphere.data.corruptions import CORRUPTIONS
from protosphere.metrics.convergence import (
    Never,
    collapse_thresholds,
    compare_to_baseline,
    convergence_time,
    percent,
)
from protosphere.studies.behavior_runs import RunRecords, group_runs, read_runs
from protosphere.studies.convergence import CONVERGENCE_METRICS, TrainingLog

Verdict = Literal["held", "not held", "not testable"]
# Of these the paper's Table 3 says that they approach collapse; whether more or less is better.
_DIRECTIONS = {
    "weight_instance_alignment": -1,
    "weight_class_alignment": -1,
    "weights_effective_rank": 1,
    "intra_effective_rank": -1,
    "inter_effective_rank": 1,
}
_RANKS = ("weights_effective_rank", "intra_effective_rank", "inter_effective_rank")
_NORMALIZED, _PROPOSED = ("normface", "ntce", "nonl"), ("ntce", "nonl")
# "On 4/5 metrics", "in under 7.5% of CE's iterations".
_MOST, _PAPER_PERCENT = 4, 7.5
# Fixed prototypes match a linear probe if they are not further behind, in points of accuracy.
_MATCHING = 0.5
# Better downstream means by so many points, which single seeds differ by.
_CLEAR = 0.5
# Fewer evaluations do not tell when a run converges.
_EVALUATIONS = 10


@dataclass(frozen=True)
class Check:
    """The verdict on one behavior in one setting.

    Attributes:
        behavior: ``EB1`` to ``EB6``.
        statement: What the paper expects, and what counts as held.
        setting: Which runs it was checked on.
        verdict: ``held``, ``not held`` or ``not testable``.
        evidence: The numbers, or what is missing.
    """

    behavior: str
    statement: str
    setting: str
    verdict: Verdict
    evidence: str


@dataclass(frozen=True)
class Checklist:
    """All behaviors, checked on runs.

    Attributes:
        num_runs: Number of runs that were read.
        checks: The verdicts.
        skipped: Folders that could not be read, and why.
    """

    num_runs: int
    checks: tuple[Check, ...]
    skipped: dict[str, str]


# The runs of one setting, by loss.
_Group = Mapping[str, Sequence[RunRecords]]
_Finding = tuple[bool, str]


@dataclass(frozen=True)
class _Behavior:
    """A behavior: what is said of it, which runs it needs, and how it is checked."""

    name: str
    statement: str
    needs: str
    check: Callable[[_Group], _Finding | None]
    across_settings: bool = False


def check_behaviors(folders: Sequence[Path | str]) -> Checklist:
    """Check the paper's expected behaviors on runs; data and weights are not needed.

    Runs are compared with runs that differ in nothing but the loss and the seed. For EB4 and EB5
    they may also differ in augmentation, projection and optimizer, which contrastive runs have of
    their own.

    Args:
        folders: Run folders, or folders that contain run folders.

    Raises:
        RunFolderError: A folder is no run and contains none.
        ValueError: No folder is given.
    """
    if not folders:
        raise ValueError("at least one run folder must be given to check the expected behaviors")
    runs, skipped = read_runs(folders)
    checks = tuple(check for behavior in _BEHAVIORS for check in _check(behavior, runs))
    return Checklist(len(runs), checks, skipped)


def _check(behavior: _Behavior, runs: Sequence[RunRecords]) -> Iterator[Check]:
    settings = group_runs(runs, across=behavior.across_settings)
    findings = [(setting, behavior.check(setting.runs)) for setting in settings]
    testable = [(setting, finding) for setting, finding in findings if finding is not None]
    titles = [setting.title for setting, _ in testable]
    for setting, (is_held, evidence) in testable:
        number = f" ({setting.number})" if titles.count(setting.title) > 1 else ""
        verdict: Verdict = "held" if is_held else "not held"
        yield Check(behavior.name, behavior.statement, setting.title + number, verdict, evidence)
    if not testable:
        yield Check(behavior.name, behavior.statement, "–", "not testable", behavior.needs)


def _percent(fraction: float) -> str:
    # Accuracies are whole numbers of images: 91.55 must not become 91.5 because of its last bit.
    return f"{100 * fraction + 1e-9:.1f}"


def _mean(runs: Sequence[RunRecords], metric: str) -> float | None:
    values = [float(run.last[metric]) for run in runs if metric in run.last]
    return fmean(values) if values else None


def _has_labels_of_the_paper(group: _Group) -> bool:
    """Whether the data are balanced, with their own classes and labels, as in Tables 1 to 3."""
    data = next(iter(group.values()))[0].recipe.data
    return data.long_tail is None and data.class_groups is None and data.label_noise is None


def _find_logs(group: _Group, losses: Sequence[str]) -> dict[str, TrainingLog]:
    """The first run of each loss that was evaluated often enough to say when it converges."""
    logs = {}
    for loss in losses if _has_labels_of_the_paper(group) else ():
        runs = [run for run in group.get(loss, ()) if run.num_evaluations >= _EVALUATIONS]
        known = [run.log for run in runs if run.log is not None and run.log.series]
        if known:
            logs[loss] = known[0]
    return logs


def _check_faster_than_ce(group: _Group) -> _Finding | None:
    """EB1: time to CE's last values, from Table 7, part II."""
    logs = _find_logs(group, ("ce", *_NORMALIZED))
    baseline = logs.pop("ce", None)
    if baseline is None or not logs:
        return None
    texts, is_held = [], True
    for loss, log in logs.items():
        times = []
        for metric in CONVERGENCE_METRICS:
            if metric in log.series and metric in baseline.series:
                side: Any = "at least" if _DIRECTIONS[metric] > 0 else "at most"
                compared = compare_to_baseline(log.series[metric], baseline.series[metric], side)
                times.append(compared.percent_of_baseline)
        numbers = [time for time in times if not isinstance(time, Never)]
        num_sooner = sum(time < 100 for time in numbers)
        num_fast = sum(time < _PAPER_PERCENT for time in numbers)
        is_held = is_held and num_sooner >= _MOST
        texts.append(
            f"{loss}: {num_sooner} of {len(times)} metrics before CE, {num_fast} in under "
            f"{_PAPER_PERCENT:g}% of its time"
        )
    return is_held, "; ".join(texts)


def _check_nonl_is_fastest(group: _Group) -> _Finding | None:
    """EB2: time to 95% of collapse of the rank metrics, from Table 7, part I."""
    logs = _find_logs(group, _NORMALIZED)
    if "nonl" not in logs or len(logs) < 2:
        return None
    texts, is_held = [], True
    for metric in _RANKS:
        times: dict[str, float] = {}
        for loss, log in logs.items():
            if metric not in log.series:
                continue
            threshold = collapse_thresholds(len(log.class_names), log.dim)[metric]
            time = percent(
                convergence_time(log.series[metric], threshold, length=log.length), log.length
            )
            times[loss] = float("inf") if isinstance(time, Never) else float(time)
        if "nonl" not in times or len(times) < 2:
            return None
        others = [time for loss, time in times.items() if loss != "nonl"]
        is_held = is_held and times["nonl"] < min(others)
        shown = ", ".join(f"{loss} {_format_time(time)}" for loss, time in times.items())
        texts.append(f"{metric}: {shown}")
    return is_held, "; ".join(texts)


def _format_time(time: float) -> str:
    return "never" if time == float("inf") else f"{time:.0f}%"


def _check_ntce_improves(group: _Group) -> _Finding | None:
    """EB3: accuracy and collapse metrics of NTCE and NormFace, from Tables 1 and 3."""
    if not {"ntce", "normface"} <= set(group) or not _has_labels_of_the_paper(group):
        return None
    accuracies = [_mean(group[loss], "accuracy") for loss in ("ntce", "normface")]
    better = _count_better(group["ntce"], group["normface"])
    if accuracies[0] is None or accuracies[1] is None or better is None:
        return None
    number, of = better
    text = (
        f"accuracy {_percent(accuracies[0])} and {_percent(accuracies[1])}; {number} of {of} "
        "collapse metrics better"
    )
    return accuracies[0] > accuracies[1] and 2 * number > of, text


def _count_better(
    runs: Sequence[RunRecords], others: Sequence[RunRecords]
) -> tuple[int, int] | None:
    """Return in how many collapse metrics runs are better than others, and of how many."""
    results = []
    for metric, sign in _DIRECTIONS.items():
        own, other = _mean(runs, metric), _mean(others, metric)
        if own is not None and other is not None:
            results.append(sign * own > sign * other)
    return (sum(results), len(results)) if results else None


def _check_fixed_prototypes(group: _Group) -> _Finding | None:
    """EB4: class means beside a linear probe on contrastive features, from Table 2."""
    found = []
    for run in group.get("scl", ()):
        accuracy = {(row["name"], row["features"]): row["accuracy"] for row in run.rows("probes")}
        means = accuracy.get(("class_means", "output"))
        linear = accuracy.get(("linear", "backbone"), accuracy.get(("linear", "output")))
        if means is not None and linear is not None:
            found.append((means, linear))
    if not found:
        return None
    text = "; ".join(
        f"class means {_percent(means)}, linear {_percent(linear)}" for means, linear in found
    )
    return all(100 * means >= 100 * linear - _MATCHING for means, linear in found), text


def _check_same_geometry(group: _Group) -> _Finding | None:
    """EB5: collapse metrics of both families beside those of CE, from Table 3."""
    losses = [loss for loss in (*_NORMALIZED, "scl") if loss in group]
    if "ce" not in group or "scl" not in losses or len(losses) < 2:
        return None
    texts, is_held = [], True
    for loss in losses:
        better = _count_better(group[loss], group["ce"])
        if better is None:
            return None
        is_held = is_held and better[0] >= _MOST
        texts.append(f"{loss}: {better[0]} of {better[1]} metrics nearer to collapse than CE")
    return is_held, "; ".join(texts)


def _downstream(
    read: Callable[[RunRecords], float | None], what: str, *, sign: int = 1
) -> Callable[[_Group], _Finding | None]:
    """EB6: a number of NTCE and NONL beside that of CE; the larger is better for sign 1."""

    def check(group: _Group) -> _Finding | None:
        values = {
            loss: fmean(numbers)
            for loss in ("ce", *_PROPOSED)
            if (numbers := [one for run in group.get(loss, ()) if (one := read(run)) is not None])
        }
        if "ce" not in values or len(values) < 2:
            return None
        text = f"{what}: " + ", ".join(f"{loss} {_percent(one)}" for loss, one in values.items())
        others = [one for loss, one in values.items() if loss != "ce"]
        return all(100 * sign * (one - values["ce"]) > _CLEAR for one in others), text

    return check


def _read_transfer(run: RunRecords) -> float | None:
    values = [
        row["value"]
        for path in sorted((run.path / "benchmarks").glob("transfer-*.json"))
        for row in run.rows(path.stem)
        if row["classifier"] == "logistic"
    ]
    return fmean(values) if values else None


def _read_long_tail(run: RunRecords) -> float | None:
    return None if run.recipe.data.long_tail is None else run.last.get("accuracy")


def _read_corruptions(run: RunRecords) -> float | None:
    rows = [row for row in run.rows("corruptions") if row["corruption"] in CORRUPTIONS]
    return fmean(row["error"] for row in rows) if rows else None


_DOWNSTREAM = "Better geometry yields better results (by 0.5 points): "
_BEHAVIORS = (
    _Behavior(
        "EB1",
        "Normalized losses approach collapse faster than CE (4 of 5 metrics)",
        "needs runs of CE and of a normalized loss with the same settings and 10 evaluations",
        _check_faster_than_ce,
    ),
    _Behavior(
        "EB2",
        "NONL converges faster than NormFace and NTCE (all rank metrics)",
        "needs runs of NONL and of NormFace or NTCE with the same settings and 10 evaluations",
        _check_nonl_is_fastest,
    ),
    _Behavior(
        "EB3",
        "NTCE improves over NormFace (accuracy and most metrics)",
        "needs runs of NTCE and NormFace with the same settings",
        _check_ntce_improves,
    ),
    _Behavior(
        "EB4",
        "Class means classify SCL features as well as a linear probe (within 0.5 points)",
        "needs SCL runs with probes: protosphere reproduce table2",
        _check_fixed_prototypes,
        across_settings=True,
    ),
    _Behavior(
        "EB5",
        "Normalized losses and SCL both come nearer to collapse than CE (4 of 5 metrics)",
        "needs runs of CE, a normalized loss and SCL on the same data with as many epochs",
        _check_same_geometry,
        across_settings=True,
    ),
    _Behavior(
        "EB6",
        _DOWNSTREAM + "transfer",
        "needs runs of CE and NTCE or NONL with `protosphere benchmark transfer`",
        _downstream(_read_transfer, "mean accuracy"),
    ),
    _Behavior(
        "EB6",
        _DOWNSTREAM + "long tail",
        "needs long-tailed runs of CE and NTCE or NONL",
        _downstream(_read_long_tail, "accuracy"),
    ),
    _Behavior(
        "EB6",
        _DOWNSTREAM + "corruptions",
        "needs runs of CE and NTCE or NONL with `protosphere benchmark corruptions`",
        _downstream(_read_corruptions, "mean error", sign=-1),
    ),
)
