"""Steps of training: forward, backward, update; eagerly, or compiled and replayed as one CUDA graph."""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from protosphere.data.loaders import Feed, seed_of
from protosphere.training.config import Settings
from protosphere.training.ema import WeightAverage
from protosphere.training.objective import Objective

# Steps before the graph is recorded: they compile, choose algorithms and make the optimizer's state.
_BEFORE_GRAPH = 3


class Steps:
    """Takes steps, and owns what they change: the optimizer's state and the average of weights.

    Compiled, on a GPU, the whole step (cutting and augmenting the batch, both passes, the update) is recorded once as a
    CUDA graph and replayed: a step of a small network is hundreds of kernels of microseconds each, which Python could
    not launch as fast as they run. The first steps are taken outside the graph and count like any other.

    Args:
        objective: on the feed's device.
        feed: whose batches are taken.
        settings: how to train.
    """

    def __init__(self, objective: Objective, feed: Feed, settings: Settings) -> None:
        self.objective, self.feed, self.settings = objective, feed, settings
        self.device = feed.device
        self._compiled = settings.execution == "compiled"
        self._graphed = self._compiled and self.device.type == "cuda"
        if self._graphed:
            objective.to(memory_format=torch.channels_last)
        # A number would be recorded for good; a tensor can be filled anew.
        first = settings.schedule.at_epoch(0)
        self._rate = torch.tensor(first, device=self.device) if self._graphed else first
        self._last_rate = first
        self.optimizer = _optimizer(objective, settings, self._rate, graphed=self._graphed)
        self.average = (
            None if settings.average is None else WeightAverage(objective, settings.average)
        )
        self._loss = (
            torch.compile(self._loss_of, fullgraph=True, dynamic=False)
            if self._compiled
            else self._loss_of
        )
        self._graph: torch.cuda.CUDAGraph | None = None
        self._inputs: tuple[Tensor, ...] = ()
        self._output = torch.zeros(())
        self._taken = 0

    def take(self, parts: tuple[Tensor, ...], *, step: int, rate: float) -> Tensor:
        """Take a step.

        Args:
            parts: what the feed gave.
            step: how many were taken before it, over the whole run; with the seed it decides all random numbers.
            rate: the learning rate.

        Returns:
            The loss before the update, on the device; it is valid until the next step.
        """
        self._seed(seed_of("step", self.settings.seed, step))
        self._set_rate(rate)
        if self.average is not None:
            self.average.at(step)
        if not self._graphed:
            return self._whole(parts)
        if self._graph is None:
            if self._taken < _BEFORE_GRAPH:
                self._taken += 1
                return self._beside(parts)
            self._record(parts)
        for own, given in zip(self._inputs, parts, strict=True):
            own.copy_(given, non_blocking=True)
        assert self._graph is not None
        self._graph.replay()
        return self._output

    def state(self) -> dict[str, Any]:
        """What resuming needs besides the weights; of plain types."""
        average = {} if self.average is None else {"average": self.average.state()}
        kind = {"kind": self.settings.optimizer}
        return {"optimizer": self.optimizer.state_dict()["state"], **kind, **average}

    def restore(self, state: dict[str, Any]) -> None:
        """Take up a state that was saved, on this device or on another."""
        if state["kind"] != self.settings.optimizer:
            raise ValueError(
                f"a state must be of the optimizer that takes it, {self.settings.optimizer}; it is not"
            )
        groups = self.optimizer.state_dict()["param_groups"]
        self.optimizer.load_state_dict({"state": state["optimizer"], "param_groups": groups})
        for group in self.optimizer.param_groups:
            group["lr"] = self._rate  # Loading has put a copy in its place.
        for parameter, own in self.optimizer.state.items():
            for name, value in own.items():
                if isinstance(value, Tensor) and value.shape == parameter.shape:
                    own[name] = torch.empty_like(parameter).copy_(
                        value
                    )  # In the layout that the parameter has here.
        if self.average is not None:
            self.average.restore(state["average"])

    def _loss_of(self, *parts: Tensor) -> Tensor:
        images, labels = self.feed.prepared(*parts)
        if (
            self._graphed and images.ndim == 4
        ):  # Features that were computed once have no such layout.
            images = images.contiguous(memory_format=torch.channels_last)
        with torch.autocast(
            self.device.type, torch.bfloat16, enabled=self.settings.precision == "bfloat16"
        ):
            loss: Tensor = self.objective(images, labels)
        return loss

    def _whole(self, parts: tuple[Tensor, ...]) -> Tensor:
        """A step, as it is recorded too: it waits for nothing, and no shape depends on a value."""
        pieces = self.settings.accumulate
        losses = []
        self.optimizer.zero_grad(set_to_none=True)
        for piece in zip(*(part.chunk(pieces) for part in parts), strict=True):
            loss = self._loss(*piece)
            if pieces > 1:
                loss = loss * (len(piece[0]) / len(parts[0]))
            loss.backward()
            losses.append(loss.detach())
        if self.settings.clip is not None:
            torch.nn.utils.clip_grad_norm_(self.objective.parameters(), self.settings.clip)
        self.optimizer.step()
        if self.average is not None:
            self.average.update()
        return losses[0] if pieces == 1 else torch.stack(losses).sum()

    def _beside(self, parts: tuple[Tensor, ...]) -> Tensor:
        """A step outside the graph, on a stream of its own as recording asks for."""
        current, side = torch.cuda.current_stream(self.device), torch.cuda.Stream(self.device)
        side.wait_stream(current)
        with torch.cuda.stream(side), _choosing():
            loss = self._whole(parts)
        current.wait_stream(side)
        loss.record_stream(current)
        return loss

    def _record(self, parts: tuple[Tensor, ...]) -> None:
        self._inputs = tuple(part.clone() for part in parts)
        self.optimizer.zero_grad(
            set_to_none=True
        )  # Gradients are to lie in the graph's own memory.
        graph = torch.cuda.CUDAGraph()
        # Other threads, such as those that load images, may go on talking to the GPU meanwhile.
        with torch.cuda.graph(graph, capture_error_mode="thread_local"), _choosing():
            self._output = self._whole(self._inputs)
        self._graph = graph

    def _seed(self, seed: int) -> None:
        if self.device.type == "cuda":
            torch.cuda.default_generators[self.device.index or 0].manual_seed(seed)
        else:
            torch.manual_seed(seed)

    def _set_rate(self, rate: float) -> None:
        if rate == self._last_rate:
            return
        self._last_rate = rate
        if isinstance(self._rate, Tensor):
            self._rate.fill_(rate)
        else:
            for group in self.optimizer.param_groups:
                group["lr"] = rate


@contextmanager
def _choosing() -> Iterator[None]:
    """Where cuDNN tries some algorithms and keeps the fastest; the compiler's advice to round products is not heard."""
    cudnn = torch.backends.cudnn
    before = cudnn.benchmark
    cudnn.benchmark = True
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "TensorFloat32 tensor cores")
            yield
    finally:
        cudnn.benchmark = before


def _optimizer(
    objective: Objective, settings: Settings, rate: float | Tensor, *, graphed: bool
) -> torch.optim.Optimizer:
    parameters = list(objective.parameters())
    fused = True if graphed else None
    if settings.optimizer == "sgd":
        return torch.optim.SGD(
            parameters,
            rate,
            momentum=settings.momentum,
            weight_decay=settings.weight_decay,
            fused=fused,
        )
    if settings.optimizer == "adamw":
        return torch.optim.AdamW(
            parameters, rate, weight_decay=settings.weight_decay, fused=fused, capturable=graphed
        )
    raise ValueError(f"an optimizer is 'sgd' or 'adamw'; got {settings.optimizer!r}")
