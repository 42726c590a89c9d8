from hypothesis import given
from hypothesis import strategies as st

from bench.words import WORDS, Piece, text_of

KEYS = st.integers(0, 2**63 - 1)


def test_words_are_each_there_once_and_have_no_blank() -> None:
    assert len(set(WORDS)) == len(WORDS) > 100
    assert all(word.isalpha() and word.islower() for word in WORDS)


@given(KEYS, st.integers(1, 600), st.integers(0, 600), st.integers(0, 2**40))
def test_text_has_the_words_asked_for_and_a_shorter_piece_begins_it(key: int, num: int, more: int, salt: int) -> None:
    shorter = text_of([Piece(key, num)], salt)
    assert len(shorter.split()) == num
    assert text_of([Piece(key, num + more)], salt).split()[:num] == shorter.split()


@given(KEYS, KEYS, st.integers(0, 1000))
def test_text_is_the_same_for_one_key_and_salt_only(key: int, other: int, salt: int) -> None:
    text = text_of([Piece(key, 40)], salt)
    assert text_of([Piece(key, 40)], salt) == text
    assert text_of([Piece(key, 40)], salt + 1) != text
    assert (text_of([Piece(other, 40)], salt) == text) == (key == other)


def test_pieces_follow_each_other() -> None:
    first, second = Piece(1, 3), Piece(2, 4)
    assert text_of([first, second], 0) == f"{text_of([first], 0)} {text_of([second], 0)}"
