import re

import pytest

from app.request_id import choose_request_id


@pytest.mark.parametrize("sent", ["a", "A-1_b.c:d", "0", "x" * 128])
def test_choose_request_id_keeps_the_clients_when_it_is_sane(sent: str) -> None:
    assert choose_request_id(sent) == sent


@pytest.mark.parametrize(
    "sent", [None, "", "x" * 129, "a b", "a\n", "a\r\nset-cookie: x", "é", "a,b", "a/b", "\x00", '"', "٣"]
)
def test_choose_request_id_makes_a_new_one_when_the_clients_is_not_sane(sent: str | None) -> None:
    first, second = choose_request_id(sent), choose_request_id(sent)
    assert re.fullmatch(r"[0-9a-f]{32}", first)
    assert first != second
