"""``protosphere doctor``: which packages and devices are available, and whether a loss computes."""

import importlib.metadata
import platform
import re
from typing import TYPE_CHECKING

import typer

from protosphere import __version__
from protosphere.cli.text import count, printable

if TYPE_CHECKING:
    from rich.console import Console

# Extras for developing, or that only name other extras.
_HIDDEN_EXTRAS = {"all", "dev"}


def doctor() -> None:
    """Check the installation: packages, devices, and one loss with its gradient."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console(highlight=False)
    console.print(
        f"protosphere {__version__}, Python {platform.python_version()}, {platform.platform()}"
    )
    table = Table("extra", "packages", "status")
    missing = []
    for extra, packages in _requirements().items():
        versions = {package: _version(package) for package in packages}
        if None in versions.values():
            missing.append(extra)
        table.add_row(
            extra,
            "\n".join(f"{package} {version or 'missing'}" for package, version in versions.items()),
            _status(extra, is_missing=extra in missing),
        )
    console.print(table)
    for extra in missing:
        if extra == "core":
            typer.echo('To install core: pip install "protosphere"')
        else:
            typer.echo(f'To install {extra} (optional): pip install "protosphere[{extra}]"')
    problem = "a core package is missing" if "core" in missing else _check_devices(console)
    if problem:
        console.print("[red]Problem:[/red]", Text(printable(problem)))
        raise typer.Exit(1)
    console.print("[green]OK:[/green] a NONL loss and its gradient are finite")


def _status(extra: str, *, is_missing: bool) -> str:
    if not is_missing:
        return "[green]installed[/green]"
    return "[red]incomplete[/red]" if extra == "core" else "not installed (optional)"


def _requirements() -> dict[str, list[str]]:
    """The packages of the core and of each extra, from the installed metadata."""
    extras: dict[str, list[str]] = {"core": []}
    for requirement in importlib.metadata.requires("protosphere") or []:
        package = re.match(r"[\w.-]+", requirement)
        marker = re.search(r"extra == ['\"](\w+)['\"]", requirement)
        extra = marker[1] if marker else "core"
        if package and package[0] != "protosphere" and extra not in _HIDDEN_EXTRAS:
            extras.setdefault(extra, []).append(package[0])
    return extras


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _check_devices(console: "Console") -> str | None:
    """Print the devices and compute one loss on the first; return the problem, if there is one."""
    import torch

    from protosphere.losses import nonl_loss

    device = torch.device("cpu")
    if torch.cuda.is_available():
        device = torch.device("cuda")
        for index in range(torch.cuda.device_count()):
            properties = torch.cuda.get_device_properties(index)
            memory = properties.total_memory / 2**30
            console.print(f"GPU {index}: {properties.name}, {memory:.0f} GiB")
    elif torch.backends.mps.is_available():
        device = torch.device("mps")
        console.print("GPU: Apple silicon (mps)")
    else:
        console.print(f"No GPU; the CPU is used with {count(torch.get_num_threads(), 'thread')}")
    features = torch.randn(32, 16, device=device, requires_grad=True)
    prototypes = torch.randn(4, 16, device=device)
    labels = torch.arange(32, device=device) % 4
    try:
        loss = nonl_loss(features, prototypes, labels)
        (gradient,) = torch.autograd.grad(loss, features)
    except RuntimeError as error:
        return f"a NONL loss on {device.type} failed: {error}"
    if not bool(torch.isfinite(loss) & torch.isfinite(gradient).all()):
        return f"a NONL loss or its gradient on {device.type} is not finite"
    return None
