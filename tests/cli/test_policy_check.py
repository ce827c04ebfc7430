"""`vtsim policy check`: what passes, how what fails is told, and that it can be run again."""

from __future__ import annotations

import inspect
import json
import shlex
from pathlib import Path

import pytest

from vtsim.cli.main import run
from vtsim.testing.conformance import CHECKS
from vtsim.testing.watch import patience

PLUGIN = """
from vtsim.plan import NOTHING, OpKind, Shortage
from vtsim.policies.native import NativePolicy
from vtsim.policies.paged import PagedPolicy
from vtsim.policies.vtensor import VTensorPolicy
from vtsim.ports import Headroom


class Promises(PagedPolicy):
    name = "promises"

    def headroom(self, batch, at_most):
        return Headroom(at_most)  # whatever is free


class Takes(VTensorPolicy):
    def release(self, seq, keep, step):
        super().release(seq, keep, step)
        return self.retire(step)


class Hangs(NativePolicy):
    def release(self, *arguments):
        while True:
            pass


class Raises(NativePolicy):
    def extend(self, batch, steps=1):
        return {}["nothing"]


class Exits(NativePolicy):
    def extend(self, batch, steps=1):
        raise SystemExit(0)


class Mutates(NativePolicy):
    def create(self, seq, *arguments):
        seq.priority = 7
        return super().create(seq, *arguments)


class Mistypes(NativePolicy):
    def extend(self, batch, steps=1):
        super().extend(batch, steps)
        return "granted"


class Unmade(NativePolicy):
    def __init__(self, parameters=None, *, placement=False):
        raise ValueError("not today")


class Prints(NativePolicy):
    def create(self, *arguments):
        print("hello")
        return super().create(*arguments)
"""


@pytest.fixture
def plugin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("vtsim.testing.trial.SHRINK_SECONDS", 0.5)  # not what is tested here
    (tmp_path / "mine.py").write_text(PLUGIN)
    return "mine.py"


def line_of(text: str) -> int:
    return next(n for n, line in enumerate(PLUGIN.splitlines(), 1) if text in line)


def checked(capsys: pytest.CaptureFixture[str], status: int, *arguments: str) -> str:
    capsys.readouterr()
    assert run(["policy", "check", *arguments]) == status
    captured = capsys.readouterr()
    assert captured.err == ""
    return captured.out


def test_a_sound_policy_passes_in_80_columns(capsys: pytest.CaptureFixture[str]) -> None:
    text = checked(capsys, 0, "paged", "--set", "paged.block=4", "--examples", "4")
    assert text.startswith("policy paged: block 4, num_gpu_blocks 0")
    assert all(len(line) <= 80 for line in text.splitlines())
    results = {line.split()[0]: line.split()[-2:] for line in text.splitlines()[2:]}
    assert results.keys() == CHECKS.keys()
    assert {result for _, result in results.values()} == {"passed"}
    assert results["calls"][0] == "4" and results["refusals"][0] == "1"


def test_what_fails_is_told_by_name_place_and_example(
    plugin: str, capsys: pytest.CaptureFixture[str]
) -> None:
    text = checked(capsys, 1, f"{plugin}:Promises", "--only", "calls", "--only", "leap")
    assert all(len(line) <= 80 for line in text.splitlines()), text
    assert "FAILED calls: headroom-granted\n  says     what headroom promises is granted" in text
    assert "found    headroom promised" in text
    assert f"where    mine.py:{line_of('def headroom')} in Promises.headroom" in text
    assert "FAILED leap: headroom-is-kept" in text
    assert "--save FILE writes the example" in text


def test_a_saved_example_is_run_again_and_replayed(
    plugin: str, capsys: pytest.CaptureFixture[str]
) -> None:
    text = checked(
        *(capsys, 1, f"{plugin}:Promises", "--only", "calls", "--only", "leap"),
        *("--save", "small.json"),
    )
    commands = [
        shlex.split(line.split(None, 1)[1])
        for line in text.splitlines()
        if line.split()[:2] in (["again", "vtsim"], ["replay", "vtsim"])
    ]
    assert [command[1] for command in commands] == ["policy", "policy", "replay"]
    assert run(commands[0][1:]) == 1
    assert "FAILED calls: headroom-granted" in capsys.readouterr().out
    assert run(commands[1][1:]) == 1
    assert "FAILED leap: headroom-is-kept" in capsys.readouterr().out
    assert run(commands[2][1:]) in (0, 2)  # a GPU's steps may hide it
    assert "Traceback" not in capsys.readouterr().err
    assert json.loads(Path("small.json").read_text())["format"] == "vtsim-trace"
    # The policy mended, the same example passes.
    text = checked(capsys, 0, "paged", "--only", "leap", "--example", "small-leap.json")
    assert "passed" in text


def test_the_document_says_the_same(plugin: str, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = [f"{plugin}:Takes", "--examples", "4", "--only", "calls", "--json", "-"]
    assert run(["policy", "check", *arguments, "--only", "declaration"]) == 1
    captured = capsys.readouterr()
    document = json.loads(captured.out)
    assert "FAILED calls: held-while-read" in captured.err
    assert not document["passed"] and document["parameters"]["lookahead"] == 1
    declaration, calls = document["checks"]
    assert declaration["passed"] and declaration["failure"] is None
    assert calls["failure"]["name"] == "held-while-read"
    assert calls["failure"]["example"]["source"]["vtsim-check"]["calls"]


@pytest.mark.parametrize(
    ("name", "told", "where"),
    [
        ("Raises", "raises-nothing\n", 'return {}["nothing"]'),
        ("Exits", "raises-nothing\n", "raise SystemExit"),
        ("Mutates", "arguments-unchanged\n", "def create(self, seq"),
        ("Mistypes", "answer-type\n", 'super().extend(batch, steps)\n        return "granted"'),
    ],
)
def test_whatever_a_policy_does_is_one_block(
    name: str, told: str, where: str, plugin: str, capsys: pytest.CaptureFixture[str]
) -> None:
    text = checked(capsys, 1, f"{plugin}:{name}", "--only", "calls", "--examples", "5")
    assert text.count("FAILED calls: ") == 1 and f"FAILED calls: {told}" in text
    place = next(line for line in text.splitlines() if line.startswith("  where"))
    line = int(place.partition("mine.py:")[2].split()[0])
    block = PLUGIN.splitlines()
    first = where.splitlines()[0]
    assert any(first.strip() in text for text in block[line - 1 : line + 2]), place
    assert f"in {name}." in place


@pytest.mark.parametrize("check", ["rollback", "plans", "leap"])
def test_a_policy_that_exits_fails_every_check(
    check: str, plugin: str, capsys: pytest.CaptureFixture[str]
) -> None:
    text = checked(capsys, 1, f"{plugin}:Exits", "--only", check, "--examples", "20")
    assert f"FAILED {check}: raises-nothing" in text and "SystemExit" in text


def test_a_policy_that_hangs_is_ended(plugin: str, capsys: pytest.CaptureFixture[str]) -> None:
    with patience(0.02):  # instead of 20 s a run
        text = checked(capsys, 1, f"{plugin}:Hangs", "--only", "plans", "--only", "progress")
    assert "FAILED plans: answers-in-time\n  says     every call returns" in text
    assert "in Hangs.release" in text and "further checks are left out" in text


def test_a_policy_that_cannot_be_made_fails_every_check(
    plugin: str, capsys: pytest.CaptureFixture[str]
) -> None:
    text = checked(capsys, 1, f"{plugin}:Unmade", "--examples", "2")
    assert "FAILED declaration: raises-nothing" in text and "ValueError: not today" in text
    assert text.count("as in declaration") == len(CHECKS) - 1


def test_what_a_policy_prints_does_no_harm(plugin: str, capsys: pytest.CaptureFixture[str]) -> None:
    text = checked(capsys, 0, f"{plugin}:Prints", "--examples", "2", "--only", "determinism")
    assert "hello" in text and "passed" in text


def test_nothing_is_left_behind(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    checked(capsys, 0, "native", "--examples", "3")
    assert not list(tmp_path.iterdir())


def test_a_traceback_is_shown_on_demand(plugin: str, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = [f"{plugin}:Raises", "--only", "plans", "--examples", "2"]
    assert run(["policy", "check", *arguments, "--debug"]) == 1
    assert "KeyError: 'nothing'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["nosuch"], "unknown policy 'nosuch'"),
        (["mine.py:Nothing"], "no 'Nothing' in"),
        (["other.py:Class"], "no file other.py"),
        (["mine.py:NOTHING"], "is no memory policy"),
        (["paged", "--only", "speed"], "--only speed: no such check (there are: declaration, "),
        (["paged", "--examples", "0"], "--examples 0: must be 1 to"),
        (["paged", "--examples", "x"], "'--examples'"),
        (["paged", "--seed", "-1"], "--seed -1: must be 0 to"),
        (["paged", "--set", "paged.block=no"], "paged.block: 'no' is not int"),
        (["paged", "--set", "radix.evict=lru"], "settings for 'radix': no such policy runs here"),
        (["paged", "--example", "mine.py"], "--example FILE needs --only CHECK"),
        (["paged", "--example", "mine.py", "--only", "leap"], "mine.py"),
        (["paged", "--example", "none.json", "--only", "leap"], "none.json"),
        (["paged", "--save", "no/where.json"], "cannot write no/where.json"),
        (["paged", "--save", "-"], "--save -: name a file of its own"),
        (["paged", "--save", "a", "--json", "a"], "--save a: name a file of its own"),
        (["paged", "--save", "a", "--json", "./a"], "--save a: name a file of its own"),
        (["mine.py:Exits", "--save", "./mine.py"], "that is the policy's own file"),
        (["x=mine.py:Exits", "--json", "mine.py"], "that is the policy's own file"),
        (["paged", "--json", "no/where.json"], "cannot write no/where.json"),
    ],
)
def test_what_cannot_be_asked_is_one_line(
    arguments: list[str], told: str, plugin: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["policy", "check", *arguments]) == 2
    captured = capsys.readouterr()
    assert told in captured.err and captured.err.count("\n") == 1
    assert captured.out == "" and sorted(p.name for p in Path().iterdir() if p.is_file()) == [
        "mine.py"
    ]


def test_an_example_is_for_its_kind_of_check(
    plugin: str, capsys: pytest.CaptureFixture[str]
) -> None:
    checked(capsys, 1, f"{plugin}:Promises", "--only", "leap", "--save", "leap.json")
    for check in ("calls", "declaration"):
        arguments = ["paged", "--only", check, "--example", "leap.json"]
        assert run(["policy", "check", *arguments]) == 2
        assert f"check '{check}' takes no example that is a trace" in capsys.readouterr().err


def test_the_same_seed_finds_the_same(plugin: str, capsys: pytest.CaptureFixture[str]) -> None:
    first, second = (checked(capsys, 1, f"{plugin}:Takes", "--only", "calls") for _ in range(2))
    assert first == second


def test_every_option_is_in_the_page() -> None:
    from vtsim.cli.policy import check

    page = (Path(__file__).resolve().parents[2] / "docs" / "cli.md").read_text()
    section = page[page.index("## `vtsim policy check") :].split("\n## ")[0]
    for name in inspect.signature(check).parameters:
        if name not in ("policy", "debug"):
            assert f"--{'set' if name == 'setting' else name} " in section, name
    assert all(f"| `{name}` |" in section for name in CHECKS)
