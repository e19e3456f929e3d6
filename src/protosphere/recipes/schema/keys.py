"""The keys of a recipe: which exist, and to which member of a section each belongs."""

from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from functools import cache
from types import UnionType
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints

from pydantic import BaseModel


@cache
def key_owners(model: type[BaseModel]) -> dict[str, list[str]]:
    """Return every dotted key of a model, with the names of the union members that have it.

    Args:
        model: A model whose fields may be models, dataclasses or unions of them.
    """
    found: dict[str, list[str]] = {}
    for path, owner in _walk(model, ""):
        found.setdefault(path, []).append(owner)
    return found


def _walk(kind: Any, prefix: str) -> Iterator[tuple[str, str]]:
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        # Metadata such as a discriminator is not part of the annotation.
        members = {name: field.annotation for name, field in kind.model_fields.items()}
        choices: Any = next(
            (kind.model_fields[key] for key in ("name", "source") if key in members), None
        )
        tags = get_args(choices.annotation) if choices is not None else ()
    elif is_dataclass(kind) and isinstance(kind, type):
        hints = get_type_hints(kind)
        members = {field.name: hints[field.name] for field in fields(kind)}
        tags = get_args(members.get("name"))
    else:
        return
    for name, annotation in members.items():
        for owner in tags or (kind.__name__,):
            yield f"{prefix}{name}", str(owner)
        for member in _members(annotation):
            yield from _walk(member, f"{prefix}{name}.")


def _members(annotation: Any) -> Iterator[Any]:
    """Yield the types of an annotation: those of a union one by one."""
    if get_origin(annotation) is Annotated:
        yield from _members(get_args(annotation)[0])
    elif get_origin(annotation) in (Union, UnionType):
        for member in get_args(annotation):
            yield from _members(member)
    else:
        yield annotation


def section_members(model: type[BaseModel], section: str) -> dict[str, set[str]]:
    """Return the members of a section that is a union, and the keys of each.

    Args:
        model: The model of the whole recipe.
        section: Dotted path of the section, e.g. ``"loss"`` or ``"augmentation.crop"``.
    """
    members: dict[str, set[str]] = {}
    for path, owners in key_owners(model).items():
        parent, _, key = path.rpartition(".")
        if parent == section:
            for owner in owners:
                members.setdefault(owner, set()).add(key)
    return members
