"""Record the calls of collectives of torch.distributed, and count what a rank receives."""

import contextlib
import math
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch.distributed as dist
from torch import Tensor


class Collective(NamedTuple):
    """A call of a collective.

    Attributes:
        kind: ``"all_reduce"``, ``"all_gather"`` or ``"reduce_scatter"``.
        payload: Bytes of the tensor that this rank gives.
    """

    kind: str
    payload: int

    def received(self, num_ranks: int) -> float:
        """Return the bytes that a rank receives with the ring algorithm."""
        share = self.payload / num_ranks
        chunks = {"all_reduce": 2 * share, "all_gather": self.payload, "reduce_scatter": share}
        return (num_ranks - 1) * chunks[self.kind]

    def messages(self, num_ranks: int) -> float:
        """Return the number of messages one after the other if they follow a tree."""
        return math.log2(num_ranks) * (2 if self.kind == "all_reduce" else 1)


@contextlib.contextmanager
def record_collectives() -> Iterator[list[Collective]]:
    """Record the calls of the collectives of torch.distributed within a block."""
    found: list[Collective] = []
    # Name of the function, kind, and position of the tensor that the rank gives.
    functions = (
        ("all_reduce", "all_reduce", 0),
        ("all_gather_into_tensor", "all_gather", 1),
        ("reduce_scatter_tensor", "reduce_scatter", 1),
    )
    refused = ("all_gather", "all_to_all_single", "broadcast", "batch_isend_irecv")
    with contextlib.ExitStack() as stack:
        for name, kind, position in functions:
            original = getattr(dist, name)

            def recorded(
                *tensors: Tensor,
                kind: str = kind,
                position: int = position,
                original: Callable[..., Any] = original,
                **options: Any,
            ) -> Any:
                given = tensors[position]
                found.append(Collective(kind, given.numel() * given.element_size()))
                return original(*tensors, **options)

            setattr(dist, name, recorded)
            stack.callback(setattr, dist, name, original)
        for name in refused:
            stack.callback(setattr, dist, name, getattr(dist, name))
            setattr(dist, name, _refuse)
        yield found


def _refuse(*_: object, **__: object) -> None:
    raise NotImplementedError("a collective must be one that the benchmark knows how to count")
