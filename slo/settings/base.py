"""What every group of settings has in common."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, model_validator


class SettingsGroup(BaseModel):
    """Refuses unknown keys, cannot change once made, and refuses numbers that are not finite.

    A group inside a group may be given in part: what is not set keeps its default.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _what_is_not_set_keeps_its_default(cls, values: Any) -> Any:
        if not isinstance(values, dict):
            return values
        return {
            key: {**default.model_dump(), **value}
            if isinstance(value, dict) and isinstance(default := _default_of(cls, key), SettingsGroup)
            else value
            for key, value in values.items()
        }


def _default_of(group: type[BaseModel], key: object) -> object:
    field = group.model_fields.get(key) if isinstance(key, str) else None
    return field.default if field is not None else None
