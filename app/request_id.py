"""Request ids: the client's own when it is sane, otherwise a new one."""

from __future__ import annotations

import re
import uuid

REQUEST_ID_HEADER = "x-request-id"
_SANE = re.compile(r"[A-Za-z0-9._:-]{1,128}")


def choose_request_id(sent: str | None) -> str:
    """`sent` when it is 1 to 128 characters of letters, digits and `._:-`; otherwise a new random id."""
    if sent is not None and _SANE.fullmatch(sent):
        return sent
    return uuid.uuid4().hex
