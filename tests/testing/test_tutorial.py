"""What the tutorial builds and says of it: a sound policy, and one with vtensor where it says."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from random import Random
from typing import Any

import pytest

from vtsim.parameters import make_parameters
from vtsim.policies.vtensor import VTensorParameters, VTensorPolicy
from vtsim.testing import random_case, run_case
from vtsim.testing.conformance import CHECKS
from vtsim.testing.runs import assert_equal_runs
from vtsim.testing.trial import Trial

PAGE = Path(__file__).resolve().parents[2] / "docs" / "policies" / "writing.md"


@pytest.fixture
def pooled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The class that the page's code makes, up to where it is checked."""
    blocks = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.M | re.S)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delitem(sys.modules, "vtsim_grow", raising=False)
    names: dict[str, Any] = {"__name__": "pooled"}
    for block in blocks[:2]:
        exec(block, names)
    monkeypatch.delitem(sys.modules, "vtsim_grow", raising=False)
    return names["Pooled"]


@pytest.mark.parametrize("check", [name for name in CHECKS if name != "determinism"])
def test_the_tutorial_s_policy_passes(pooled: Any, check: str) -> None:
    outcome = Trial(pooled).run(CHECKS[check], 6)
    assert outcome.failure is None, outcome.failure


def test_without_ahead_and_prefixes_it_is_vtensor(pooled: Any) -> None:
    parameters = make_parameters("pooled", pooled.parameters_type, {"ahead": 0})
    preemptions = 0
    for seed in range(30):
        case = random_case(Random(seed), "high" if seed % 2 else "any")
        one = run_case(case, pooled(parameters))
        other = run_case(case, VTensorPolicy(VTensorParameters(prefix_cache=False)))
        assert_equal_runs(one, other, f"seed {seed}")
        preemptions += one.preemptions
    assert preemptions > 10, "no pressure, no test"
