"""Make an environment of a built wheel and what it declares, from packages of this environment.

Installing them again would unpack gigabytes a second time: the files are hard links instead. The
wheel itself is installed by pip, which also checks that every requirement is there.
"""

import importlib.metadata
import os
import shutil
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

from packaging.requirements import Requirement


def requirements(name: str, extras: frozenset[str]) -> list[Requirement]:
    """Return what an installed package requires here, with these of its extras."""
    environments = [{"extra": extra} for extra in ("", *extras)]
    declared = map(Requirement, importlib.metadata.requires(name) or [])
    return [
        requirement
        for requirement in declared
        if requirement.marker is None
        or any(requirement.marker.evaluate(environment) for environment in environments)
    ]


def required_packages(name: str) -> set[str]:
    """Return the packages that a package requires, directly or not."""
    seen: set[tuple[str, frozenset[str]]] = set()
    pending = requirements(name, frozenset())
    while pending:
        requirement = pending.pop()
        key = (requirement.name, frozenset(requirement.extras))
        if key not in seen:
            seen.add(key)
            pending += requirements(*key)
    return {package for package, _ in seen}


def link(package: str, site: Path) -> None:
    """Link the files of an installed package into a site-packages folder."""
    for file in importlib.metadata.files(package) or []:
        source = Path(str(file.locate()))
        if ".." in file.parts or not source.exists():
            continue  # scripts; byte code that was not compiled
        target = site / file
        target.parent.mkdir(parents=True, exist_ok=True)
        if not target.exists():
            os.link(source, target)


def main(wheel: str, folder: str) -> None:
    """Make the environment, install the wheel and check what it requires."""
    shutil.rmtree(folder, ignore_errors=True)
    venv.create(folder, symlinks=True)
    python = Path(folder, "bin", "python")
    scheme = sysconfig.get_path("purelib", vars={"base": folder})
    for package in sorted(required_packages("protosphere")):
        link(package, Path(scheme))
    pip = [sys.executable, "-m", "pip", "--python", str(python)]
    subprocess.run([*pip, "install", "--quiet", "--no-index", "--no-deps", wheel], check=True)
    subprocess.run([*pip, "check"], check=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
