"""Devices that a run computes on."""

import torch


def resolve_device(device: torch.device | str) -> str:
    """Return the name of a device that can compute on this machine.

    Args:
        device: ``"auto"`` (a CUDA GPU if there is one, otherwise MPS, otherwise the CPU), or a
            device or its name.

    Raises:
        ValueError: The device cannot compute on this machine.

    >>> resolve_device("cpu")
    'cpu'
    """
    if device == "auto":
        if torch.cuda.is_available():
            return "cuda"
        return "mps" if torch.backends.mps.is_available() else "cpu"
    try:
        torch.zeros(1, device=device).item()
    except (RuntimeError, AssertionError, NotImplementedError):
        raise ValueError(
            f"device must be a device that is available here, such as cpu, got {device}"
        ) from None
    return str(device)
