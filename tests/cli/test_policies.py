"""`vtsim policies`: all of them, some of them, and one from a file."""

from __future__ import annotations

from pathlib import Path

import pytest

from vtsim.cli.main import run
from vtsim.registry import POLICIES

PIECES = Path(__file__).resolve().parents[2] / "docs" / "examples" / "pieces.py"


def test_all_are_listed_with_their_parameters(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["policies"]) == 0
    text = capsys.readouterr().out
    for name in POLICIES.names():
        assert f"\n{name}: " in f"\n{text}"
    assert "--set vtensor.lookahead=1  (" in text


def test_some_are_listed_alone(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["policies", "radix", f"{PIECES}:Pieces"]) == 0
    text = capsys.readouterr().out
    heads = [line.split(":")[0] for line in text.splitlines() if not line.startswith(" ")]
    assert heads == ["radix", "pieces"]
    assert "  kernels: flash_paged\n  --set pieces.piece=256  (int)\n" in text


def test_one_that_is_not_there_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["policies", "nosuch"]) == 2
    assert "unknown policy 'nosuch' (known: native, " in capsys.readouterr().err
