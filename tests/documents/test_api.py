"""The API reference has every package, and public things document themselves.

`make docs` generates the reference and fails if a public name is missing in it.
"""

import importlib
import inspect
import pkgutil
import re
from pathlib import Path
from types import ModuleType

import pytest

import protosphere
import protosphere.losses
from support.documents import ROOT, read

PACKAGES = ["protosphere"] + [
    f"protosphere.{module.name}"
    for module in pkgutil.iter_modules(protosphere.__path__)
    if module.ispkg and module.name != "cli"
]


def _public(package: str) -> tuple[ModuleType, list[str]]:
    module = importlib.import_module(package)
    return module, [name for name in getattr(module, "__all__", []) if not name.startswith("__")]


@pytest.mark.parametrize("package", PACKAGES[1:])
def test_every_package_has_a_page_of_the_api_reference(package: str) -> None:
    page = f"api/{package.removeprefix('protosphere.')}.md"
    directives = re.findall(r"^::: (\S+)$", read(f"docs/{page}"), re.MULTILINE)
    assert directives
    assert all(f"{name}.".startswith(f"{package}.") for name in directives)
    assert package in directives or not _public(package)[1]
    assert f"]({Path(page).name})" in read("docs/api/index.md")


@pytest.mark.parametrize("package", PACKAGES[1:])
def test_every_public_class_and_function_has_a_docstring(package: str) -> None:
    module, names = _public(package)
    for name in names:
        thing = getattr(module, name)
        if inspect.isclass(thing) or inspect.isfunction(thing):
            assert thing.__doc__, name


def test_every_loss_function_has_formula_arguments_and_doctest() -> None:
    for name in protosphere.losses.__all__:
        thing = getattr(protosphere.losses, name)
        if inspect.isfunction(thing):
            for part in ("ℓ_i =", "Args:", "Returns:", "Raises:", ">>> "):
                assert part in (thing.__doc__ or ""), (name, part)


def test_every_loss_module_documents_its_own_arguments() -> None:
    for name in protosphere.losses.__all__:
        thing = getattr(protosphere.losses, name)
        if inspect.isclass(thing):
            for argument in inspect.signature(thing).parameters:
                assert re.search(rf"^\s+{argument}: ", thing.__doc__ or "", re.M), (name, argument)


def test_the_architecture_leads_to_every_loss_and_every_package() -> None:
    text = read("ARCHITECTURE.md")
    for name in protosphere.__all__:
        thing = getattr(protosphere, name)
        if inspect.isfunction(thing) and name in protosphere.losses.__all__:
            module = f"{thing.__module__.replace('.', '/')}.py"
            assert (ROOT / "src" / module).exists()
            assert module in text, name
    for package in PACKAGES[1:]:
        assert re.search(rf"^  {package.split('.')[1]}/ ", text, re.M), package
    assert re.search(r"^  cli/ ", text, re.M)
    assert len(text.splitlines()) <= 120, "it must be readable in one sitting"
