"""The one primitive of the library in its forms."""

from protosphere.kernels.masked_logsumexp import MaskedLogSumExp, choose_form, masked_logsumexp

__all__ = ["MaskedLogSumExp", "choose_form", "masked_logsumexp"]
