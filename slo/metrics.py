"""Names of the metrics, in one place. Base units (seconds, bytes, tokens); labels are enums only.

A name is listed here when something emits it.
"""

from __future__ import annotations

from typing import Final

NAMESPACE: Final = "expresslane"

LABEL_CLASS: Final = "priority_class"
LABEL_OUTCOME: Final = "outcome"

REQUESTS_TOTAL: Final = f"{NAMESPACE}_requests_total"
TTFT_SECONDS: Final = f"{NAMESPACE}_ttft_seconds"
TBT_SECONDS: Final = f"{NAMESPACE}_tbt_seconds"
E2E_SECONDS: Final = f"{NAMESPACE}_e2e_seconds"
