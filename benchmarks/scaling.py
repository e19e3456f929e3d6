"""What NTCE and NONL exchange between processes, against a gather of features: bytes and time.

1, 2, 4 and 8 gloo processes on the CPU with 256 samples each, 1000 classes, 2048 dimensions. Calls
of the collectives of torch.distributed are recorded during one forward and backward pass; the same
calls are then timed without the computation around them. A cost model a + b · bytes is fitted to
the times of collectives, and evaluated for GPUs with assumed latencies and bandwidths.

    python benchmarks/scaling.py
    python benchmarks/scaling.py --processes 1 2 --classes 100 --dim 64   # writes no results

Bytes that a rank receives (and sends) for a tensor of n bytes on R ranks, by the ring algorithms:
all-reduce 2 (R − 1)/R · n; all-gather (R − 1) · n, n bytes of each rank; reduce-scatter
(R − 1)/R · n, n the sum over the parts of all ranks.
"""

import argparse
import multiprocessing
import os
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor

import harness
from collectives import Collective, record_collectives
from protosphere.losses import nonl_loss, ntce_loss
from protosphere.parallel import ProcessGroup

SAMPLES, CLASSES, DIM = 256, 1000, 2048
TEMPERATURE = 0.1
PROCESSES = (1, 2, 4, 8)
GPUS = (8, 64, 512)
GPUS_PER_NODE = 8
# Parameters of ResNet-50, whose gradients are averaged whatever the loss is.
_ENCODER_BYTES = 4 * 25_557_032
_REPEATS, _STEP_REPEATS = 25, 5
_PAYLOADS = (4_000, 64_000, 1_000_000, 8_000_000)


class _GatherRows(torch.autograd.Function):
    """The rows of all ranks, as many on each; the gradient is scattered again."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, group: ProcessGroup) -> Tensor:
        ctx.group = group
        gathered = rows.new_empty((dist.get_world_size(group) * len(rows), *rows.shape[1:]))
        dist.all_gather_into_tensor(gathered, rows, group=group)
        return gathered

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        own = gradient.new_empty(
            (len(gradient) // dist.get_world_size(ctx.group), *gradient.shape[1:])
        )
        dist.reduce_scatter_tensor(own, gradient.contiguous(), group=ctx.group)
        return own, None


def _gathered_nonl(features: Tensor, prototypes: Tensor, labels: Tensor, group: Any) -> Tensor:
    """NONL of the samples of this rank against the features of all ranks, by plain code."""
    all_features: Tensor = _GatherRows.apply(features, group)
    all_labels: Tensor = _GatherRows.apply(labels, group)
    classes, column = labels.unique(return_inverse=True)
    logits = F.normalize(all_features) @ F.normalize(prototypes[classes]).T / TEMPERATURE
    log_sums = logits.masked_fill(all_labels[:, None] == classes, -torch.inf).logsumexp(0)
    own = logits[dist.get_rank(group) * len(labels) :][: len(labels)]
    return (log_sums[column] - own.gather(1, column[:, None]).squeeze(1)).mean()


METHODS: dict[str, Callable[[Tensor, Tensor, Tensor, Any], Tensor]] = {
    "ntce": lambda z, w, y, group: ntce_loss(z, w, y, temperature=TEMPERATURE, group=group),
    "nonl": lambda z, w, y, group: nonl_loss(z, w, y, temperature=TEMPERATURE, group=group),
    "gather": _gathered_nonl,
}


def count(
    method: str, group: Any, *, samples: int = SAMPLES, classes: int = CLASSES, dim: int = DIM
) -> tuple[list[Collective], Callable[[], None]]:
    """Return the collectives of a forward and backward pass, and the pass itself.

    Args:
        method: Name of the method.
        group: Process group.
        samples: Number of samples of this rank.
        classes: Number of classes.
        dim: Dimension of the features.
    """
    generator = torch.Generator().manual_seed(dist.get_rank(group))
    features = torch.randn(samples, dim, generator=generator).requires_grad_()
    labels = torch.randint(0, classes, (samples,), generator=generator)
    prototypes = torch.randn(classes, dim, generator=generator.manual_seed(99)).requires_grad_()

    def step() -> None:
        METHODS[method](features, prototypes, labels, group).backward()

    with record_collectives() as found:
        step()
    return found, step


def _replay(collectives: Sequence[Collective], group: Any) -> Callable[[], None]:
    """Return a function that calls the same collectives on tensors that are there already."""
    num_ranks = dist.get_world_size(group)
    given = [torch.zeros(max(1, c.payload // 4)) for c in collectives]
    scattered = [torch.zeros(max(1, len(tensor) // num_ranks)) for tensor in given]
    gathered = [torch.zeros(len(tensor) * num_ranks) for tensor in given]

    def step() -> None:
        for call, tensor, part, whole in zip(collectives, given, scattered, gathered, strict=True):
            if call.kind == "all_reduce":
                dist.all_reduce(tensor, group=group)
            elif call.kind == "all_gather":
                dist.all_gather_into_tensor(whole, tensor, group=group)
            else:
                dist.reduce_scatter_tensor(part, tensor[: len(part) * num_ranks], group=group)

    return step


def _least_seconds(step: Callable[[], None], group: Any, repeats: int) -> float:
    """Return the least time of a step that all ranks start together.

    More processes than cores take turns, and the least time has the fewest of them in it.
    """
    seconds = []
    for _ in range(repeats):
        dist.barrier(group=group)
        start = time.perf_counter()
        step()
        seconds.append(time.perf_counter() - start)
    return round(min(seconds), 6)


def _work(rank: int, num_ranks: int, store: str, options: argparse.Namespace, results: Any) -> None:
    """Count and time on one of the processes; the first one reports."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=num_ranks)
    group = dist.group.WORLD
    cases = {}
    for method in METHODS:
        found, step = count(
            method, group, samples=options.samples, classes=options.classes, dim=options.dim
        )
        cases[method] = {
            "collectives": [list(call) for call in found],
            "payload_bytes": sum(call.payload for call in found),
            "received_bytes": round(sum(call.received(num_ranks) for call in found)),
            "exchange_seconds": _least_seconds(_replay(found, group), group, _REPEATS),
            "step_seconds": _least_seconds(step, group, _STEP_REPEATS),
        }
    points = []
    for payload in _PAYLOADS:
        for kind in ("all_reduce", "all_gather", "reduce_scatter"):
            call = Collective(kind, payload)
            points.append([*call, _least_seconds(_replay([call], group), group, _REPEATS)])
    if rank == 0:
        cost = fit(points, num_ranks) if num_ranks > 1 else None
        results.put({"cases": cases, "points": points, "fit": cost})
    dist.barrier()
    dist.destroy_process_group()


def measure(num_ranks: int, options: argparse.Namespace) -> dict[str, Any]:
    """Count and time with so many processes.

    Args:
        num_ranks: Number of processes.
        options: Options of the command line.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["torch", "protosphere.losses"])
    with tempfile.TemporaryDirectory() as folder:
        results = context.Queue()
        store = str(Path(folder) / "store")
        workers = [
            context.Process(target=_work, args=(rank, num_ranks, store, options, results))
            for rank in range(num_ranks)
        ]
        for worker in workers:
            worker.start()
        record: dict[str, Any] = results.get(timeout=600)
        for worker in workers:
            worker.join()
    return record


def fit(points: Sequence[Sequence[Any]], num_ranks: int) -> dict[str, float]:
    """Fit a + b · bytes to the times of collectives, with equal relative weights.

    Args:
        points: Kind, payload and seconds of each collective.
        num_ranks: Number of processes.
    """
    rows = [
        (1 / seconds, Collective(kind, payload).received(num_ranks) / seconds)
        for kind, payload, seconds in points
    ]
    matrix = torch.tensor(rows, dtype=torch.float64)
    solution = torch.linalg.lstsq(matrix, torch.ones(len(rows), 1, dtype=torch.float64)).solution
    errors = (matrix @ solution - 1).abs()
    return {
        "seconds": float(solution[0]),
        "seconds_per_byte": float(solution[1]),
        "median_relative_error": float(errors.median()),
        "points": len(rows),
    }


def predict(collectives: Sequence[Collective], num_gpus: int, assumed: dict[str, float]) -> float:
    """Return the seconds of collectives on GPUs, under assumptions.

    Bytes are those of the ring algorithms over the slowest link; the number of messages one after
    the other is that of trees, of which NCCL makes small exchanges.

    Args:
        collectives: The collectives.
        num_gpus: Number of GPUs.
        assumed: Bandwidths and latencies within a node and between nodes.
    """
    link = "node" if num_gpus <= GPUS_PER_NODE else "network"
    received = sum(call.received(num_gpus) for call in collectives)
    messages = sum(call.messages(num_gpus) for call in collectives)
    bandwidth, latency = assumed[f"{link}_gb_per_s"] * 1e9, assumed[f"{link}_latency_us"] * 1e-6
    return messages * latency + received / bandwidth


def _predictions(largest: dict[str, Any], assumed: dict[str, float]) -> list[dict[str, Any]]:
    rows = []
    for num_gpus in GPUS:
        row: dict[str, Any] = {"gpus": num_gpus, "batch": num_gpus * SAMPLES}
        for method in METHODS:
            calls = [Collective(*call) for call in largest["cases"][method]["collectives"]]
            if (
                method == "gather"
            ):  # What is scattered in the backward pass is as large as the batch.
                ranks = max(PROCESSES)
                calls = [
                    call
                    if call.kind == "all_gather"
                    else call._replace(payload=call.payload // ranks * num_gpus)
                    for call in calls
                ]
            row[method] = {
                "received_bytes": round(sum(call.received(num_gpus) for call in calls)),
                "seconds": predict(calls, num_gpus, assumed),
            }
        gradients = [Collective("all_reduce", _ENCODER_BYTES)]
        row["encoder_gradients"] = {"seconds": predict(gradients, num_gpus, assumed)}
        rows.append(row)
    return rows


def table(record: dict[str, Any]) -> str:
    """Return bytes and times by the number of processes as a Markdown table."""
    lines = [
        "| processes | | collectives | bytes received per rank | times fewer | exchange | step |",
        "|---:|---|---:|---:|---:|---:|---:|",
    ]
    titles = {"ntce": "NTCE", "nonl": "NONL", "gather": "features gathered (NONL)"}
    for ranks, run in record["runs"].items():
        gathered = run["cases"]["gather"]["received_bytes"]
        for method, case in run["cases"].items():
            received = case["received_bytes"]
            ratio = f"{gathered / received:,.0f}×" if received and method != "gather" else ""
            lines.append(
                f"| {ranks} | {titles[method]} | {len(case['collectives'])} | {received:,} "
                f"| {ratio} | {1e3 * case['exchange_seconds']:.2f} ms "
                f"| {1e3 * case['step_seconds']:.1f} ms |"
            )
    return "\n".join(lines)


def model_table(record: dict[str, Any]) -> str:
    """Return what the cost model says of GPUs as a Markdown table."""
    lines = [
        "| GPUs | batch | NTCE | NONL | features gathered | gradients of ResNet-50 |",
        "|---:|---:|---:|---:|---:|---:|",
    ]
    for row in record["predictions"]:
        cells = [
            f"{1e3 * row[method]['seconds']:.2f} ms, {_size(row[method]['received_bytes'])}"
            for method in METHODS
        ]
        gradients = 1e3 * row["encoder_gradients"]["seconds"]
        lines.append(
            f"| {row['gpus']} | {row['batch']:,} | {' | '.join(cells)} | {gradients:.2f} ms |"
        )
    return "\n".join(lines)


def source(record: dict[str, Any]) -> str:
    """Return the line beneath the table of measurements."""
    machine = record["machine"]
    costs = [
        f"{ranks} processes {1e3 * run['fit']['seconds']:.2g} ms + "
        f"{1e9 * run['fit']['seconds_per_byte']:.2g} ns per byte "
        f"(median error {run['fit']['median_relative_error']:.0%})"
        for ranks, run in record["runs"].items()
        if run["fit"] is not None
    ]
    return (
        f"{machine['cpu']}, {record['cores']} cores for all processes, torch {machine['torch']}, "
        f"gloo; times are the least of {_REPEATS} (of {_STEP_REPEATS} for the step). One "
        f"collective costs: {', '.join(costs)}. Commit {record['commit']}."
    )


def model_source(record: dict[str, Any]) -> str:
    """Return the line beneath the predictions: what they assume."""
    assumed = record["assumed"]
    return (
        f"Assumed, not measured: {assumed['node_gb_per_s']:g} GB/s per GPU and "
        f"{assumed['node_latency_us']:g} µs per message within a node of {GPUS_PER_NODE}, "
        f"{assumed['network_gb_per_s']:g} GB/s and {assumed['network_latency_us']:g} µs between "
        "nodes."
    )


def _size(num_bytes: float) -> str:
    if num_bytes < 1e6:
        return f"{num_bytes / 1e3:.0f} kB"
    return f"{num_bytes / 1e6:.0f} MB" if num_bytes < 1e9 else f"{num_bytes / 1e9:.2f} GB"


def main() -> None:
    """Count, time, fit and predict; print the tables and write ``results/scaling.json``."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--processes", type=int, nargs="+", default=list(PROCESSES))
    parser.add_argument("--samples", type=int, default=SAMPLES, help="samples of each process")
    parser.add_argument("--classes", type=int, default=CLASSES)
    parser.add_argument("--dim", type=int, default=DIM)
    assumptions = parser.add_argument_group("assumptions of the cost model for GPUs")
    assumptions.add_argument("--node-gb-per-s", type=float, default=300.0, help="NVLink, per GPU")
    assumptions.add_argument("--network-gb-per-s", type=float, default=40.0, help="per GPU")
    assumptions.add_argument("--node-latency-us", type=float, default=4.0, help="per message")
    assumptions.add_argument("--network-latency-us", type=float, default=8.0, help="per message")
    options = parser.parse_args()
    runs = {}
    for ranks in options.processes:
        runs[str(ranks)] = measure(ranks, options)
        print(f"{ranks} processes measured", flush=True)
    names = ("node_gb_per_s", "network_gb_per_s", "node_latency_us", "network_latency_us")
    assumed = {name: getattr(options, name) for name in names}
    shape = {name: getattr(options, name) for name in ("samples", "classes", "dim")}
    record = {"shape": shape, "cores": len(os.sched_getaffinity(0)), "runs": runs}
    print(table(record))
    usual = {"samples": SAMPLES, "classes": CLASSES, "dim": DIM}
    if shape == usual and tuple(options.processes) == PROCESSES:
        record["assumed"] = assumed
        record["predictions"] = _predictions(runs[str(max(PROCESSES))], assumed)
        print(model_table(record))
        print("written to", harness.write("scaling", record))


if __name__ == "__main__":
    main()
