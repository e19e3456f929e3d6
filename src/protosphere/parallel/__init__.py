"""Collectives over a process group that have gradients, as the losses need them."""

from protosphere.parallel.collectives import (
    gather_rows,
    logsumexp_over,
    max_over,
    sum_over,
    with_gradient_of_sum,
)
from protosphere.parallel.shards import Shards, find_shards
from protosphere.parallel.world import (
    ProcessGroup,
    check_group,
    gather_numbers,
    row_counts,
    world_size,
)

__all__ = [
    "ProcessGroup",
    "Shards",
    "check_group",
    "find_shards",
    "gather_numbers",
    "gather_rows",
    "logsumexp_over",
    "max_over",
    "row_counts",
    "sum_over",
    "with_gradient_of_sum",
    "world_size",
]
