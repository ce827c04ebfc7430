"""docs/cli.md tells every option of the commands it has a section for, and its examples run."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import typer

from vtsim.cli.app import app
from vtsim.cli.main import run
from vtsim.cli.reading import OPTIONS

PAGE = (Path(__file__).parents[2] / "docs" / "cli.md").read_text()
SECTIONS = {
    match[1]: match[2] for match in re.finditer(r"^## (.*?)\n(.*?)(?=^## |\Z)", PAGE, re.M | re.S)
}
READING = next(text for name, text in SECTIONS.items() if name.startswith("Reading a trace"))
COMMANDS = {
    "trace info": "`vtsim trace info FILE`",
    "trace convert": "`vtsim trace convert FILE OUT`",
    "trace sample": "`vtsim trace sample FILE OUT`",
    "trace synth": "`vtsim trace synth OUT`",
    "doctor": "`vtsim doctor`",
    "calibrate memory": "`vtsim calibrate memory FILE`",
}


def options_of(command: str) -> dict[str, list[str]]:
    """Parameter -> its names on the command line, of those that have any."""
    found = typer.main.get_command(app)
    for word in command.split():
        found = found.commands[word]  # type: ignore[attr-defined]
    return {
        str(parameter.name): list(parameter.opts)
        for parameter in found.params
        if parameter.param_type_name == "option" and parameter.name != "help"
    }


def named(option: str, text: str) -> bool:
    return re.search(rf"`[^`]*{re.escape(option)}(?![\w-])[^`]*`", text) is not None


@pytest.mark.parametrize("command", COMMANDS)
def test_every_option_is_told(command: str) -> None:
    text = SECTIONS[COMMANDS[command]]
    for parameter, names in options_of(command).items():
        where = READING if parameter in OPTIONS and command != "trace synth" else text
        for name in names:
            assert named(name, where), f"{command}: {name}"


@pytest.mark.parametrize("name", [*COMMANDS.values(), "Reading a trace"])
def test_no_option_is_told_that_there_is_not(name: str) -> None:
    known = {
        name
        for command in (*COMMANDS, "replay")
        for n in options_of(command).values()
        for name in n
    }
    text = READING if name == "Reading a trace" else SECTIONS[name]
    for option in re.findall(r"(?<![\w-])--[a-z][a-z-]*", text):
        assert option in known, option


def test_the_examples_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The commands of `vtsim trace synth`'s section, one after the other, as they stand."""
    monkeypatch.chdir(tmp_path)
    (shown,) = re.findall(r"^```sh\n(.*?)^```", SECTIONS["`vtsim trace synth OUT`"], re.M | re.S)
    commands = shown.splitlines()
    assert len(commands) == 5
    for command in commands:
        words = command.split()
        assert words[0] == "vtsim" and run(words[1:]) == 0, command
    assert {path.name for path in tmp_path.iterdir()} == {
        *("day.json", "day-facts.json", "busy.jsonl.gz", "some.json.gz", "run.json.gz")
    }
