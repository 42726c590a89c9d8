"""Remembers for whom room was made in vain, so that nobody yields to them again at once."""

from __future__ import annotations

from collections.abc import Container


class Refusals:
    """Requests that the engine did not admit although the plan had room for them, each with a growing pause in asking.

    The plan knows slots, KV blocks and tokens; the engine may have reasons of its own (an encoder budget, a connector
    that is not ready). A request refused n times in a row asks again after 2^n steps, so that a wrong plan costs the
    others less and less.
    """

    def __init__(self) -> None:
        self._asks_again: dict[str, tuple[int, int]] = {}

    def note(self, request_id: str, step: int) -> None:
        _, wait_steps = self._asks_again.get(request_id, (0, 1))
        self._asks_again[request_id] = (step + 2 * wait_steps, 2 * wait_steps)

    def forget(self, request_id: str) -> None:
        self._asks_again.pop(request_id, None)

    def may_ask(self, request_id: str, step: int) -> bool:
        asks_again_step, _ = self._asks_again.get(request_id, (step, 0))
        return step >= asks_again_step

    def keep_only(self, request_ids: Container[str]) -> None:
        self._asks_again = {i: entry for i, entry in self._asks_again.items() if i in request_ids}

    def __len__(self) -> int:
        return len(self._asks_again)
