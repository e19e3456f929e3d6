"""The base class of all sections of a recipe."""

from types import UnionType
from typing import Any, Union, get_args, get_origin

from pydantic import BaseModel, ConfigDict, ValidationInfo, field_validator
from pydantic_core import PydanticCustomError


class Section(BaseModel):
    """A frozen group of recipe keys. Unknown keys, NaN and infinity are refused."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    @field_validator("*", mode="before")
    @classmethod
    def _refuse_bool_as_number(cls, value: Any, info: ValidationInfo) -> Any:
        """Refuse true and false where the key is not a Boolean: they would pass as 1 and 0."""
        if isinstance(value, bool) and info.field_name is not None:
            annotation = cls.model_fields[info.field_name].annotation
            if not _allows_bool(annotation):
                raise PydanticCustomError("bool_as_number", "must not be a Boolean")
        return value


def _allows_bool(annotation: Any) -> bool:
    if annotation is bool:
        return True
    if get_origin(annotation) in (Union, UnionType):
        return any(_allows_bool(member) for member in get_args(annotation))
    return False
