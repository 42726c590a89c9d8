import ast
import tomllib
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
ROOMS = ("slo", "app", "replicas", "autoscale", "batch", "sim", "bench", "cli")
SOURCES = sorted(path for room in ROOMS for path in (ROOT / room).rglob("*.py"))
MAX_LINES = 300


def imported_modules(path: Path) -> Iterator[str]:
    """Every module that `path` imports, anywhere in it; `from a import b` counts as both `a` and `a.b`."""
    for node in ast.walk(ast.parse(path.read_text())):
        match node:
            case ast.Import(names=names):
                yield from (name.name for name in names)
            case ast.ImportFrom(module=str(module), names=names, level=0):
                yield module
                yield from (f"{module}.{name.name}" for name in names)


def test_imported_modules_finds_every_form(tmp_path: Path) -> None:
    source = tmp_path / "source.py"
    source.write_text("import a.b as c\ndef f():\n    from d import e\nfrom . import g\n")
    assert list(imported_modules(source)) == ["a.b", "d", "d.e"]


def test_only_the_openai_file_imports_vllms_entrypoints() -> None:
    importers = {
        path.relative_to(ROOT).as_posix()
        for path in SOURCES
        if any(f"{module}.".startswith("vllm.entrypoints.") for module in imported_modules(path))
    }
    assert importers == {"replicas/openai.py"}


def test_sources_are_found_in_every_room_that_must_be_there() -> None:
    assert {path.relative_to(ROOT).parts[0] for path in SOURCES} >= {"slo", "app", "autoscale", "replicas", "cli"}


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_source_file_has_at_most_300_lines(path: Path) -> None:
    assert len(path.read_text().splitlines()) <= MAX_LINES


def test_license_is_apache_2() -> None:
    text = (ROOT / "LICENSE").read_text()
    assert "Apache License\n                           Version 2.0, January 2004" in text
    assert "END OF TERMS AND CONDITIONS" in text
    assert "9. Accepting Warranty or Additional Liability." in text
    assert tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["license"] == "Apache-2.0"


def test_rooms_are_packages_of_the_distribution() -> None:
    packages = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["wheel"]
    assert sorted(packages["packages"]) == sorted(room for room in ROOMS if (ROOT / room / "__init__.py").is_file())
    assert metadata.metadata("expresslane")["License-Expression"] == "Apache-2.0"
