"""The tables and figures of the paper: one entry each, with its runs, numbers and paper's values.

To add one, write a function that yields its cells, and its entry in :data:`TARGETS`.
"""

import difflib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

from protosphere.data.corruptions import CORRUPTIONS
from protosphere.studies.convergence import CONVERGENCE_METRICS
from protosphere.studies.reproduce_readings import (
    ConvergenceReading,
    CorruptionReading,
    LoggedReading,
    ProbeReading,
    Reading,
    TransferReading,
)
from protosphere.studies.reproduce_runs import PAPER_DATA, PaperRun

Combination = Literal["mean", "std", "best"]


@dataclass(frozen=True)
class Cell:
    """One number of a table.

    Attributes:
        row: Name of the row.
        column: Name of the column.
        runs: The runs that it is of.
        reading: How it is read from a run.
        paper: Table and keys of the paper's number; nothing if it prints none.
        combination: What becomes of the numbers of several runs.
    """

    row: str
    column: str
    runs: tuple[PaperRun, ...]
    reading: Reading
    paper: tuple[str | int, ...] = ()
    combination: Combination = "mean"


@dataclass(frozen=True)
class Target:
    """A table or figure of the paper.

    Attributes:
        name: What the command calls it.
        title: What it shows.
        cells: Its numbers.
        digits: Number of decimals.
        note: What is different from the paper, or not known of it.
    """

    name: str
    title: str
    cells: tuple[Cell, ...]
    digits: int = 1
    note: str = ""

    @property
    def rows(self) -> tuple[str, ...]:
        """Names of the rows."""
        return tuple(dict.fromkeys(cell.row for cell in self.cells))

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of the columns."""
        return tuple(dict.fromkeys(cell.column for cell in self.cells))


ACCURACY = LoggedReading("accuracy", unit=100.0)
LOSSES = ("ce", "etf_dr", "normface", "ntce", "nonl")
NORMALIZED = ("normface", "ntce", "nonl")
TEMPERATURES = tuple(f"{value:g}" for value in (0.07, *(index / 10 for index in range(1, 11))))
BATCH_SIZES = (32, 64, 128, 256, 512, 1024, 2048)
SEEDS = (42, 43, 44, 45, 46)
RATIOS = ("0.1", "0.02", "0.01")
TRANSFER_SETS = ("food101", "cifar10", "cifar100", "cars", "dtd", "pets", "flowers102", "voc2007")
# The ImageNet-1K runs of each loss by batch size, and the one with the best accuracy in Table 11.
IMAGENET = {2048: "imagenet1k", 4096: "imagenet1k-4096", 8192: "imagenet1k-8192"}
BEST_BATCH = {"ce": 2048, "etf_dr": 2048, "normface": 4096, "ntce": 4096, "nonl": 8192}
PROBES = {
    "linear_probe": ProbeReading("linear", "backbone"),
    "normalized_linear_probe": ProbeReading("normalized", "backbone"),
    "fixed_prototypes": ProbeReading("class_means", "output"),
    "cached_linear_probe": ProbeReading("cached_linear", "backbone"),
}
# Columns of Table 3; the paper's MIR and HDR are computed in its own way.
NC_METRICS = {
    "intra_effective_rank": "intra_effective_rank",
    "inter_effective_rank": "inter_effective_rank",
    "weights_effective_rank": "weights_effective_rank",
    "weight_class_alignment": "weight_class_alignment",
    "weight_instance_alignment": "weight_instance_alignment",
    "mir": "mir_published",
    "hdr": "hdr_published",
}


def _run(family: str, loss: str, *overrides: str) -> PaperRun:
    return PaperRun(f"{family}-{loss.replace('_', '-')}", overrides)


def _classifier_accuracy() -> Iterator[Cell]:
    table = "table1_classifier_accuracy"
    for loss in LOSSES:
        for data in ("cifar10", "cifar100", "imagenet100"):
            yield Cell(loss, data, (_run(data, loss),), ACCURACY, (table, loss, data))
        runs = tuple(_run(family, loss) for family in IMAGENET.values())
        yield Cell(loss, "imagenet1k", runs, ACCURACY, (table, loss, "imagenet1k"), "best")


def _contrastive_accuracy(table: str, *overrides: str) -> Iterator[Cell]:
    for probe in ("linear_probe", "normalized_linear_probe", "fixed_prototypes"):
        for data in PAPER_DATA:
            run = _run(data, "scl", *overrides)
            yield Cell(probe, data, (run,), PROBES[probe], (table, probe, data))


def _collapse() -> Iterator[Cell]:
    table = "table3_nc_metrics_train"
    for data in ("cifar10", "cifar100"):
        for column, metric in NC_METRICS.items():
            for loss in LOSSES:
                run, keys = _run(data, loss), (table, data, loss, column)
                yield Cell(f"{data} {loss}", column, (run,), LoggedReading(metric), keys)
            for row, probe in (
                ("scl_linear_probe", ProbeReading("linear", "backbone", metric)),
                ("scl_fixed_prototypes", ProbeReading("class_means", "output", metric)),
            ):
                run, keys = _run(data, "scl"), (table, data, row, column)
                yield Cell(f"{data} {row}", column, (run,), probe, keys)


def _transfer() -> Iterator[Cell]:
    table = "table4_transfer"
    for loss in LOSSES:
        run = _run(IMAGENET[BEST_BATCH[loss]], loss)
        for name in TRANSFER_SETS:
            key = "voc2007_map" if name == "voc2007" else name
            yield Cell(loss, name, (run,), TransferReading((name,)), (table, loss, key))
        yield Cell(loss, "mean", (run,), TransferReading(TRANSFER_SETS), (table, loss, "mean"))


def _corruptions() -> Iterator[Cell]:
    for loss in LOSSES:
        run = _run(IMAGENET[BEST_BATCH[loss]], loss)
        for column in ("clean_error", "mce", *CORRUPTIONS):
            reading = CorruptionReading(column, _run(IMAGENET[BEST_BATCH["ce"]], "ce"))
            yield Cell(loss, column, (run,), reading, ("table5_imagenet_c", loss, column))


def _long_tail() -> Iterator[Cell]:
    for loss in LOSSES:
        for data in ("cifar10", "cifar100"):
            for ratio in RATIOS:
                run = _run(f"{data}-lt", loss, f"data.long_tail={ratio}")
                column = f"{data}_lt_{ratio}"
                yield Cell(loss, column, (run,), ACCURACY, ("table6_long_tail", loss, column))


def _convergence() -> Iterator[Cell]:
    baseline = _run("cifar100", "ce")
    for kind, key, losses in (
        ("percent_to_collapse", "to_95_percent_nc", ("ce", *NORMALIZED)),
        ("percent_of_baseline", "to_ce_final", NORMALIZED),
    ):
        for loss in losses:
            for metric in CONVERGENCE_METRICS:
                yield Cell(
                    f"{key} {loss}",
                    metric,
                    (_run("cifar100", loss),),
                    ConvergenceReading(kind, metric, baseline),  # type: ignore[arg-type]
                    ("table7_convergence_percent", key, loss, metric),
                )


def _curves() -> Iterator[Cell]:
    for loss in ("ce", *NORMALIZED):
        run = _run("cifar100", loss)
        for metric in CONVERGENCE_METRICS:
            keys = ("table3_nc_metrics_train", "cifar100", loss, metric)
            yield Cell(loss, metric, (run,), LoggedReading(metric), keys)
        yield Cell(loss, "train_accuracy", (run,), LoggedReading("train_accuracy", unit=100.0))


def _temperatures(table: str, data: str) -> Iterator[Cell]:
    for loss in NORMALIZED:
        for value in TEMPERATURES:
            run = _run(data, loss, f"loss.temperature={value}")
            printed = "1.0" if value == "1" else value
            yield Cell(loss, value, (run,), ACCURACY, (table, loss, printed))


def _phase_diagram(table: str, data: str) -> Iterator[Cell]:
    for loss in NORMALIZED:
        for size in BATCH_SIZES:
            for value in TEMPERATURES:
                changes = (f"loss.temperature={value}", f"training.batch_size={size}")
                # The paper prints the numbers of batches of 512 in Tables 9 and 10.
                printed = "1.0" if value == "1" else value
                keys = (table, loss, printed) if size == 512 else ()
                yield Cell(f"{loss} {size}", value, (_run(data, loss, *changes),), ACCURACY, keys)


def _batch_sizes() -> Iterator[Cell]:
    for loss in ("ce", *NORMALIZED):
        for size, family in IMAGENET.items():
            keys = ("table11_imagenet1k_batch_size", loss, str(size))
            yield Cell(loss, str(size), (_run(family, loss),), ACCURACY, keys)


def _backbones() -> Iterator[Cell]:
    table, families = "table12_imagenet100_backbones", {"resnet50": "imagenet100"}
    families |= {name: f"imagenet100-{name}" for name in ("resnet101", "resnet152")}
    for loss in ("ce", *NORMALIZED):
        for name, family in families.items():
            yield Cell(loss, name, (_run(family, loss),), ACCURACY, (table, loss, name))
        runs = tuple(_run(family, loss) for family in families.values())
        yield Cell(loss, "mean", runs, ACCURACY, (table, loss, "mean"))


def _seeds() -> Iterator[Cell]:
    combinations: tuple[Combination, ...] = ("mean", "std")
    for data in ("cifar100", "cifar10"):
        for loss in ("ce", *NORMALIZED):
            runs = tuple(_run(data, loss, f"seed={seed}") for seed in SEEDS)
            for index, name in enumerate(combinations):
                keys = ("table13_five_seeds_mean_std", data, loss, index)
                yield Cell(loss, f"{data} {name}", runs, ACCURACY, keys, name)


def _cached_probes() -> Iterator[Cell]:
    for data in ("cifar100", "cifar10"):
        for probe in ("linear_probe", "cached_linear_probe", "fixed_prototypes"):
            keys = ("table14_cached_linear_probe", data, probe)
            yield Cell(data, probe, (_run(data, "scl"),), PROBES[probe], keys)


_SELECTED = (
    "The paper chose the temperature of each loss on the test set; the recipes have its choices."
)
_ENTRIES: tuple[tuple[str, str, Callable[[], Iterator[Cell]], int, str], ...] = (
    ("table1", "Test accuracy of classifier learning", _classifier_accuracy, 1, _SELECTED),
    (
        "table2",
        "Test accuracy of classifiers on supervised contrastive features",
        lambda: _contrastive_accuracy("table2_scl_accuracy"),
        1,
        "",
    ),
    (
        "table3",
        "Neural collapse metrics of the training images",
        _collapse,
        2,
        "MIR and HDR are computed as the paper's code does (mir_published, hdr_published).",
    ),
    (
        "table4",
        "Transfer from ImageNet-1K to eight sets",
        _transfer,
        1,
        "Runs of the batch size that is best in Table 11; the paper does not say which it used.",
    ),
    (
        "table5",
        "Errors on ImageNet-C",
        _corruptions,
        1,
        "Corruptions are computed from the validation images unless --imagenet-c is given.",
    ),
    (
        "table6",
        "Test accuracy on long-tailed CIFAR",
        _long_tail,
        1,
        "The paper does not print its settings; the recipes have settings tuned for "
        "cross-entropy, 200 epochs.",
    ),
    ("table7", "Convergence to neural collapse in percent, CIFAR-100", _convergence, 1, ""),
    (
        "table8",
        "Contrastive features without a projection head",
        lambda: _contrastive_accuracy(
            "table8_scl_without_projection_head", "model.projection=null"
        ),
        1,
        "",
    ),
    (
        "table9",
        "Test accuracy by temperature, CIFAR-100",
        lambda: _temperatures("table9_temperature_cifar100", "cifar100"),
        1,
        "",
    ),
    (
        "table10",
        "Test accuracy by temperature, CIFAR-10",
        lambda: _temperatures("table10_temperature_cifar10", "cifar10"),
        1,
        "",
    ),
    ("table11", "Test accuracy by batch size, ImageNet-1K", _batch_sizes, 1, ""),
    ("table12", "Test accuracy by backbone, ImageNet-100", _backbones, 1, ""),
    ("table13", "Test accuracy over five seeds", _seeds, 2, _SELECTED),
    ("table14", "Linear probes on cached features", _cached_probes, 1, ""),
    (
        "figure2",
        "Metrics at the end of training on CIFAR-100",
        _curves,
        2,
        "The paper's numbers are those of Table 3; --plot draws the curves.",
    ),
    (
        "figure3-cifar10",
        "Phase diagram of temperature and batch size, CIFAR-10",
        lambda: _phase_diagram("table10_temperature_cifar10", "cifar10"),
        1,
        "The paper prints numbers for batches of 512 only; --plot draws the diagram.",
    ),
    (
        "figure3-cifar100",
        "Phase diagram of temperature and batch size, CIFAR-100",
        lambda: _phase_diagram("table9_temperature_cifar100", "cifar100"),
        1,
        "The paper prints numbers for batches of 512 only; --plot draws the diagram.",
    ),
)
TARGETS: dict[str, Target] = {
    name: Target(name, title, tuple(make()), digits, note)
    for name, title, make, digits, note in _ENTRIES
}
# So many names are a suggestion; more are a list.
_MOST_SUGGESTIONS = 3


def get_target(name: str) -> Target:
    """Return a table or figure by its name.

    Raises:
        ValueError: There is none of that name.
    """
    if name not in TARGETS:
        raise ValueError(f"the paper has no table or figure {name!r} here; {_hint(name)}")
    return TARGETS[name]


def _hint(name: str) -> str:
    """Suggest the names that begin with what was typed, or else the one most like it."""
    near = [known for known in TARGETS if known.startswith(name.lower())]
    near = near or difflib.get_close_matches(name.lower(), TARGETS, 1)
    if not 1 <= len(near) <= _MOST_SUGGESTIONS:
        return "`protosphere reproduce list` lists them"
    *others, last = near
    return f"did you mean {', '.join(others)}{' or ' if others else ''}{last}?"
