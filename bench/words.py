"""Text of a wanted length in tokens, without a tokenizer: common words, nearly each of them one token.

The server tells the true length, and the result shows it beside the wanted one. Two texts differ from their first words
on, unless they are meant to be the same: a prefix cache finds only what a workload shares.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

_TEXT = (
    "about after again air all and any back book both call city come day each end even every eye face fact few find "
    "first food form free from give good great hand hard head help here high home house idea into just keep kind "
    "know land large last later life light line long look made make many mind more most move much name near need "
    "never new next night number off often old once one open order other over own part people place plan play point "
    "power real right river road room same school sea second set ship side small sound start state still story "
    "street such sun table take tell ten than that then there thing think three time town train tree true turn two "
    "under until use very voice wait walk wall war water way week well white whole wind word work world year young "
)
WORDS = tuple(_TEXT.split())


@dataclass(frozen=True, slots=True)
class Piece:
    """A stretch of text. One key is the same text within a run; a shorter piece is the start of a longer one."""

    key: int
    num_tokens: int


def text_of(pieces: Iterable[Piece], salt: int) -> str:
    """The text of `pieces`, of about as many tokens. Another salt is another text: no cache knows it from before."""
    return " ".join(WORDS[i] for piece in pieces for i in _indices(piece, salt))


def _indices(piece: Piece, salt: int) -> list[int]:
    chosen: list[int] = np.random.default_rng((salt, piece.key)).integers(len(WORDS), size=piece.num_tokens).tolist()
    return chosen
