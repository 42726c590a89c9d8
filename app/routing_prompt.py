"""What a request's body tells the router: how long its prompt is, and where a later prompt may part from it.

The body is what a client sent and nobody has checked: whatever is no prompt reads as an empty one.

A prompt is marked at the end of each message and at 256, 512, 1024, ... characters; a mark is a hash of all that comes
before it. Two prompts that begin alike have the marks of their common part in common. Only hashes are kept; Python's
own are good for one process, and cheap.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

FIRST_CUT_CHARS: Final = 256
MAX_MARKED_CHARS: Final = 65_536
"""What comes later has no marks: so long a prefix decides well enough, and hashing takes time."""
MAX_MESSAGES: Final = 1024
"""What comes later is not read at all."""
CHARS_PER_TOKEN_ID: Final = 4
"""A prompt of token ids is measured as if it were text. Source: OpenAI's rule of thumb."""

Part = str | tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Mark:
    """A place in a prompt.

    Attributes:
        key: stands for everything before it.
        is_end: the end of a message; else a place by count.
    """

    key: int
    num_chars: int
    is_end: bool


@dataclass(frozen=True, slots=True)
class Prompt:
    """A prompt's length, and its marks from the start on."""

    num_chars: int = 0
    marks: tuple[Mark, ...] = ()


def read_prompt(body: Mapping[str, Any], base_names: Collection[str] = ()) -> Prompt:
    """The prompt in `body`: its messages, or its text or token ids; of several prompts the first.

    Args:
        base_names: what the model itself is called. Under another name a LoRA adapter is asked for, whose KV is its
            own: its prompts have no marks in common with others.
    """
    model = body.get("model")
    seed = hash(model) if isinstance(model, str) and model not in base_names else 0
    messages = body.get("messages")
    if isinstance(messages, list):
        texts = [_text_of(message) for message in messages[:MAX_MESSAGES]]
        return Prompt(sum(map(len, texts)), _marks_of(texts, seed))
    prompt = body.get("prompt")
    if isinstance(prompt, list) and prompt and not isinstance(prompt[0], int):
        prompt = prompt[0]
    if isinstance(prompt, str):
        return Prompt(len(prompt), _marks_of([prompt], seed))
    if isinstance(prompt, list):
        ids = prompt[: MAX_MARKED_CHARS // CHARS_PER_TOKEN_ID]
        is_ids = set(map(type, ids)) <= {int}
        return Prompt(CHARS_PER_TOKEN_ID * len(prompt), _marks_of([tuple(ids)], seed) if is_ids else ())
    return Prompt()


def _text_of(message: object) -> str:
    if not isinstance(message, dict):
        return ""
    role, content = message.get("role"), message.get("content")
    if isinstance(content, list):
        texts = (item.get("text") for item in content if isinstance(item, dict))
        content = "\n".join(text for text in texts if isinstance(text, str))
    return f"{role}\n{content}" if isinstance(role, str) and isinstance(content, str) else ""


def _marks_of(parts: Sequence[Part], seed: int) -> tuple[Mark, ...]:
    marks: list[Mark] = []
    key, num_chars, cut = seed, 0, FIRST_CUT_CHARS
    for part in parts:
        unit = 1 if isinstance(part, str) else CHARS_PER_TOKEN_ID
        begin = 0
        while (end := begin + (cut - num_chars) // unit) <= len(part):
            key, num_chars = hash((key, part[begin:end])), cut
            marks.append(Mark(key, num_chars, is_end=False))
            if num_chars >= MAX_MARKED_CHARS:
                return tuple(marks)
            begin, cut = end, 2 * cut
        key, num_chars = hash((key, part[begin:])), num_chars + unit * (len(part) - begin)
        marks.append(Mark(key, num_chars, is_end=True))
    return tuple(marks)
