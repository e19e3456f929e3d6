"""NTCE and NONL with a queue whose gradients are those of a batch as large as batch and queue.

Entries of a queue are constants. As keys they take their part of the repulsion, but no feature gets
its gradient: with M samples and Q entries the features of the batch are repelled M/(M + Q) times as
much as they would be in a batch of M + Q samples, and attracted as much. Here the gradient of the
repulsion is multiplied by (M + Q)/M for features, and positives of the batch stand for all
positives with this weight, since NTCE would otherwise attract features to their own class
without end. Copies of the batch in the queue then change no gradient.
"""

from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor

from protosphere.losses import NONLLoss, NTCELoss
from protosphere.losses.module import CosineHead, LossModule
from protosphere.recipes import registry

# Finite, since a column without keys would have a gradient that is not a number.
_NO_KEY = -1e4


class ScaledNONLLoss(NONLLoss):
    """NONL whose queue repels as samples of the batch do."""

    def forward(self, features: Tensor, head: CosineHead, labels: Tensor) -> Tensor:  # type: ignore[override]
        """Return the mean of log Σ_negatives − positive."""
        negatives, positives, _ = _log_sums(self, features, head, labels)
        return (negatives[labels] - positives.gather(1, labels[:, None]).squeeze(1)).mean()


class ScaledNTCELoss(NTCELoss):
    """NTCE whose queue repels as samples of the batch do."""

    def forward(self, features: Tensor, head: CosineHead, labels: Tensor) -> Tensor:  # type: ignore[override]
        """Return the mean of log Σ_all − positive."""
        negatives, logits, scale = _log_sums(self, features, head, labels)
        others = ~F.one_hot(labels, logits.shape[1]).bool()
        positives = logits.masked_fill(others, _NO_KEY).logsumexp(0) + scale.log()
        sums = torch.logaddexp(negatives[labels], positives[labels])
        return (sums - logits.gather(1, labels[:, None]).squeeze(1)).mean()


def _log_sums(
    loss: LossModule, features: Tensor, head: CosineHead, labels: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the log-sums over negatives by class, the logits, and (M + Q)/M."""
    with torch.autocast(features.device.type, enabled=False):
        prototypes = F.normalize(head.prototypes.float()).T / head.temperature
        unit = F.normalize(features.float())
        logits = unit @ prototypes
        own = F.one_hot(labels, logits.shape[1]).bool()
        queue, scale = loss.read_queue(), torch.ones((), device=logits.device)
        if queue is None:
            return logits.masked_fill(own, _NO_KEY).logsumexp(0), logits, scale
        scale = 1 + queue.kept.sum() / len(labels)
        # The gradient of the features, not that of the prototypes, is multiplied.
        keys = (scale * unit - (scale - 1) * unit.detach()) @ prototypes
        left_out = F.one_hot(queue.labels, logits.shape[1]).bool() | ~queue.kept[:, None]
        queued = (queue.features.float() @ prototypes).masked_fill(left_out, _NO_KEY)
        negatives = torch.cat((keys.masked_fill(own, _NO_KEY), queued)).logsumexp(0)
    loss.add_to_queue(features, labels)
    return negatives, logits, scale


def scale_queue(name: str) -> None:
    """Let recipes of this process compute NTCE or NONL with a scaled queue.

    Args:
        name: Name of the loss.
    """
    losses = {"nonl": ScaledNONLLoss, "ntce": ScaledNTCELoss}
    registry.LOSSES[name] = replace(
        registry.LOSSES[name], loss=lambda _, group: losses[name](group=group)
    )
