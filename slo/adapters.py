"""The names of LoRA adapters that lie in a directory (`engine.adapters_dir`): what may be one, for all rooms."""

from __future__ import annotations

import re
from typing import Final, TypeGuard

_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")


def is_adapter_name(name: object) -> TypeGuard[str]:
    """Whether `name` can be a subdirectory there: one part of a path, that is not hidden and does not lead out."""
    return isinstance(name, str) and _NAME.fullmatch(name) is not None
