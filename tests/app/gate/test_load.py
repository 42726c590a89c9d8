import pytest

from app.gate.load import Load, Room, total


def test_load_is_added_and_taken_away_in_every_part() -> None:
    assert Load(1, 20, 300) + Load(2, 30, 400) == Load(3, 50, 700)
    assert Load(3, 50, 700) - Load(2, 30, 400) == Load(1, 20, 300)
    assert total([Load(1, 2, 3), Load(4, 5, 6)]) == Load(5, 7, 9)
    assert total([]) == Load()


@pytest.mark.parametrize(
    ("room", "held", "asked", "fits"),
    [
        (Room(4, 100), Load(), Load(4, 100), True),
        (Room(4, 100), Load(3, 10), Load(1, 10), True),
        (Room(4, 100), Load(4, 10), Load(1, 10), False),
        (Room(4, 100), Load(1, 95), Load(1, 10), False),
        (Room(4, 100), Load(), Load(9, 900), True),  # larger than all of it: alone
        (Room(4, 100), Load(1, 1), Load(9, 1), False),
        (Room(4, 100), Load(1, 1), Load(1, 900), False),
        (Room(0, 100), Load(), Load(1, 1), False),
        (Room(4, 0), Load(), Load(1, 1), False),
        (Room(4, 100), Load(4, 1), Load(0, 0), False),  # nothing is free of charge
    ],
)
def test_room_fits_what_is_left_of_it(room: Room, held: Load, asked: Load, fits: bool) -> None:
    assert room.fits(held, asked) is fits


def test_room_charges_no_more_than_all_of_it_and_never_nothing() -> None:
    assert Room(4, 100).clamp(Load(9, 900, 5)) == Load(4, 100, 5)
    assert Room(4, 100).clamp(Load(0, 0, 5)) == Load(1, 1, 5)
    assert Room(4, 100).clamp(Load(2, 50, 5)) == Load(2, 50, 5)
