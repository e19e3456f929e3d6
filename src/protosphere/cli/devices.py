"""Devices that commands compute on."""


def resolve_device(name: str) -> str:
    """Return the torch device of a ``--device`` option.

    Args:
        name: ``"auto"`` (a CUDA GPU if there is one, otherwise MPS, otherwise the CPU) or the name
            of a device.

    Raises:
        ValueError: The device cannot compute on this machine.
    """
    import torch

    if name == "auto":
        if torch.cuda.is_available():
            return "cuda"
        return "mps" if torch.backends.mps.is_available() else "cpu"
    try:
        torch.zeros(1, device=name).item()
    except (RuntimeError, AssertionError, NotImplementedError):
        raise ValueError(
            f"--device must be a device that is available here, such as cpu, got {name}"
        ) from None
    return name


def device_limits(device: str) -> str | None:
    """Return a sentence about what a device cannot do, or None.

    Args:
        device: What :func:`resolve_device` returned.

    >>> device_limits("cpu")
    """
    if device.partition(":")[0] != "mps":
        return None
    return (
        "MPS has no float64 and no CUDA graphs: metrics are computed on the CPU, steps are not "
        "captured, and training is not compiled unless training.compile is true."
    )
