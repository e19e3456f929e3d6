"""Exact gradients of a large batch whose encoder runs on pieces of it.

A first pass computes the features of all pieces and keeps nothing else. The loss of the whole batch
and its gradient with respect to the features follow from them. A second pass computes each piece
again, with the same augmentation and dropout, and continues the gradient through the encoder. The
gradient equals that of the whole batch for every loss, at the cost of one more forward pass;
memory holds the activations of one piece and the features of all.

What depends on the batch inside of the encoder depends on the piece: batch norm normalizes with the
statistics of each piece, and updates its running statistics once per piece. Mixup and CutMix mix
within a piece.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from protosphere.losses import MixedLabels

Batch = tuple[Tensor, ...]
Targets = Tensor | MixedLabels


def split_batch(
    batch: Batch, micro_batch_size: int, *, sizes: tuple[int, int] | None = None
) -> list[Batch]:
    """Split a batch into pieces of at most so many samples, and of at least two.

    Args:
        batch: A batch of :meth:`Loader.batches`.
        micro_batch_size: Largest number of samples of a piece.
        sizes: Least and greatest number of samples of a process, if there are several: each of
            them has as many pieces, because batch norm may exchange statistics of a piece.

    >>> [len(piece[0]) for piece in split_batch((torch.arange(10),), 4)]
    [4, 3, 3]
    """
    least, greatest = (len(batch[0]),) * 2 if sizes is None else sizes
    # A piece of one image can neither be mixed nor pass a batch norm.
    num_pieces = min(-(-greatest // micro_batch_size), max(1, least // 2))
    return list(zip(*(tensor.tensor_split(num_pieces) for tensor in batch), strict=True))


def micro_batch_backward(
    encoder: nn.Module,
    pieces: Sequence[Batch],
    encode: Callable[..., tuple[Tensor, Targets]],
    compute_loss: Callable[[Tensor, Targets], Tensor],
    backward: Callable[[Tensor], None],
) -> Tensor:
    """Add the gradients of the loss of a batch to the parameters, piece by piece.

    Args:
        encoder: The encoder; its buffers are updated once per piece.
        pieces: Pieces of the batch.
        encode: Function of the tensors of a piece that returns features and targets. It may draw
            random numbers from the default generators.
        compute_loss: Function of features and targets of the whole batch that returns the loss.
        backward: Function that runs backward from the loss, which may scale it.

    Returns:
        The loss of the whole batch.
    """
    buffers = [buffer.clone() for buffer in encoder.buffers()]
    states, outputs = [], []
    with torch.no_grad():
        for piece in pieces:
            device = piece[0].device
            states.append(_generator_states(device))
            outputs.append(encode(*piece))
    features = torch.cat([output for output, _ in outputs]).requires_grad_()
    loss = compute_loss(features, _join([targets for _, targets in outputs]))
    backward(loss)
    if not any(parameter.requires_grad for parameter in encoder.parameters()):
        return loss.detach()
    gradients = torch.zeros_like(features) if features.grad is None else features.grad
    after = _generator_states(device)
    with torch.no_grad():
        for buffer, value in zip(encoder.buffers(), buffers, strict=True):
            buffer.copy_(value)
    sizes = [len(output) for output, _ in outputs]
    for piece, state, gradient in zip(pieces, states, gradients.split(sizes), strict=True):
        _set_generator_states(device, state)
        again, _ = encode(*piece)
        again.backward(gradient)
    _set_generator_states(device, after)
    return loss.detach()


def _join(targets: Sequence[Targets]) -> Targets:
    """The targets of all pieces as those of one batch."""
    first = targets[0]
    if isinstance(first, Tensor):
        return torch.cat([part for part in targets if isinstance(part, Tensor)])
    mixed = [part for part in targets if isinstance(part, MixedLabels)]
    return MixedLabels(
        torch.cat([part.labels for part in mixed]),
        torch.cat([part.other_labels for part in mixed]),
        torch.cat([part.weights for part in mixed]),
    )


def _generator_states(device: torch.device) -> list[Tensor]:
    """The states of the generator of the CPU, which a model may use as well, and of the device."""
    states = [torch.get_rng_state()]
    if device.type == "cuda":
        states.append(torch.cuda.get_rng_state(device))
    elif device.type == "mps":
        states.append(torch.mps.get_rng_state())
    return states


def _set_generator_states(device: torch.device, states: Sequence[Tensor]) -> None:
    torch.set_rng_state(states[0])
    if device.type == "cuda":
        torch.cuda.set_rng_state(states[1], device)
    elif device.type == "mps":
        torch.mps.set_rng_state(states[1])
