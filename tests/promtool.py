"""Debian's promtool, run by the tests: a machine without it fails them (`requirements/system.sh` installs it)."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import yaml


def check_rules(path: Path) -> str:
    """What `promtool check rules` prints about a rule file; AssertionError when it finds a fault."""
    return _run("check", "rules", "--lint=all", "--lint-fatal", path)


def check_config(path: Path) -> str:
    """What `promtool check config` prints about a configuration and its rule files; AssertionError when it finds a
    fault."""
    return _run("check", "config", path)


def run_rule_tests(directory: Path, rules: Any, evaluation_interval: str, tests: list[Any]) -> str:
    """What `promtool test rules` prints; AssertionError when an expectation does not hold.

    Args:
        directory: for the files, this test's own.
        rules: a rule file, as plain values.
        tests: promtool's `tests`.
    """
    (directory / "rules.yaml").write_text(yaml.safe_dump(rules, sort_keys=False))
    test_file = directory / "test.yaml"
    content = {"rule_files": ["rules.yaml"], "evaluation_interval": evaluation_interval, "tests": tests}
    test_file.write_text(yaml.dump(content, Dumper=getattr(yaml, "CSafeDumper", yaml.SafeDumper), sort_keys=False))
    return _run("test", "rules", test_file)


def _run(*arguments: str | Path) -> str:
    done = subprocess.run(["promtool", *map(str, arguments)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
