"""The training step captured as a CUDA graph."""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from protosphere.data.loaders import Loader
from protosphere.training.config import TrainConfig
from protosphere.training.ema import ExponentialMovingAverage
from protosphere.training.objective import Objective
from protosphere.training.step import EagerStep

# Steps before the capture; they compile, select algorithms and create the optimizer state.
_WARMUP_STEPS = 3


class GraphStep:
    """A training step that is captured once as a CUDA graph and replayed.

    The graph contains the whole step: selecting and augmenting the batch, forward, backward, update
    and moving average. The step of a small network is hundreds of kernels of a few microseconds
    each, which Python could not launch as fast as they run. An optimizer that cannot be captured
    runs after the graph, with the moving average. The first three steps run without the graph and
    count like any other. See :class:`~protosphere.training.protocol.Step` for the methods.

    Args:
        objective: Module to train, on the device of the loader, a GPU; it is converted to
            channels-last layout.
        loader: Loader of the training images; all batches must have the same shapes.
        config: Settings of the run.
    """

    def __init__(self, objective: Objective, loader: Loader, config: TrainConfig) -> None:
        self._eager = EagerStep(objective, loader, config, for_graph=True)
        self._device = loader.device
        self._graph: torch.cuda.CUDAGraph | None = None
        self._inputs: tuple[Tensor, ...] = ()
        self._output = torch.zeros(())
        self._num_warmup_steps = 0

    @property
    def ema(self) -> ExponentialMovingAverage | None:
        """The moving average of the weights, if the run has one."""
        return self._eager.ema

    @property
    def loss_scale(self) -> float | None:
        """The loss scale of float16; see :attr:`Step.loss_scale`."""
        return self._eager.loss_scale

    def __call__(self, batch: tuple[Tensor, ...], *, step: int, lr: float) -> Tensor:
        """Do one training step; see :meth:`Step.__call__`."""
        self._eager.prepare(step=step, lr=lr)
        if self._graph is None:
            if self._num_warmup_steps < _WARMUP_STEPS:
                self._num_warmup_steps += 1
                return self._warm_up(batch)
            self._capture(batch)
        for static, given in zip(self._inputs, batch, strict=True):
            static.copy_(given, non_blocking=True)
        assert self._graph is not None
        self._graph.replay()
        if not self._eager.captures_optimizer:
            self._eager.apply_gradients()
        return self._output

    def encode(self, batch: tuple[Tensor, ...], *, index: int) -> None:
        """Augment and encode a batch, without the graph; see :meth:`Step.encode`."""
        self._eager.encode(batch, index=index)

    def state_dict(self) -> dict[str, Any]:
        """Return what resuming needs besides the weights; see :meth:`Step.state_dict`."""
        return self._eager.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load a state; see :meth:`Step.load_state_dict`."""
        self._eager.load_state_dict(state)

    def _warm_up(self, batch: tuple[Tensor, ...]) -> Tensor:
        """Do a step outside the graph, on a side stream, as a later capture requires."""
        current, side = torch.cuda.current_stream(self._device), torch.cuda.Stream(self._device)
        side.wait_stream(current)
        with torch.cuda.stream(side), _algorithm_selection():
            loss = self._eager.update(batch)
        current.wait_stream(side)
        loss.record_stream(current)
        return loss

    def _capture(self, batch: tuple[Tensor, ...]) -> None:
        self._inputs = tuple(tensor.clone() for tensor in batch)
        # Gradients must be allocated in the memory of the graph.
        self._eager.optimizer.zero_grad(set_to_none=True)
        graph = torch.cuda.CUDAGraph()
        # Other threads, such as those that load images, may use the GPU during the capture.
        with torch.cuda.graph(graph, capture_error_mode="thread_local"), _algorithm_selection():
            if self._eager.captures_optimizer:
                self._output = self._eager.update(self._inputs)
            else:
                self._output = self._eager.compute_gradients(self._inputs)
        self._graph = graph


@contextmanager
def _algorithm_selection() -> Iterator[None]:
    """Let cuDNN measure its algorithms, and ignore the compiler's advice to enable TF32."""
    cudnn = torch.backends.cudnn
    before = cudnn.benchmark
    cudnn.benchmark = True
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "TensorFloat32 tensor cores")
            yield
    finally:
        cudnn.benchmark = before
