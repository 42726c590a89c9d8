"""Which replicas have read which beginnings of prompts, as far as this ingress process sent them there.

Bounded by entries: the ones that were sent longest ago go first. Says nothing of what a replica still holds: a wrong
guess costs no more than no guess.
"""

from __future__ import annotations

from collections import OrderedDict

from app.routing_prompt import Mark, Prompt

MAX_REPLICAS = 4
"""Remembered for one prefix, the latest ones. A system prompt that all have read need not be known to all."""


class PrefixBook:
    """One router's. Holds hashes and replicas' ids, no text."""

    def __init__(self, max_entries: int) -> None:
        self._max_entries = max_entries
        self._replicas: OrderedDict[int, tuple[str, ...]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._replicas)

    def note(self, prompt: Prompt, replica_id: str) -> None:
        """`prompt` goes to that replica. Kept at its counted places and its end: about 10 entries."""
        for mark in _kept(prompt.marks):
            others = tuple(r for r in self._replicas.get(mark.key, ()) if r != replica_id)
            self._replicas[mark.key] = (replica_id, *others[: MAX_REPLICAS - 1])
            self._replicas.move_to_end(mark.key)
        while len(self._replicas) > self._max_entries:
            self._replicas.popitem(last=False)

    def match(self, prompt: Prompt) -> dict[str, int]:
        """How many characters of `prompt` each replica has read; who has read none is not in it."""
        read: dict[str, int] = {}
        for mark in reversed(prompt.marks):
            for replica_id in self._replicas.get(mark.key, ()):
                read.setdefault(replica_id, mark.num_chars)
        return read

    def check_invariants(self) -> None:
        """For tests, after each step."""
        assert len(self._replicas) <= self._max_entries
        assert all(1 <= len(ids) <= MAX_REPLICAS and len(set(ids)) == len(ids) for ids in self._replicas.values())


def _kept(marks: tuple[Mark, ...]) -> list[Mark]:
    """The next turn of a conversation ends one of its messages where this prompt ends."""
    return [mark for mark in marks[:-1] if not mark.is_end] + list(marks[-1:])
