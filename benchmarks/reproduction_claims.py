"""Claims of the paper that the records of ``reproduction.py`` decide: accuracy and temperatures."""

import reproduction
import reproduction_tables
from protosphere.studies.compare_statistics import PairedDifference

# Claim, the paper's number, ours, settings and verdict.
Claim = tuple[str, str, str, str, str]
PROPOSED = ("ntce", "nonl")
# The range of temperatures that work in the paper, and by how many points they may be behind.
WORKING_RANGE, WORKING_POINTS = (0.07, 0.2), 2.0
# A difference of at most so many points is no difference.
CLEAR = 0.5


def accuracy_claim(accuracies: dict[str, dict[str, float]]) -> Claim:
    """Return the claim that NTCE and NONL are more accurate than CE on CIFAR-100.

    Args:
        accuracies: Accuracies by settings and loss, as fractions: the paper's first, then those
            of its settings after 100 epochs.
    """
    gains = {
        title: {loss: 100 * (values[loss] - values["ce"]) for loss in PROPOSED if loss in values}
        for title, values in accuracies.items()
    }
    full = gains.pop(f"paper's settings, {reproduction_tables.LENGTH_TITLES['length-1000']}", None)
    paper, short, *others = gains.values()
    text = _join(short)
    if full is not None:
        text += f"; NONL {full['nonl']:+.1f} after 1000 epochs"
    rest = [values["nonl"] for values in others]
    text += f"; NONL {max(rest):+.1f} to {min(rest):+.1f} with another initialization, length or "
    same = [values["nonl"] for values in (short, full) if values is not None]
    return (
        "NTCE and NONL are more accurate than CE",
        f"{_join(paper)} points",
        f"{text}other settings",
        "CIFAR-100, [below](#accuracy)",
        accuracy_verdict(same, rest),
    )


def accuracy_verdict(same: list[float], others: list[float]) -> str:
    """Return the verdict on gains over CE.

    Args:
        same: Gains with the paper's settings and initialization, of all lengths.
        others: Gains with others.
    """
    if max(*same, *others) <= 0:
        return "**not held**"
    if min(same) <= 0:
        return "**depends on settings, initialization and length**"
    return "**held**" if min(others) > 0 else "**depends on settings and initialization**"


def cifar10_claim() -> Claim:
    """Return the claim that NTCE and NONL are more accurate than CE on CIFAR-10, once measured."""
    claim = "The same on CIFAR-10"
    values = reproduction_tables.cifar10_accuracies()
    if not {"ce", *PROPOSED} <= set(values):
        return claim, "Table 1", "–", "–", "**untested**"
    ours, paper = (
        {loss: values[loss][index] - values["ce"][index] for loss in PROPOSED} for index in (0, 1)
    )
    words = [gain_verdict(ours[loss]) for loss in PROPOSED]
    return (
        claim,
        f"{_join(paper)} points",
        _join(ours),
        f"CIFAR-10, {reproduction.CIFAR10_EPOCHS} epochs, [below](#cifar-10)",
        f"**{words[0]}**" if words[0] == words[1] else f"NTCE **{words[0]}**, NONL **{words[1]}**",
    )


def gain_verdict(gain: float) -> str:
    """Return the verdict on a claimed gain; at most ``CLEAR`` points are no difference.

    Args:
        gain: The gain in points.
    """
    if abs(gain) <= CLEAR:
        return "no difference"
    return "held" if gain > 0 else "not held"


def paired_verdict(difference: PairedDifference) -> str:
    """Return the verdict on a claimed gain over several seeds: what its interval includes.

    Args:
        difference: The paired difference.

    Raises:
        ValueError: The difference has no interval.
    """
    if difference.low is None or difference.high is None:
        raise ValueError("difference must have an interval")
    if difference.low <= 0 <= difference.high:
        return "no difference"
    return "held" if difference.mean > 0 else "not held"


def temperature_claim() -> Claim:
    """Return the claim about the range of temperatures that work, once Table 9 was measured."""
    low, high = WORKING_RANGE
    claim = f"Temperatures of {low:g} to {high:g} work"
    values = reproduction_tables.temperature_accuracies()
    tested = [value for value in reproduction.TEMPERATURES if low <= value <= high]
    if not set(tested) <= set(values):
        return claim, "Tables 9 and 10", "–", "–", "**untested**"
    best = max(ours for ours, _ in values.values())
    is_held = all(values[value][0] >= best - WORKING_POINTS for value in tested)
    ours, paper = (", ".join(f"{values[value][index]:.1f}" for value in tested) for index in (0, 1))
    names = ", ".join(f"{value:g}" for value in tested)
    return (
        claim,
        f"{paper} (NONL)",
        ours,
        f"CIFAR-100, NONL at {names}, {reproduction.GRID_EPOCHS} epochs",
        f"**{'held' if is_held else 'not held'}** (within {WORKING_POINTS:g} points of the best)",
    )


def _join(gains: dict[str, float]) -> str:
    # Differences of whole numbers of images: 0.45 must not become 0.4 because of its last bit.
    return " and ".join(f"{gain + 1e-9:+.1f}" for gain in gains.values())
