"""The queue of recent features of a recipe: its keys, and the module that they describe."""

import torch.distributed as dist
from pydantic import Field

from protosphere.data.sampling import batch_slices, num_batches
from protosphere.losses import FeatureQueue
from protosphere.parallel import ProcessGroup, world_size
from protosphere.recipes.section import Section


class QueueSettings(Section):
    """Features of earlier steps that are keys of the loss beside those of the batch."""

    size: int = Field(4096, ge=1, description="Number of features.")
    start_epoch: int = Field(
        0, ge=0, description="Epochs before the queue is used; it is filled meanwhile."
    )
    max_age: int | None = Field(
        None,
        ge=1,
        description="Steps after which a feature is no longer used; null means no limit but size.",
    )

    rescale: bool = Field(
        False,
        description="Whether NTCE and NONL repel the features of a batch as much as a batch of all "
        "keys would.",
    )

    def create(
        self,
        dim: int,
        *,
        batch_size: int,
        num_views: int,
        num_train: int,
        group: ProcessGroup | None,
        is_divided: bool,
    ) -> FeatureQueue:
        """Create the queue, or the part of it that this process has.

        Args:
            dim: Dimension of the features.
            batch_size: Number of images of a step.
            num_views: Number of features of an image.
            num_train: Number of training images.
            group: Process group whose ranks have the batches together; None for this process.
            is_divided: Whether each rank has a part of the queue, and not the whole queue.

        Raises:
            ValueError: There are several ranks, and the queue does not hold whole steps.
        """
        num_features = num_views * min(batch_size, num_train)
        size, count = self.size, world_size(group)
        # The features of a step must be forgotten together: their order depends on the ranks.
        if count > 1 and size % num_features:
            raise ValueError(
                f"queue.size must be a multiple of the {num_features} features of a step with "
                f"several processes, got {size}"
            )
        if count > 1 and is_divided:
            shard = dist.get_rank(group), count
            part = batch_slices(num_train, batch_size, shard=shard)[0]
            size = size // num_features * num_views * (part.stop - part.start)
        return FeatureQueue(
            size,
            dim,
            max_age=self.max_age,
            start=self.start_epoch * num_batches(num_train, batch_size),
            rescale=self.rescale,
            persistent=False,
        )
