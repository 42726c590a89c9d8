"""What docs/operate.md says of files, settings, options and commands that this repository has."""

import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from cli.main import app
from slo.settings import Settings

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "operate.md").read_text()
GROUPS = "|".join(Settings.model_fields)
KEY = re.compile(rf"`((?:{GROUPS})\.[a-z_.0-9]+)")


@pytest.mark.parametrize("link", sorted(set(re.findall(r"\]\(([^)#]+)\)", PAGE))))
def test_operating_page_links_to_files_that_exist(link: str) -> None:
    assert (ROOT / "docs" / link).exists()


@pytest.mark.parametrize("key", sorted(set(KEY.findall(PAGE))))
def test_operating_page_names_settings_that_exist(key: str) -> None:
    settings: object = Settings()
    for part in key.split("."):
        assert hasattr(settings, part), key
        settings = getattr(settings, part)


def test_operating_page_shows_options_that_the_command_has() -> None:
    described = CliRunner().invoke(app, ["manifests", "--help"], env={"COLUMNS": "200", "NO_COLOR": "1"}).output
    (command,) = re.findall(r"expresslane manifests (--config .*?)\n    kubectl", PAGE, flags=re.DOTALL)
    assert {option for option in re.findall(r"--[a-z-]+", command) if option not in described} == set()
