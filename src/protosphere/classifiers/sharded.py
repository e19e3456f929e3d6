"""The cosine classifier of many classes, whose prototypes are sharded over processes."""

import math

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from protosphere.classifiers.checks import (
    check_feature_dim,
    check_head_size,
)
from protosphere.classifiers.cosine import CosineClassifier, TemperatureModule
from protosphere.classifiers.scores import cosine_logits
from protosphere.parallel import ProcessGroup, Shards

# Elements that are drawn at a time; the numbers do not depend on it.
_DRAWN_AT_ONCE = 2**20


class ShardedCosineClassifier(TemperatureModule):
    """A cosine classifier of which each process has the prototypes of a part of the classes.

    Logits are cos(z, w_c)/τ as those of :class:`CosineClassifier`. The classes are divided in their
    order, in parts that differ by at most one class; a process may have none. No process holds all
    prototypes while it trains.

    :class:`~protosphere.losses.NormFaceLoss`, :class:`~protosphere.losses.NTCELoss`,
    :class:`~protosphere.losses.NONLLoss` and :class:`~protosphere.losses.NormFaceNONLLoss` with the
    same process group compute their loss with it. They give every process the gradient of its own
    prototypes, which must not be averaged over processes: keep the head out of
    ``DistributedDataParallel``.

    If all processes have the same random state, the prototypes are initialized as those of
    :class:`CosineClassifier` on one process.

    Args:
        dim: Dimension of the features.
        num_classes: Number of all classes.
        temperature: Temperature τ, or its initial value if it is learned.
        learn_temperature: Whether τ is a parameter, stored as log τ; it is the same on all
            processes, and its gradient is averaged over them.
        min_temperature: Lower bound of a learned τ.
        group: Process group over which the prototypes are sharded; None for one process.

    Attributes:
        prototypes: Prototypes of the classes of this process.
        shards: How the classes are divided.

    Raises:
        ValueError: An argument is out of its range, or ``min_temperature`` is given for a fixed
            temperature.

    >>> head = ShardedCosineClassifier(8, 3, temperature=0.1)
    >>> head
    ShardedCosineClassifier(dim=8, num_classes=3, classes=0..2, temperature=0.1)
    >>> head(torch.randn(5, 8)).shape
    torch.Size([5, 3])
    """

    bias: None = None

    def __init__(
        self,
        dim: int,
        num_classes: int,
        *,
        temperature: float = 0.1,
        learn_temperature: bool = False,
        min_temperature: float | None = None,
        group: ProcessGroup | None = None,
    ) -> None:
        super().__init__()
        check_head_size(dim, num_classes)
        self.shards = Shards.divide(num_classes, group)
        self.prototypes = nn.Parameter(_draw_rows(num_classes, dim, self.shards.own))
        self._register_temperature(temperature, learn_temperature, min_temperature)

    @property
    def parameter_shards(self) -> dict[str, Shards]:
        """The sharded parameters; see :func:`protosphere.parallel.find_shards`."""
        return {"prototypes": self.shards}

    @property
    def num_classes(self) -> int:
        """Number of all classes."""
        return self.shards.num_rows

    @torch.no_grad()
    def forward(self, features: Float[Tensor, "*batch dim"]) -> Float[Tensor, "*batch classes"]:
        """Return the logits of all classes, in float32 or wider and without a gradient.

        Every process must call it, with features of its own; the prototypes of the others come one
        process at a time. Where processes have different numbers of batches, use
        :meth:`full_classifier`.

        Args:
            features: Features of this process.
        """
        check_feature_dim(features, self.prototypes.shape[1])
        logits = [
            cosine_logits(features, block, temperature=self.temperature)
            for block in self.shards.blocks(self.prototypes)
        ]
        return torch.cat(logits, -1)

    def predict(self, features: Float[Tensor, "*batch dim"]) -> Int[Tensor, "*batch"]:
        """Return the class whose prototype has the largest cosine; every process must call it."""
        return self.forward(features).argmax(-1)

    def full_prototypes(self) -> Float[Tensor, "classes dim"]:
        """Return the prototypes of all classes on every process; every process must call it."""
        return self.shards.gather(self.prototypes)

    def full_classifier(self) -> CosineClassifier:
        """Return a classifier with the prototypes of all classes; every process must call it.

        It is a copy, for evaluation and export, on every process.
        """
        with torch.device("meta"):  # Nothing is drawn.
            classifier = CosineClassifier(
                self.prototypes.shape[1],
                self.num_classes,
                temperature=self._fixed_temperature,
                learn_temperature=self.log_temperature is not None,
                min_temperature=self.min_temperature,
            )
        classifier.prototypes = nn.Parameter(self.full_prototypes())
        if self.log_temperature is not None:
            classifier.log_temperature = nn.Parameter(self.log_temperature.detach().clone())
        return classifier.train(self.training)

    def extra_repr(self) -> str:
        """Describe the arguments and the classes of this process."""
        own = self.shards.own
        classes = f"{own.start}..{own.stop - 1}" if own.start < own.stop else "none"
        size = f"dim={self.prototypes.shape[1]}, num_classes={self.num_classes}"
        return f"{size}, classes={classes}, {self._describe_temperature()}"


def _draw_rows(num_classes: int, dim: int, own: slice) -> Float[Tensor, "rows dim"]:
    """Draw a matrix as :class:`CosineClassifier` does, some rows at a time, and keep own rows."""
    rows, kept = max(1, _DRAWN_AT_ONCE // dim), torch.empty(own.stop - own.start, dim)
    for start in range(0, num_classes, rows):
        block = torch.empty(min(rows, num_classes - start), dim)
        nn.init.kaiming_uniform_(block, a=math.sqrt(5))
        first, last = max(start, own.start), min(start + len(block), own.stop)
        if first < last:
            kept[first - own.start : last - own.start] = block[first - start : last - start]
    return kept
