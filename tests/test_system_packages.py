import shutil
import subprocess
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[1] / "requirements" / "system.sh"
COMMANDS = {"promtool": "prometheus", "chromium": "chromium", "chromedriver": "chromium-driver"}


class Machine:
    """A machine that has these commands, and writes down what is asked of its package tools."""

    def __init__(self, directory: Path, user_id: int, *commands: str) -> None:
        self._directory, self._calls = directory, directory / "calls"
        self._command("id", f"echo {user_id}")
        for command in commands:
            self._command(command, "" if command in COMMANDS else f'echo {command} "$@" >>{self._calls}')
        if "sudo" in commands:
            self._command("sudo", f'echo sudo >>{self._calls}; exec "$@"')
        (directory / "env").symlink_to(shutil.which("env") or "")

    def install(self) -> subprocess.CompletedProcess[str]:
        """Runs the script with nothing else on its path."""
        return subprocess.run(
            ["/bin/bash", str(SCRIPT)], env={"PATH": str(self._directory)}, capture_output=True, text=True, check=False
        )

    @property
    def calls(self) -> list[str]:
        return self._calls.read_text().splitlines() if self._calls.exists() else []

    def _command(self, name: str, body: str) -> None:
        file = self._directory / name
        file.write_text(f"#!/bin/sh\n{body}\n")
        file.chmod(0o755)


def test_system_packages_are_left_alone_when_their_commands_are_there(tmp_path: Path) -> None:
    machine = Machine(tmp_path, 0, "apt-get", *COMMANDS)
    done = machine.install()
    assert (done.returncode, done.stdout, done.stderr, machine.calls) == (0, "", "", [])


@pytest.mark.parametrize("command", COMMANDS)
def test_system_package_is_installed_when_its_command_is_missing(tmp_path: Path, command: str) -> None:
    machine = Machine(tmp_path, 0, "apt-get", *(c for c in COMMANDS if c != command))
    assert machine.install().returncode == 0
    update, install = machine.calls
    assert update == "apt-get update -q"
    assert install.startswith("apt-get install -q -y --no-install-recommends ")
    *_, last_option, package = install.split()
    assert package == COMMANDS[command]
    assert last_option.startswith("Dpkg::Options::=")


def test_system_packages_bring_no_service(tmp_path: Path) -> None:
    machine = Machine(tmp_path, 0, "apt-get")
    assert machine.install().returncode == 0
    for path in ("*/systemd/system/prometheus.service", "/etc/init.d/prometheus"):
        assert f"-o Dpkg::Options::=--path-exclude={path}" in machine.calls[1]


def test_system_packages_are_installed_by_sudo_when_the_user_is_not_root(tmp_path: Path) -> None:
    machine = Machine(tmp_path, 1000, "apt-get", "sudo")
    assert machine.install().returncode == 0
    assert [call.split()[:2] for call in machine.calls] == [
        ["sudo"],
        ["apt-get", "update"],
        ["sudo"],
        ["apt-get", "install"],
    ]


@pytest.mark.parametrize(
    ("user_id", "commands", "reason"),
    [
        (1000, ("apt-get",), "that takes root, or sudo"),
        (0, (), "there is no apt-get"),
        (1000, (), "there is no apt-get"),
    ],
)
def test_system_packages_are_asked_for_when_they_cannot_be_installed(
    tmp_path: Path, user_id: int, commands: tuple[str, ...], reason: str
) -> None:
    machine = Machine(tmp_path, user_id, "chromium", "chromedriver", *commands)
    done = machine.install()
    assert done.returncode == 1
    assert done.stderr.splitlines() == [
        f"error: the tests need prometheus (Debian's package names), and {reason}.",
        "Install them yourself, such as by: apt-get install --no-install-recommends prometheus",
    ]
    assert machine.calls == []


def test_system_packages_fail_when_the_package_tool_does(tmp_path: Path) -> None:
    machine = Machine(tmp_path, 0, "apt-get")
    (tmp_path / "apt-get").write_text("#!/bin/sh\nexit 100\n")
    assert machine.install().returncode == 100
