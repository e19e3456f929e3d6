"""The moving average of the weights together with statistics of batch norm that belong to it.

The average of the weights is another network than those it is the average of: noise in the weights
cancels, and the activations have less variance. Batch norm in evaluation mode divides by its
running statistics, and their average does not fit the averaged network: a ResNet-18 that was
trained for 100 epochs on CIFAR-100 had 71.3% test accuracy with it, and 78.2% with its own
statistics. These are therefore computed before the average is evaluated or saved, as by
``torch.optim.swa_utils.update_bn``, from training images with their augmentation.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from protosphere.data.loaders import Loader
from protosphere.parallel import ProcessGroup, sum_over, world_size
from protosphere.parallel.launch import World
from protosphere.training.config import TrainConfig
from protosphere.training.fsdp import whole_weights
from protosphere.training.objective import Objective
from protosphere.training.protocol import Step

# Running statistics with a momentum of 0.1 see about half as many in batches of 512.
_NUM_IMAGES = 16_384
# They see about so many in batches of 64. An interrupted run may have only seconds to save.
_NUM_IMAGES_IF_INTERRUPTED = 1_024


class AveragedWeights:
    """The moving average of a training step, with its own statistics of batch norm.

    They are the mean over batches of the mean and the unbiased variance of what a batch norm of the
    encoder receives. Batches are normalized as in training: of a batch in pieces, or of the parts
    of several processes without ``SyncBatchNorm``, it is the mean over pieces and processes.

    Args:
        objective: Module that is trained.
        take_step: The training step, which owns the average.
        loader: Loader of the training images.
        config: Settings of the run.
        world: The processes that train together.
    """

    def __init__(
        self,
        objective: Objective,
        take_step: Step,
        loader: Loader,
        config: TrainConfig,
        world: World,
    ) -> None:
        self._objective, self._take_step, self._loader = objective, take_step, loader
        self._config, self._world = config, world
        self._refreshed_at: int | None = None

    def refresh(self, step: int, is_interrupted: bool = False) -> None:
        """Compute the statistics, unless it has been done for this step; all processes must call.

        The weights, other buffers and modes of the objective are unchanged afterwards.

        Args:
            step: Number of steps done over the whole run.
            is_interrupted: Whether the run ends within an epoch. Fewer images are used then.
        """
        ema = self._take_step.ema
        if ema is None or self._refreshed_at == step:
            return
        encoder, size = self._objective.encoder, self._config.batch_size
        num_images = _NUM_IMAGES_IF_INTERRUPTED if is_interrupted else _NUM_IMAGES
        # Batch norms of a head, which is not computed here, keep the average of their statistics.
        averaged, names = ema.state_dict(), {m: n for n, m in self._objective.named_modules()}
        with _training_mode(encoder):
            layers = [
                layer
                for layer in find_batch_norms(encoder)
                if f"{names[layer]}.running_mean" in averaged
            ]
            if not layers:
                return
            # Without whole weights, FSDP would keep averaged ones for the next training step.
            with ema.applied(), whole_weights(encoder), _cumulative_statistics(encoder, layers):
                batches = self._loader.sample_batches(
                    size,
                    num_batches=-(-num_images // size),
                    seed=self._config.seed,
                    shard=self._world.shard,
                )
                for index, batch in enumerate(batches):
                    self._take_step.encode(batch, index=index)
                _average_over(layers, self._world.group)
        self._refreshed_at = step

    @contextmanager
    def applied(self, step: int, is_interrupted: bool = False) -> Iterator[None]:
        """Give the objective the averaged weights while the context is active.

        Every process must enter it.

        Args:
            step: Number of steps done over the whole run.
            is_interrupted: Whether the run ends within an epoch; see :meth:`refresh`.
        """
        ema = self._take_step.ema
        if ema is None:
            yield
            return
        self.refresh(step, is_interrupted)
        with ema.applied():
            yield


def find_batch_norms(module: nn.Module) -> list[_BatchNorm]:
    """Return the batch norms that update running statistics; those of frozen parts do not.

    Args:
        module: Module in training mode.
    """
    return [
        part
        for part in module.modules()
        if isinstance(part, _BatchNorm) and part.training and part.track_running_stats
    ]


@contextmanager
def _training_mode(module: nn.Module) -> Iterator[None]:
    """Put a module that is in evaluation mode into training mode; restore all modes at exit."""
    modes = {part: part.training for part in module.modules()}
    if not module.training:  # Otherwise parts may be in evaluation mode on purpose.
        module.train()
    try:
        yield
    finally:
        for part, mode in modes.items():
            part.training = mode


@contextmanager
def _cumulative_statistics(encoder: nn.Module, layers: Sequence[_BatchNorm]) -> Iterator[None]:
    """Let running statistics be the mean over all batches of the context.

    At exit, all other buffers are as before; all of them are if the context has failed.
    """
    buffers = [(buffer, buffer.clone()) for buffer in encoder.buffers()]
    momenta = [layer.momentum for layer in layers]
    for layer in layers:
        layer.momentum = None  # A cumulative mean.
        layer.reset_running_stats()
    computed: set[int] = set()
    try:
        yield
        for layer in layers:
            if layer.num_batches_tracked:  # A forward pass need not use every layer.
                computed |= {id(layer.running_mean), id(layer.running_var)}
    finally:
        for layer, momentum in zip(layers, momenta, strict=True):
            layer.momentum = momentum
        for buffer, value in buffers:
            if id(buffer) not in computed:
                buffer.copy_(value)


@torch.no_grad()
def _average_over(layers: Sequence[_BatchNorm], group: ProcessGroup | None) -> None:
    """Replace statistics of the parts of processes by their means over the processes."""
    for layer in layers:
        if isinstance(layer, nn.SyncBatchNorm):
            continue  # It has those of all processes already.
        for statistics in (layer.running_mean, layer.running_var):
            if group is not None and statistics is not None:
                statistics.copy_(sum_over(statistics, group) / world_size(group))
