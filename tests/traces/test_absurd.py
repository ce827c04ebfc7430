"""Absurd numbers and endless or broken inputs: one clear error each, at once."""

from __future__ import annotations

from pathlib import Path

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from vtsim.cli.main import run
from vtsim.errors import ConfigError, TraceFormatError
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


ROW = '{"timestamp": 0, "input_length": 40, "output_length": 2}\n'


def refused(path: Path | str, words: str) -> None:
    with pytest.raises(TraceFormatError) as caught:
        load(path)
    assert words in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize("device", ["/dev/zero", "/dev/urandom"])
def test_endless_devices(device: str) -> None:
    if not Path(device).exists():
        pytest.skip(f"no {device}")
    refused(device, "holds NUL bytes")


def test_names_that_are_no_file(tmp_path: Path) -> None:
    refused("", "name is empty")
    refused(tmp_path, "folder")
    refused(tmp_path / ("n" * 300), "cannot be read")
    refused("a\0b", "null")


def test_nul_bytes_and_endless_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "x.jsonl"
    path.write_bytes(ROW.encode() + bytes(100))
    refused(path, "holds NUL bytes")
    path.write_text(ROW + "x" * 2000)
    monkeypatch.setattr("vtsim.traces.source.MOST_LINE", 1000)
    refused(path, "x.jsonl:2: more than")
    (tmp_path / "x.csv").write_text(
        "arrived_at,num_prefill_tokens,num_decode_tokens\n" + "1" * 2000
    )
    refused(tmp_path / "x.csv", "x.csv:2: more than")


@given(data=st.data())
def test_zstd_that_is_cut_off(
    data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    packed = zstandard.ZstdCompressor().compress(ROW.encode() * 50)
    path = tmp_path_factory.mktemp("zst") / "x.jsonl.zst"
    path.write_bytes(packed + packed)
    assert len(load(path)) == 100
    cut = data.draw(st.integers(4, len(packed) - 1))
    path.write_bytes(packed[:cut])
    refused(path, "damaged compressed data: the data ends inside a frame")
    path.write_bytes(packed + packed[:cut])
    refused(path, "damaged compressed data: the data ends inside a frame")


def native(*rows: str) -> str:
    return (
        '{"format": "vtsim-trace", "version": 1, "block_size": 0, "tail_rule": "exact", '
        '"hash_scope": "global", "requests": [\n' + ",\n".join(rows) + "\n]}"
    )


def test_a_cycle_names_its_line(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    start = '{"id": 0, "arrival_s": 0, "prompt_tokens": 1, "output_tokens": 1}'
    rest = (
        f'{{"id": {name}, "after": [{other}], "prompt_tokens": 1, "output_tokens": 1}}'
        for name, other in ((1, 2), (2, 1))
    )
    path.write_text(native(start, *rest))
    refused(path, "x.json:3: after: request 1 waits for itself")


def test_keys_that_stand_twice(tmp_path: Path) -> None:
    lines, document = tmp_path / "x.jsonl", tmp_path / "x.json"
    twice = ROW.replace("}", ', "input_length": 41}')
    lines.write_text(ROW + twice)
    refused(lines, "x.jsonl:2: malformed JSON: key 'input_length' stands twice")
    lines.write_text(ROW.replace("}", ', "note": {"a": 1, "b": "\\": "}}'))
    assert len(load(lines)) == 1
    row = '{"arrival_s": 0, "prompt_tokens": 1, "output_tokens": 1, "output_tokens": 2}'
    document.write_text(native(row))
    refused(document, "x.json:2:1: malformed JSON: key 'output_tokens' stands twice")


def test_times_beyond_64_bits_name_their_line(tmp_path: Path) -> None:
    lines, document = tmp_path / "x.jsonl", tmp_path / "x.json"
    lines.write_text(ROW + ROW.replace(": 0", ": 1e13"))
    refused(lines, "x.jsonl:2: timestamp: arrives more than the 9,223,372 s")
    late = ROW.replace('"timestamp": 0', '"delay": 1e13, "session_id": "a"')
    lines.write_text(ROW.replace("}", ', "session_id": "a"}') + late)
    refused(lines, "x.jsonl:2: delay: is longer than the 9,223,372 s")
    row = '{"arrival_s": %s, "prompt_tokens": 1, "output_tokens": 1}'
    document.write_text(native(row.replace("%s", "0"), row.replace("%s", "9300000")))
    refused(document, "x.json:3: requests[1].arrival_s: arrives more than")
    wait = '{"after": [0], "wait_s": 1e7, "prompt_tokens": 1, "output_tokens": 1}'
    document.write_text(native(row.replace("%s", "0"), wait))
    refused(document, "x.json:3: requests[1].wait_s: is out of range")
