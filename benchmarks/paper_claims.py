"""Claims of the paper, its numbers beside those of the committed runs, and verdicts."""

import json
from collections.abc import Iterator
from typing import Any

import benefits
import benefits_tables
import reproduction_claims
import reproduction_tables
import runs
import verdict
from paper_tables import NAMES, accuracies
from protosphere.report.paper import paper_value
from protosphere.runs.results import read_result
from protosphere.studies.compare_statistics import PairedDifference
from protosphere.studies.corruption_summary import reference_of, summarize_corruptions
from protosphere.studies.corruptions import CorruptionRow
from reproduction_claims import CLEAR, gain_verdict, paired_verdict
from table_lines import decimal, percent, table_line

# 95% of the rank of the class means of a simplex of 100 classes.
COLLAPSED = 94.05
# Metrics that must converge fast.
FAST = 4
# Class means match a linear probe if they are not further behind, in points.
MATCHING = 0.5
_ALSO = " and CIFAR-10, 100 epochs"


def claims_table() -> str:
    """Return each claim of the paper with its number, ours and a verdict, in Markdown."""
    lines = [
        table_line("claim", "paper", "ours", "settings", "verdict"),
        "|---|---|---|---|---|",
        *(table_line(*claim) for claim in _claims()),
    ]
    return "\n".join(lines)


def _claims() -> Iterator[tuple[str, str, str, str, str]]:
    yield (
        "Global optima of the normalized losses are simplex ETFs (Theorem 4.1)",
        "proof",
        "free features reach cosine −1/(K−1)",
        "`tests/losses/test_theorems.py`, τ ≥ 0.2",
        "**held**",
    )
    last = {loss: _last(loss)["inter_effective_rank"] for loss in NAMES}
    ranks = {loss: f"{rank:.1f}" for loss, rank in last.items()}
    paper = {
        loss: paper_value("table3_nc_metrics_train", "cifar100", loss, "inter_effective_rank")
        for loss in NAMES
    }
    setting = "CIFAR-100, 100 epochs"
    long = {
        loss: reproduction_tables.length_metric(loss, "inter_effective_rank")
        for loss in ("ce", "nonl")
    }
    yield (
        "CE does not reach collapse",
        f"rank of class means {paper['ce']} of 99",
        f"{ranks['ce']} of 99" + _after_full_length(long["ce"]),
        setting,
        short_and_long(
            last["ce"] < COLLAPSED, None if long["ce"] is None else long["ce"] < COLLAPSED
        ),
    )
    yield (
        "NTCE and NONL reach at least 95% of collapse",
        f"rank of class means {paper['ntce']} and {paper['nonl']} of 99",
        f"{ranks['ntce']} and {ranks['nonl']} (95% is {COLLAPSED})"
        + _after_full_length(long["nonl"], "NONL "),
        setting,
        f"NTCE {short_and_long(last['ntce'] >= COLLAPSED)}, NONL "
        + short_and_long(
            last["nonl"] >= COLLAPSED, None if long["nonl"] is None else long["nonl"] >= COLLAPSED
        ),
    )
    yield _convergence_claim(setting)
    yield reproduction_claims.accuracy_claim(accuracies())
    yield reproduction_claims.cifar10_claim()
    own = {loss: _last(loss)["accuracy"] for loss in NAMES}
    tuned = verdict.means("accuracy")
    gain = gain_verdict(100 * (own["ntce"] - own["normface"]))
    tuned_gain = verdict.difference("ntce", "normface")
    yield (
        "NTCE improves over NormFace",
        "72.9 and 72.4",
        f"{percent(own['ntce'])} and {percent(own['normface'])}; with equal tuning "
        f"{percent(tuned['ntce'])} and {percent(tuned['normface'])}",
        setting,
        f"**{gain}**; with equal tuning **{paired_verdict(tuned_gain)}** ({_interval(tuned_gain)})",
    )
    yield _negatives_claim()
    yield from _contrastive_claims()
    yield from _downstream_claims()
    yield reproduction_claims.temperature_claim()
    seeds_gain = verdict.difference("nonl", "ce")
    yield (
        "NONL is more accurate than CE over five seeds",
        "73.38 ± 0.28 and 72.16 ± 0.20",
        f"{verdict.accuracy('nonl')} and {verdict.accuracy('ce')}",
        f"CIFAR-100, equal tuning, 100 epochs, {verdict.num_seeds('ce', 'nonl')} seeds",
        f"**{paired_verdict(seeds_gain)}** with these settings ({_interval(seeds_gain)})",
    )
    yield "All of it on ImageNet", "Tables 1, 2, 4, 5, 8, 11 and 12", "–", "–", "**untested**"


def short_and_long(is_held: bool, is_held_long: bool | None = None) -> str:
    """Return the verdict on a claim, which runs of full length decide if there are any.

    Args:
        is_held: Whether the runs of 100 epochs hold it.
        is_held_long: Whether the runs of full length hold it; None if there are none.
    """
    if is_held_long is not None:
        return f"**{'held' if is_held_long else 'not held'}** at full length"
    return "**held**" if is_held else "**not held**"


def _interval(difference: PairedDifference) -> str:
    numbers = (difference.mean, difference.low, difference.high)
    mean, low, high = (f"{100 * number:+.1f}" for number in numbers if number is not None)
    return f"{mean}, {low} to {high}"


def _after_full_length(value: float | None, name: str = "") -> str:
    return "" if value is None else f"; {name}after 1000 epochs {value:.1f}"


def _convergence_claim(setting: str) -> tuple[str, str, str, str, str]:
    times = {
        loss: {
            row["metric"]: row["percent_of_baseline"]
            for row in _rows(f"cifar100-{loss}", "convergence")
        }
        for loss in ("ntce", "nonl")
    }
    fast = {loss: sum(time < 7.5 for time in values.values()) for loss, values in times.items()}
    slow = [f"{times[loss]['inter_effective_rank']:.0f}" for loss in ("ntce", "nonl")]
    ours = (
        f"{fast['ntce']} and {fast['nonl']} of 5; the rank of class means in {' and '.join(slow)}%"
    )
    long = reproduction_tables.convergence_times("length-1000", "percent_of_baseline").values()
    num_long = sum(isinstance(time, float | int) and time < 7.5 for time in long)
    if long:
        ours += f"; NONL of 1000 epochs {num_long} of 5"
    return (
        "They reach CE's last values on 4 of 5 metrics in under 7.5% of its time",
        "4 of 5",
        ours,
        f"{setting}, evaluated every 4",
        fast_verdict(list(fast.values()), num_long if long else None),
    )


def fast_verdict(short: list[int], long: int | None) -> str:
    """Return the verdict on the claim that four of five metrics converge fast.

    Args:
        short: Number of fast metrics of NTCE and NONL after 100 epochs.
        long: Number of fast metrics of NONL of full length; None if it was not run.
    """
    if long is not None:
        return f"NONL **{'held' if long >= FAST else 'not held'}** at full length"
    if min(short) >= FAST:
        return "**held**"
    return "**partly**" if max(short) > 0 else "**not held**"


def _negatives_claim() -> tuple[str, str, str, str, str]:
    rows = json.loads((runs.RESULTS / "negatives.json").read_text())["rows"]
    # The first seed is the one that all kinds of negatives have.
    seed = rows[0]["seed"]
    accuracy = {
        (row["loss"], row["negatives"]): row["accuracy"] for row in rows if row["seed"] == seed
    }
    gains = [
        100 * (accuracy[loss, "global, 512"] - accuracy[loss, "local, 64"])
        for loss in ("ntce", "nonl")
    ]
    return (
        "More negatives help",
        "+0.7 and +1.5 points, ImageNet-1K, batches of 8,192 instead of 2,048",
        f"{gains[0]:+.1f} and {gains[1]:+.1f} (NTCE and NONL), 512 instead of 64",
        "CIFAR-100, 60 epochs, one seed",
        f"**{gain_verdict(min(gains))}**",
    )


def _contrastive_claims() -> Iterator[tuple[str, str, str, str, str]]:
    results = {
        (folder, row["name"], row["features"]): row["accuracy"]
        for folder in ("cifar100-scl", "cifar100-scl-no-projection")
        for row in runs.probe_results(folder)
    }
    means = results["cifar100-scl", "class_means", "output"]
    linear = results["cifar100-scl", "linear", "backbone"]
    cached = results["cifar100-scl", "cached_linear", "backbone"]
    without = results["cifar100-scl-no-projection", "class_means", "output"]
    setting = "CIFAR-100, 120 epochs"
    small = reproduction_tables.probe_accuracies()
    rivals = ("fixed_prototypes", "cached_linear_probe")
    # On CIFAR-10, beside a linear probe; empty where one of the two was not fitted.
    own_means, own_cached = (
        [small[name] for name in (rival, "linear_probe") if {rival, "linear_probe"} <= set(small)]
        for rival in rivals
    )
    yield (
        "Class means classify SCL features as well as a linear probe",
        "73.9 and 73.9",
        f"{percent(means)} and {percent(linear)}, in 1 pass instead of 100"
        + (f"; {' and '.join(map(decimal, own_means))}" if own_means else ""),
        setting + (_ALSO if own_means else ""),
        _on_both_sets(
            100 * means >= 100 * linear - MATCHING,
            not own_means or own_means[0] >= own_means[1] - MATCHING,
        ),
    )
    yield (
        "A probe on cached features is worse",
        "72.3 instead of 73.9",
        f"{percent(cached)} instead of {percent(linear)}"
        + (f"; {' instead of '.join(map(decimal, own_cached))}" if own_cached else ""),
        setting + (_ALSO if own_cached else ""),
        _on_both_sets(cached < linear, not own_cached or own_cached[0] < own_cached[1]),
    )
    yield (
        "The projection head improves SCL",
        "+2.5 points",
        f"{100 * (means - without):+.1f} points",
        setting,
        f"**{gain_verdict(100 * (means - without))}**",
    )


def _on_both_sets(is_held: bool, is_held_on_cifar10: bool) -> str:
    if is_held and not is_held_on_cifar10:
        return "**held** on CIFAR-100 only"
    return "**held**" if is_held else "**not held**"


def _downstream_claims() -> Iterator[tuple[str, str, str, str, str]]:
    cells = {loss: text.split(" / ") for loss, text in benefits_tables.long_tail().items()}
    head, class_means = (float(text) for text in cells["ce"])
    gains = [float(cells[loss][0]) - head for loss in ("ntce", "nonl")]
    is_best = max(gains) > class_means - head
    yield (
        "Gains under class imbalance (ratio 0.01)",
        "+1.6 and +2.6 points",
        f"{gains[0]:+.1f} and {gains[1]:+.1f}; class means of CE's own features "
        f"{class_means - head:+.1f}",
        "CIFAR-100-LT, 200 epochs, two seeds",
        f"**{gain_verdict(min(gains))}**" + ("" if is_best else "; class means of CE are better"),
    )
    losses = [
        100 * (values["ce"] - values[loss]) for values in _transfers() for loss in ("ntce", "nonl")
    ]
    yield (
        "Better transfer",
        "+5.5% in the mean of eight sets (NONL)",
        f"{min(losses):.0f} to {max(losses):.0f} points worse",
        "from CIFAR, 60 and 100 epochs",
        f"**{gain_verdict(-max(losses))}**",
    )
    rows = {
        loss: read_result(
            benefits.RESULTS / f"cifar100-{loss}" / "benchmarks" / "corruptions.json", CorruptionRow
        ).rows
        for loss in ("ce", "ntce", "nonl")
    }
    reference = reference_of("CE", rows["ce"])
    errors = [summarize_corruptions(rows[loss], reference).mce for loss in ("ntce", "nonl")]
    if None in errors:
        raise ValueError("all corruptions and severities must be measured")
    yield (
        "Fewer errors on corrupted images",
        "mCE 77.6 and 77.8 instead of 80.1",
        f"{percent(errors[0])} and {percent(errors[1])} relative to 100 for CE",
        "corrupted CIFAR-100, 100 epochs",
        f"**{gain_verdict(100 - 100 * max(errors))}**",
    )


def _transfers() -> Iterator[dict[str, float]]:
    """Yield the accuracy of logistic regression by loss, for every transfer."""
    for folder, targets in benefits_tables.TRANSFERS.items():
        for target in targets:
            yield {
                loss: row["value"]
                for loss in ("ce", "ntce", "nonl")
                for row in _rows(folder.format(loss), f"transfer-{target}")
                if row["classifier"] == "logistic"
            }


def _last(loss: str) -> dict[str, Any]:
    return runs.evaluations(f"cifar100-{loss}")[-1]


def _rows(run: str, benchmark: str) -> list[dict[str, Any]]:
    path = benefits.RESULTS / run / "benchmarks" / f"{benchmark}.json"
    rows: list[dict[str, Any]] = json.loads(path.read_text())["rows"]
    return rows


def claims_source() -> str:
    """Return where the numbers of the claims are."""
    sections = {
        "accuracy and collapse": "accuracy-and-collapse-on-cifar-100",
        "convergence": "convergence",
        "negatives": "negatives",
        "contrastive features": "classifiers-on-contrastive-features",
        "long tail": "long-tail",
        "transfer": "transfer",
        "corruptions": "corruptions-unknown-classes-and-calibration",
    }
    links = [f"[{title}](benchmarks.md#{anchor})" for title, anchor in sections.items()]
    return (
        f"A difference of one seed of at most {CLEAR:g} points counts as none, and one of several "
        f"seeds whose 95% interval includes 0. Settings and all numbers: "
        f"{', '.join(links)}."
    )
