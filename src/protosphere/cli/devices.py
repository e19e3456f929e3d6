"""Which device a command computes on."""


def device_named(name: str) -> str:
    """The device of an option, seen to compute; ``auto`` is the GPU where there is one.

    Raises:
        ValueError: it does not compute here.
    """
    import torch

    if name == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    try:
        torch.zeros(1, device=name).item()
    except (RuntimeError, AssertionError, NotImplementedError):
        raise ValueError(
            f"--device must be one that computes here, such as cpu; {name} does not"
        ) from None
    return name
