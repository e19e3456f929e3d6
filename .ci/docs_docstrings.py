"""Prepare what griffe has read for the API reference: doctests, cross-references and shapes."""

import re
from typing import Any

from griffe import Attribute, Class, ExprName, ExprSubscript, ExprTuple, Extension, Function, Object

_ROLE = re.compile(r":(?:class|func|meth|mod|data|attr|exc):`~?([^`]+)`")
_DOCTEST = re.compile(r"^(>>> .*(?:\n(?!\s*$).*)*)", re.MULTILINE)
_LONGEST_VALUE = 200
_JAXTYPING = {"Bool", "Float", "Float32", "Float64", "Int", "Int32", "Int64", "Integer", "Num"}
_JAXTYPING |= {"Shaped", "UInt8"}


class DocumentedSource(Extension):
    """Write docstrings as Markdown, and the shapes of annotations as they are written."""

    def on_function(self, *, func: Function, **kwargs: Any) -> None:
        """Quote the shapes of arguments and results."""
        for parameter in func.parameters:
            _quote_shapes(parameter.annotation)
        _quote_shapes(func.returns)

    def on_attribute(self, *, attr: Attribute, **kwargs: Any) -> None:
        """Quote the shape of an attribute; leave out values that are tables of their own."""
        _quote_shapes(attr.annotation)
        if len(str(attr.value)) > _LONGEST_VALUE:
            attr.value = None

    def on_package(self, *, pkg: Object, **kwargs: Any) -> None:
        """Rewrite the docstrings once all names are known."""
        _rewrite(pkg)


def _rewrite(obj: Object) -> None:
    if obj.docstring is not None:
        text = _ROLE.sub(lambda match: _reference(obj, match[1]), obj.docstring.value)
        # Markdown takes doctests for quotations.
        obj.docstring.value = _DOCTEST.sub(r"```pycon\n\1\n```", text)
    for member in obj.members.values():
        if not member.is_alias:
            _rewrite(member)


def _reference(obj: Object, name: str) -> str:
    """Return a link to a name if the reference has it, otherwise the name as code."""
    place = obj if isinstance(obj, Class) or obj.parent is None else obj.parent
    first, _, rest = name.partition(".")
    path = name
    if first != "protosphere" and first in place.members:
        path = place.members[first].path
    elif first != "protosphere" and first in place.module.members:
        member = place.module.members[first]
        path = member.target_path if member.is_alias else member.path
    path = f"{path}.{rest}" if rest and first != "protosphere" else path
    title = name.rpartition(".")[2] if first == "protosphere" else name
    return f'<autoref optional identifier="{path}"><code>{title}</code></autoref>'


def _quote_shapes(annotation: Any) -> None:
    """Turn one-word shapes, which are valid Python names, back into the strings that they are."""
    if not hasattr(annotation, "iterate"):
        return
    for part in [annotation, *annotation.iterate(flat=False)]:
        if part is not annotation:
            _quote_shapes(part)
        if not isinstance(part, ExprSubscript) or str(part.left) not in _JAXTYPING:
            continue
        if isinstance(part.slice, ExprTuple):
            part.slice.elements = [
                part.slice.elements[0],
                *(
                    f"'{shape}'" if isinstance(shape, ExprName) else shape
                    for shape in part.slice.elements[1:]
                ),
            ]
