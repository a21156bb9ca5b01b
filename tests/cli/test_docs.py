"""docs/cli.md tells of every command, option, field and code there is."""

import json
import re
from pathlib import Path

import click
import pytest

from commitfs.cli.app import commands
from commitfs.daemon.options import KNOWN
from commitfs.format.facts import OPS
from tests.cli.conftest import Cli

TEXT = (Path(__file__).resolve().parents[2] / "docs/cli.md").read_text()


def section(name: str) -> str:
    found = re.search(rf"^## commitfs {name}$(.*?)(?=^## |\Z)", TEXT, re.MULTILINE | re.DOTALL)
    assert found is not None, f"no section on {name}"
    return found[1]


@pytest.mark.parametrize("name", sorted(commands.commands))
def test_every_command_and_option(name: str) -> None:
    command = commands.commands[name]
    told = section(name)
    assert command.help
    for parameter in command.params:
        if isinstance(parameter, click.Argument):
            assert (parameter.metavar or str(parameter.name).upper()) in told
        else:
            assert any(
                f"{option}`" in told or f"{option} " in told or f"{option}]" in told
                for option in parameter.opts
            )


def test_no_command_that_is_not_there() -> None:
    assert set(re.findall(r"^## commitfs (\w+)", TEXT, re.MULTILINE)) == set(commands.commands)


@pytest.mark.parametrize("args", [["log"], ["stats"]])
def test_every_field(cli: Cli, store: Path, args: list[str]) -> None:
    told = section(args[0])
    for field in json.loads(cli(*args, store, "--json").out.splitlines()[0]):
        assert f"`{field}`" in told


def test_every_change_and_mount_option() -> None:
    for name in OPS:
        assert f"`{name}`" in section("log")
    for option in re.findall(r"\b(?:[a-z_]+=?[A-Za-z]+|ro|rw)\b", KNOWN.replace("and mount(8)'s", "")):
        assert f"`{option}`" in section("mount"), option
