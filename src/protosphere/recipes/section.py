"""The base class of all sections of a recipe."""

from types import UnionType
from typing import Any, Union, get_args, get_origin

from pydantic import BaseModel, ConfigDict, model_validator


class Section(BaseModel):
    """A frozen group of recipe keys. Unknown keys, NaN and infinity are refused."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _refuse_bool_as_number(cls, values: Any) -> Any:
        """Refuse true and false where the key is not a Boolean: they would pass as 1 and 0."""
        if isinstance(values, dict):
            for key, field in cls.model_fields.items():
                value = values.get(key)
                items = value if isinstance(value, list | tuple) else [value]
                if not _allows_bool(field.annotation) and any(isinstance(i, bool) for i in items):
                    raise ValueError(f"{key} must not be a Boolean, got {value}")
        return values


def _allows_bool(annotation: Any) -> bool:
    if get_origin(annotation) in (Union, UnionType):
        return any(_allows_bool(member) for member in get_args(annotation))
    return annotation is bool
