"""Absurd numbers and endless or broken inputs: one clear error each, at once."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vtsim.cli.main import run
from vtsim.errors import ConfigError
from vtsim.request import NO_ARRIVAL
from vtsim.traces import load
from vtsim.traces.bundled import sample_path
from vtsim.traces.pace import scale_speed

CHAT = str(sample_path("chat"))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--rate", "1e300"], "rate 1e+300: more than"),
        (["--rate", "1e-300"], "rate 1e-300: the trace becomes longer"),
        (["--rate", "1", "--arrival", "gamma", "--cv", "1e300"], "cv 1e+300: not between"),
        (["--rate", "1", "--arrival", "gamma", "--cv", "1e-300"], "cv 1e-300: not between"),
        (["--speed", "1e300"], "speed 1e300: all requests of chat.json would arrive at once"),
        (["--speed", "1e400"], "would arrive at once"),
        (["--speed", "1e999999999"], "speed 1e999999999: out of range"),
        (["--speed", "1e-300"], "speed 1e-300: the trace becomes longer"),
        (["--repeat", "1000000000"], "repeat 1000000000: more than"),
        (["-o", "window_s=x"], "'window_s' is no option of a reader"),
        (["-o", "block-size=x"], "'block_size' is no option of a reader"),
        (["-o", "repeats=2"], "'repeats' is no option of a reader"),
        (["-o", "turns=whole"], "has no option 'turns'"),
    ],
)
def test_reading_options(
    options: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["trace", "info", CHAT, *options]) == 2
    error = capsys.readouterr().err
    assert words in error and error.count("\n") == 1 and len(error) < 300


@pytest.mark.parametrize(
    "options",
    [
        ["--turns", "1e300"],
        ["--rate", "1e300"],
        ["--rate", "1e-300"],
        ["--think", "1e300"],
        ["--arrival", "gamma", "--cv", "1e300"],
        ["--arrival", "diurnal", "--period", "1e-300"],
        ["--arrival", "diurnal", "--period", "1e300"],
        ["-n", "10000000000000"],
        ["--system-prompts", "1", "--system-tokens", "10000000000000000000000"],
        ["--turns", "100", "--prompt", "fixed:value=2000000000"],
    ],
)
def test_synth_options(
    options: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["trace", "synth", str(tmp_path / "o.json"), *options]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1 and " in " not in error.split(":")[1] and "debug" not in error
    assert not list(tmp_path.iterdir())


def test_a_negative_sample_seed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = str(tmp_path / "o.json")
    assert run(["trace", "sample", CHAT, out, "-n", "3", "--sample-seed", "-1"]) == 2
    assert "sample seed -1: must be 0 or more" in capsys.readouterr().err


@given(speed=st.floats(min_value=0, exclude_min=True, allow_infinity=False))
def test_any_speed_scales_or_is_refused(speed: float) -> None:
    trace = load(CHAT, limit=5)
    try:
        fast = scale_speed(trace, speed)
    except ConfigError as error:
        assert str(error).startswith("speed ")
        return
    timed = fast.arrival[fast.arrival != NO_ARRIVAL]
    assert 0 < int(timed.max()) < 2**63 and (timed[1:] >= timed[:-1]).all()
