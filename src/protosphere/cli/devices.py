"""Devices that commands compute on."""


def resolve_device(name: str) -> str:
    """Return the torch device of a ``--device`` option.

    Args:
        name: ``"auto"`` (the GPU if there is one, otherwise the CPU) or the name of a device.

    Raises:
        ValueError: The device cannot compute on this machine.
    """
    import torch

    if name == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    try:
        torch.zeros(1, device=name).item()
    except (RuntimeError, AssertionError, NotImplementedError):
        raise ValueError(
            f"--device must be a device that is available here, such as cpu, got {name}"
        ) from None
    return name
