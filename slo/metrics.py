"""Names of the metrics, in one place. Base units (seconds, bytes, tokens); labels are enums only.

What the ingress measures of each request and writes in its log line (`app/record.py`); nothing exports them yet.
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
