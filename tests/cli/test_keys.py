import yaml
from typer.testing import CliRunner

from app.gate.key_file import parse_key_file
from app.gate.keys import hash_key
from cli.main import app
from slo.priority import PriorityClass


def test_keys_prints_the_key_once_and_an_entry_that_the_file_takes() -> None:
    result = CliRunner().invoke(app, ["keys", "team-a", "--highest-class", "P0"])
    assert result.exit_code == 0, result.output
    key, entry = result.stdout.split("\n", 1)
    tenant = parse_key_file(f"tenants:\n{entry}").find(key)
    assert tenant is not None
    assert (tenant.name, tenant.highest_class) == ("team-a", PriorityClass.P0)
    assert yaml.safe_load(entry)[0]["keys_sha256"] == [hash_key(key)]
    assert result.output.count(key) == 1


def test_keys_differ_each_time() -> None:
    first, second = (CliRunner().invoke(app, ["keys", "team-a"]).stdout for _ in range(2))
    assert first.split("\n")[0] != second.split("\n")[0]


def test_keys_refuses_a_name_or_class_that_the_file_would_not_take() -> None:
    for arguments in (["a b"], ["a", "--highest-class", "P9"], ["xl-abc"]):
        result = CliRunner().invoke(app, ["keys", *arguments])
        assert result.exit_code == 2
        assert "xl-" not in result.stdout
