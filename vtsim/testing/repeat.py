"""Runs of one case, repeated: in this process, and in others that hash strings another way.

`main` is what such another process does: it reads the policy from the first line of its input and
an example from each that follows, and answers with one line each.
"""

from __future__ import annotations

import inspect
import json
import os
import subprocess
import sys
from hashlib import sha256
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from vtsim.parameters import make_parameters
from vtsim.registry import POLICIES
from vtsim.testing.cases import Case
from vtsim.testing.contracts import ContractError
from vtsim.testing.driver import MakePolicy
from vtsim.testing.example import Example, read, text_of
from vtsim.testing.runs import assert_equal_runs, play

HASH_SEEDS = ("1", "2")


def check_repetition(make: MakePolicy, case: Case) -> None:
    """The same case twice, in this process."""
    first, second = (play(case, make(True), placement=True) for _ in range(2))
    assert_equal_runs(first, second, "the same run twice")


def digest(make: MakePolicy, case: Case) -> str:
    """A digest of everything a run decided, held and took."""
    account = play(case, make(True), placement=True).account()
    return sha256(repr(sorted(account.items())).encode()).hexdigest()


def where_is(policy_class: Any) -> dict[str, str] | None:
    """How another process finds the class; None if it cannot (it is local to a function)."""
    if not isinstance(policy_class, type) or "<locals>" in policy_class.__qualname__:
        return None
    try:
        file = inspect.getfile(policy_class)
    except (TypeError, OSError):
        return None
    return {
        "module": policy_class.__module__,
        "file": str(Path(file).resolve()),
        "name": policy_class.__qualname__,
    }


class Elsewhere:
    """Two processes with other hash seeds. A context manager: they end with it."""

    def __init__(self, policy_class: Any, parameters: dict[str, object]) -> None:
        where = where_is(policy_class)
        assert where is not None
        self._first_line = json.dumps({**where, "parameters": parameters})
        self._processes: list[subprocess.Popen[str]] = []

    def __enter__(self) -> Elsewhere:
        for seed in HASH_SEEDS:
            process = subprocess.Popen(
                [sys.executable, "-c", "from vtsim.testing.repeat import main; main()"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": _path()},
                text=True,
            )
            self._processes.append(process)
            self._say(process, self._first_line)
        return self

    def __exit__(self, *unused: object) -> None:
        for process in self._processes:
            if process.stdin is not None and process.stdout is not None:
                process.stdin.close()
                process.stdout.close()
            process.kill()
            process.wait()

    def check(self, case: Case) -> None:
        """Raises ContractError if the processes do not all tell the same of `case`."""
        line = json.dumps(text_of(Example(case)))
        for process in self._processes:
            self._say(process, line)
        told = []
        for process in self._processes:
            assert process.stdout is not None
            told.append(process.stdout.readline().strip())
        if len(set(told)) > 1 or not told[0]:
            seeds = " and ".join(HASH_SEEDS)
            raise ContractError(
                "deterministic",
                f"the same run under PYTHONHASHSEED {seeds} differs: {' and '.join(told)}",
            )

    def _say(self, process: subprocess.Popen[str], line: str) -> None:
        assert process.stdin is not None
        try:
            process.stdin.write(line + "\n")
            process.stdin.flush()
        except BrokenPipeError:  # it has ended: what it tells is then nothing
            pass


def _path() -> str:
    """Whatever can be imported here can be imported there."""
    return os.pathsep.join(entry or os.getcwd() for entry in sys.path)


def main() -> None:
    """Answer lines until there are none."""
    told = json.loads(sys.stdin.readline())
    policy_class = _find(told)
    parameters = make_parameters("check", policy_class.parameters_type, told["parameters"])

    def make(placement: bool) -> Any:
        return policy_class(parameters, placement=placement)

    answers, sys.stdout = sys.stdout, sys.stderr  # whatever the policy prints is no answer
    with TemporaryDirectory() as folder:
        path = Path(folder) / "example.json"
        for line in sys.stdin:
            path.write_text(json.loads(line))
            try:
                said = digest(make, read(path).case)
            except Exception as error:
                said = " ".join(f"{type(error).__name__}: {error}".split())
            print(said, file=answers, flush=True)


def _find(told: dict[str, Any]) -> Any:
    try:
        found: Any = import_module(told["module"])
    except ImportError:
        found = None
    for part in told["name"].split("."):
        found = getattr(found, part, None)
    return found or POLICIES.load_file(f"{told['file']}:{told['name']}")
