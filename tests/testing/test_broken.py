"""The suite finds what it is for: every clause and invariant has a policy that breaks it, is caught
by the check that the table says, and under its name."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import pytest

from vtsim.errors import InvariantError
from vtsim.testing.conformance import CHECKS, check_declaration, maker, random_walk
from vtsim.testing.contracts import CONTRACTS, ContractError
from vtsim.testing.example import Example
from vtsim.testing.repeat import Elsewhere
from vtsim.testing.watch import patience

ROOT = Path(__file__).resolve().parents[2]


def _load() -> Any:
    """The table is no test module, and tests are no packages."""
    import sys

    name = "vtsim_tests_broken"
    spec = spec_from_file_location(name, Path(__file__).with_name("broken.py"))
    assert spec is not None and spec.loader is not None
    module = sys.modules[name] = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


BROKEN: list[Any] = _load().BROKEN

INTERNAL = {
    "all-answered": "the engine answers everybody; a policy can only stop it, which is progress",
    "answered": "the engine's own books of who was answered; the same",
    "nothing-left": "driver-leak is raised first, when the device is closed",
    "time-monotonic": "times are the engine's: no policy sees one",
    "backend-closed": "the order of the engine's calls to a backend",
    "backend-ticket": "the order of the engine's calls to a backend",
    "compute-is-one": "several tenants on one device: their engine's, see tests/engine",
    "floors-are-kept": "several tenants: the grants' own books",
    "grants-are-whole": "several tenants: the grants' own books",
    "tenant-is-accounted": "several tenants: the grants' own books",
    "tenant-under-its-ceiling": "several tenants: the grants' own books",
    "tenants-progress": "several tenants: who waits for whom",
    "tenants-within-capacity": "several tenants: the grants' own books",
}
"""Names that no policy on its own can break, with the reason."""

RAISING = {"InvariantError", "ContractError", "demand", "_demand", "broken", "_check_place"}
"""Calls whose first or second argument is a name."""


def first_failure(broken: Any) -> Exception | None:
    """What its check says of the class first."""
    make, check = maker(broken.policy, broken.parameters), CHECKS[broken.check]
    try:
        if broken.check == "declaration":
            check_declaration(make)
        elif broken.check == "determinism":
            with Elsewhere(broken.policy, dict(make(False).parameters())) as elsewhere:
                for seed in range(8):
                    example = Example(check.draw(seed))  # type: ignore[misc]
                    check.run(make, example)
                    elsewhere.check(example.case)
        else:
            for seed in range(30):
                if check.walks:
                    random_walk(make, seed, undo=check.undo)
                else:
                    check.run(make, Example(check.draw(seed)))  # type: ignore[misc]
    except Exception as error:
        return error
    return None


def name_of(error: Exception | None) -> str:
    if isinstance(error, InvariantError):
        return error.invariant
    if isinstance(error, ContractError):
        return error.contract
    return "" if error is None else "raises-nothing"


@pytest.mark.parametrize("broken", BROKEN, ids=lambda b: f"{b.name}-{b.policy.__name__}")
def test_a_broken_policy_is_caught_by_name(broken: Any) -> None:
    with patience(0.02):  # a call that never ends is given up after a tenth of a second or so
        error = first_failure(broken)
    assert name_of(error) == broken.name, repr(error)


def test_every_name_has_a_policy_that_breaks_it() -> None:
    named = set(names_in_the_source())
    assert len(named) > 50, "the scan finds nothing"
    caught = {broken.name for broken in BROKEN}
    assert named | CONTRACTS.keys() == caught | INTERNAL.keys()
    assert not caught & INTERNAL.keys(), "can be broken after all"


def test_the_scan_sees_what_is_raised() -> None:
    tree = ast.parse("raise InvariantError('a-b', f'x {y}')\ndemand('c-d', 1, 2)\nf('e-f')")
    assert set(names_in(tree)) == {"a-b", "c-d"}


def names_in_the_source() -> Iterator[str]:
    """The names of all invariants and contracts that are raised where a policy runs: not by the
    backend of real cards, which tests/cuda has."""
    for folder in ("vtsim", "policies", "backends/sim"):
        for path in (ROOT / folder).rglob("*.py"):
            yield from names_in(ast.parse(path.read_text()))
    yield from names_in(ast.parse((ROOT / "backends" / "transaction.py").read_text()))


def names_in(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            function = node.func
            called = function.id if isinstance(function, ast.Name) else ""
            if isinstance(function, ast.Attribute):
                called = function.attr
            if called in RAISING or "demand" in called:
                for argument in node.args[:2]:
                    if isinstance(argument, ast.Constant) and isinstance(argument.value, str):
                        if " " not in argument.value and "-" in argument.value:
                            yield argument.value


def test_the_shipped_policies_break_nothing() -> None:
    """What the broken ones are made of passes, so that it is the change that is caught."""
    for base in {broken.policy.__mro__[1] for broken in BROKEN}:
        for seed in range(2):
            random_walk(maker(base), seed)
