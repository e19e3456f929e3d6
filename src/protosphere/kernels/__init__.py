"""The one primitive of the library, the masked log-sum-exp, in its forms."""

from protosphere.kernels.dispatch import Form, MaskedLogSumExp, choose_form, masked_logsumexp

__all__ = ["Form", "MaskedLogSumExp", "choose_form", "masked_logsumexp"]
