"""``protosphere doctor``: what is installed, what computes, what is missing and how to get it."""

import importlib.metadata
import platform
import re
from typing import TYPE_CHECKING

import typer

from protosphere import __version__

if TYPE_CHECKING:
    from rich.console import Console

# Extras that are for developing, or only name others.
_NOT_SHOWN = {"all", "dev"}


def doctor() -> None:
    """Say what is installed, what will compute, and how to get what is missing."""
    from rich.console import Console
    from rich.table import Table

    console = Console(highlight=False)
    console.print(
        f"protosphere {__version__}, Python {platform.python_version()}, {platform.platform()}"
    )
    table = Table("part", "packages", "state")
    incomplete = []
    for part, packages in _requirements().items():
        versions = {package: _version(package) for package in packages}
        if None in versions.values():
            incomplete.append(part)
        listing = "\n".join(
            f"{package} {version or '[red]missing[/red]'}" for package, version in versions.items()
        )
        table.add_row(
            part, listing, "[red]incomplete[/red]" if part in incomplete else "[green]ready[/green]"
        )
    console.print(table)
    for part in incomplete:
        wanted = "protosphere" if part == "core" else f"protosphere[{part}]"
        typer.echo(f'To complete {part}: pip install "{wanted}"')
    problem = "a package of the core is missing" if "core" in incomplete else _try_devices(console)
    if problem:
        console.print(f"[red]Not well:[/red] {problem}.")
        raise typer.Exit(1)
    console.print("[green]All well:[/green] a NONL step gave a finite loss and gradient.")


def _requirements() -> dict[str, list[str]]:
    """The packages of the core and of each extra, as the installed metadata has them."""
    parts: dict[str, list[str]] = {"core": []}
    for requirement in importlib.metadata.requires("protosphere") or []:
        name = re.match(r"[\w.-]+", requirement)
        extra = re.search(r"extra == ['\"](\w+)['\"]", requirement)
        part = extra[1] if extra else "core"
        if name and name[0] != "protosphere" and part not in _NOT_SHOWN:
            parts.setdefault(part, []).append(name[0])
    return parts


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _try_devices(console: "Console") -> str | None:
    """Print what computes and try one step on it; returns what is wrong, if anything is."""
    import torch

    from protosphere.losses import nonl_loss

    device = torch.device("cpu")
    if torch.cuda.is_available():
        device = torch.device("cuda")
        for index in range(torch.cuda.device_count()):
            properties = torch.cuda.get_device_properties(index)
            console.print(
                f"GPU {index}: {properties.name}, {properties.total_memory / 2**30:.0f} GiB"
            )
    elif torch.backends.mps.is_available():
        device = torch.device("mps")
        console.print("GPU: Apple silicon (mps)")
    else:
        console.print(f"No GPU: everything runs on the CPU with {torch.get_num_threads()} threads.")
    features = torch.randn(32, 16, device=device, requires_grad=True)
    try:
        loss = nonl_loss(
            features, torch.randn(4, 16, device=device), torch.arange(32, device=device) % 4
        )
        loss.backward()
    except RuntimeError as error:
        return f"a NONL step on {device.type} failed: {error}"
    finite = (
        features.grad is not None
        and bool(torch.isfinite(features.grad).all())
        and bool(torch.isfinite(loss))
    )
    return None if finite else f"a NONL step on {device.type} gave numbers that are not finite"
