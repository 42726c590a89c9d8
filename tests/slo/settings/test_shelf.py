from pathlib import Path
from typing import Any

import pytest
import yaml

from slo.settings.base import SettingsGroup
from slo.settings.shelf import Shelf


class Book(SettingsGroup):
    name: str
    pages: int
    authors: tuple[str, ...] = ()


class BookError(ValueError):
    pass


@pytest.fixture
def shelf(tmp_path: Path) -> Shelf[Book]:
    (tmp_path / "built_in").mkdir()
    (tmp_path / "built_in" / "atlas.yaml").write_text("pages: 100")
    return Shelf(Book, tmp_path / "built_in", "book", "pages", BookError, shows_lists=False)


def test_one_goes_by_its_name_and_another_by_its_path(shelf: Shelf[Book], tmp_path: Path) -> None:
    assert shelf.names() == ["atlas"]
    assert shelf.load("atlas")[0] == Book(name="atlas", pages=100)
    (tmp_path / "mine.yaml").write_text("name: other\npages: 3")
    book, path = shelf.load(str(tmp_path / "mine.yaml"), {"pages": 4})
    assert (book, path) == (Book(name="other", pages=4), tmp_path / "mine.yaml")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"pages": "many"}, "pages='many'"),
        ({"pages": 1, "colour": 2}, "colour: unknown key (value 2)"),
        ({"pages": 1, "authors": [3]}, "authors.0=3"),
        ({"pages": 1, "authors": {"secret": 1}}, "authors: Input"),
        ("", "a mapping with `pages` is expected"),
        ("a: [", "no YAML"),
        (b"\xff\xfe\x00", "built in: atlas"),
        ("date: 2026-99-99", "mine.yaml"),
    ],
)
def test_fault_is_told_with_file_and_key(shelf: Shelf[Book], tmp_path: Path, content: Any, message: str) -> None:
    path = tmp_path / "mine.yaml"
    path.write_bytes(content if isinstance(content, bytes) else _text(content).encode())
    with pytest.raises(BookError) as refused:
        shelf.load(str(path))
    assert str(refused.value).startswith(str(path))
    assert message in str(refused.value)


@pytest.mark.parametrize("name", ["none.yaml", "../built_in/atlas", "nul\0", ""])
def test_what_is_not_there_is_told_with_what_is(shelf: Shelf[Book], name: str) -> None:
    with pytest.raises(BookError, match="built in: atlas"):
        shelf.load(name)


def _text(content: Any) -> str:
    return content if isinstance(content, str) else yaml.safe_dump(content)
