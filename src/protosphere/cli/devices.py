"""What commands say about the device that they compute on."""


def device_limits(device: str) -> str | None:
    """Return a sentence about what a device cannot do, or None.

    Args:
        device: What :func:`~protosphere.recipes.devices.resolve_device` returned.

    >>> device_limits("cpu")
    """
    if device.partition(":")[0] != "mps":
        return None
    return (
        "MPS has no float64 and no CUDA graphs: metrics are computed on the CPU, steps are not "
        "captured, and training is not compiled unless training.compile is true."
    )
