"""`vtsim policy check`, behind its options: the checks one by one, printed as they end.

`vtsim.testing.trial` finds what is wrong; `vtsim.cli.policy_report` says it.
"""

from __future__ import annotations

import json as json_format
import os
import sys
import traceback
from pathlib import Path

from vtsim.cli import policy_report
from vtsim.errors import ConfigError
from vtsim.metrics import output
from vtsim.registry import choose_policies, parse_settings
from vtsim.testing import example as examples_of
from vtsim.testing.conformance import CHECKS, Check
from vtsim.testing.trial import Outcome, Trial

MOST_EXAMPLES = 1_000_000


def run_checks(
    asked: str,
    settings: list[str],
    *,
    examples: int,
    seed: int,
    only: list[str],
    example: Path | None,
    save: Path | None,
    json: str | None,
    debug: bool,
) -> bool:
    """Run and print; True if all hold. Raises `ConfigError` for what cannot be asked."""
    checks = _chosen(only)
    if not 1 <= examples <= MOST_EXAMPLES:
        raise ConfigError(f"--examples {examples}: must be 1 to {MOST_EXAMPLES}")
    if not 0 <= seed < 1 << 32:
        raise ConfigError(f"--seed {seed}: must be 0 to {(1 << 32) - 1}")
    (choice,) = choose_policies([asked], parse_settings(settings))
    given = None if example is None else _given(example, checks)
    for path in (save, json):
        if path is not None:
            output.check_file(path)
    if save is not None and (output.is_stdout(save) or _one_file(save, json)):
        raise ConfigError(f"--save {save}: name a file of its own")
    source = asked.rpartition("=")[2].rpartition(":")[0]
    for option, path in (("--save", save), ("--json", json)):
        if _one_file(path, source):
            raise ConfigError(f"{option} {path}: that is the policy's own file")
    trial = Trial(choice.policy, choice.parameters)
    to = sys.stderr if json is not None and output.is_stdout(json) else sys.stdout
    print(policy_report.head(choice), file=to, flush=True)
    outcomes: list[Outcome] = []
    for check in checks:
        if given is None:
            outcomes.append(trial.run(check, examples, seed))
        else:
            outcomes.append(trial.run_again(check, given))
        print(policy_report.line(outcomes[-1]), file=to, flush=True)
        failure = outcomes[-1].failure
        if failure is not None and failure.name == "answers-in-time" and check is not checks[-1]:
            print("further checks are left out: the policy hangs", file=to)
            break
    saved = _save(outcomes, save)
    told: dict[str, str] = {}
    for outcome in outcomes:
        if outcome.failure is None:
            continue
        first = told.setdefault(outcome.failure.name, outcome.check.name)
        if first != outcome.check.name:
            print(f"FAILED {outcome.check.name}: {outcome.failure.name}, as in {first}", file=to)
            continue
        where = saved.get(outcome.check.name, example)
        for text in policy_report.block(outcome, asked, choice, settings, where):
            print(text, file=to)
        if debug:
            traceback.print_exception(outcome.failure.error)
    if json is not None:
        document = policy_report.document(choice, seed, outcomes, saved)
        output.write_text(json, json_format.dumps(document, indent=1) + "\n")
    return all(outcome.failure is None for outcome in outcomes)


def _one_file(path: Path | str | None, other: str | None) -> bool:
    return bool(path and other) and os.path.realpath(path or "") == os.path.realpath(other or "")


def _chosen(only: list[str]) -> list[Check]:
    for name in only:
        if name not in CHECKS:
            raise ConfigError(f"--only {name}: no such check (there are: {', '.join(CHECKS)})")
    return [check for name, check in CHECKS.items() if not only or name in only]


def _given(path: Path, checks: list[Check]) -> examples_of.Example:
    """The saved example, and that the one check asked for can be held to it."""
    if len(checks) != 1:
        raise ConfigError("--example FILE needs --only CHECK: the check that it is for")
    (check,) = checks
    given = examples_of.read(path)
    if check.walks != (given.calls is not None) or (check.hold is None and not check.walks):
        kind = "a trace" if given.calls is None else "a list of calls"
        raise ConfigError(f"{path}: check {check.name!r} takes no example that is {kind}")
    return given


def _save(outcomes: list[Outcome], save: Path | None) -> dict[str, Path]:
    """Write what failed: the first under the name that was given, others with their check's."""
    saved: dict[str, Path] = {}
    if save is None:
        return saved
    for outcome in outcomes:
        if outcome.failure is not None and outcome.failure.example is not None:
            name = outcome.check.name
            path = save.with_name(f"{save.stem}-{name}{save.suffix}") if saved else save
            examples_of.save(outcome.failure.example, path)
            saved[name] = path
    return saved
