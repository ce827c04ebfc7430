"""Written for other tools and read back: everything the target can hold survives."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from vtsim.errors import ConfigError
from vtsim.request import Trace
from vtsim.traces import load
from vtsim.traces.bundled import sample_path
from vtsim.traces.export import check_target, export
from vtsim.traces.stats import ideal_prefix_hits

DOCUMENT = {
    "format": "vtsim-trace",
    "version": 1,
    "block_size": 16,
    "tail_rule": "partial_tail",
    "source": {"made": "up"},
    "requests": [
        {
            "id": "a",
            "arrival_s": 0.0000005,
            "prompt_tokens": 20,
            "output_tokens": 3,
            "hash_ids": [7, 8],
            "session": "s",
            "turn": 0,
            "priority": 2,
            "recorded": {"ttft_s": 1.5},
            "extra": {"colour": "red"},
        },
        {
            "id": "b",
            "after": ["a"],
            "wait_s": 0.25,
            "prompt_tokens": 33,
            "output_tokens": 1,
            "hash_ids": [7, 9, 10],
            "session": "s",
            "turn": 1,
        },
        {"id": "c", "arrival_s": 1.25, "prompt_tokens": 5, "output_tokens": 2},
    ],
}


@pytest.fixture
def trace(tmp_path: Path) -> Trace:
    path = tmp_path / "in.json"
    path.write_text(json.dumps(DOCUMENT))
    return load(path)


def test_mooncake_round_trip(trace: Trace, tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl"
    lost = export(trace, out, "mooncake")
    again = load(out, block_size=16)
    for column in ("arrival", "prompt_tokens", "output_tokens", "priority", "session", "turn"):
        if column != "turn":
            assert getattr(again, column).tolist() == getattr(trace, column).tolist(), column
    assert again.after == trace.after and again.wait == trace.wait
    assert [again.content(r) for r in range(3)] == [trace.content(r) for r in range(3)]
    assert again.extra[0] == trace.extra[0]
    assert sorted(line.split(":")[0].split(" of ")[0] for line in lost) == [
        "block_size 16",
        "id",
        "recorded",
        "source",
        "turn",
    ]


def test_aiperf_lists_what_it_cannot_hold(trace: Trace, tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl"
    lost = export(trace, out, "aiperf")
    assert any(line.startswith("priority") for line in lost)
    assert any(line.startswith("extra") for line in lost)
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    assert rows[1] == {
        "delay": 250,
        "input_length": 33,
        "output_length": 1,
        "hash_ids": [0, 2, 3],
        "session_id": "s",
    }
    assert rows[2]["timestamp"] == 1249.9995


def test_unhashed_ends_get_ids_of_their_own(tmp_path: Path) -> None:
    trace = load(sample_path("multi-turn"))
    out = tmp_path / "out.jsonl"
    assert any(line.startswith("tail_rule") for line in export(trace, out, "mooncake"))
    again = load(out, block_size=64)
    assert ideal_prefix_hits(again, with_outputs=False).tolist() == (
        ideal_prefix_hits(trace, with_outputs=False).tolist()
    )


@pytest.mark.parametrize("target", ["mooncake", "aiperf"])
def test_what_turns_alone_share_is_told(target: str, tmp_path: Path) -> None:
    """Nothing in the file says that a prompt repeats the one before: an option has to."""
    path, out = tmp_path / "in.csv", tmp_path / "out.jsonl"
    path.write_text(
        "session_id,arrival_time,round_idx,prefix_len,input_len,output_len,tool_wait_after_ms\n"
        "s,0,0,0,90,10,5\ns,0,1,100,20,10,5\n"
    )
    trace = load(path)
    (said,) = [line for line in export(trace, out, target) if line.startswith("what turns share")]
    assert said.endswith("read it with --turns whole")
    assert ideal_prefix_hits(load(out)).tolist() == [0, 0]
    assert ideal_prefix_hits(load(out, turns="whole")).tolist() == [0, 100]
    path.write_text(
        json.dumps(
            {
                "id": "x",
                "models": [],
                "block_size": 64,
                "requests": [{"t": 0, "in": 64, "out": 5, "hash_ids": [1]}],
            }
        )
    )
    assert not any(line.startswith("what turns") for line in export(load(path), out, target))


def test_native_loses_nothing(trace: Trace, tmp_path: Path) -> None:
    assert export(trace, tmp_path / "out.json") == []
    again = load(tmp_path / "out.json")
    assert again.recorded == trace.recorded and again.extra == trace.extra
    assert again.source == trace.source and again.ids == trace.ids


def test_fan_in_cannot_be_said_in_mooncake(tmp_path: Path) -> None:
    rows = [
        {"id": 0, "arrival_s": 0, "prompt_tokens": 1, "output_tokens": 1},
        {"id": 1, "arrival_s": 0, "prompt_tokens": 1, "output_tokens": 1},
        {"id": 2, "after": [0, 1], "prompt_tokens": 1, "output_tokens": 1},
    ]
    path = tmp_path / "in.json"
    path.write_text(json.dumps({"format": "vtsim-trace", "version": 1, "requests": rows}))
    with pytest.raises(ConfigError, match="request 2 waits"):
        export(load(path), tmp_path / "out.jsonl", "mooncake")
    assert not (tmp_path / "out.jsonl").exists()


def test_targets() -> None:
    assert check_target(None, "x.jsonl") == "mooncake" and check_target(None, "x.json") == "native"
    with pytest.raises(ConfigError, match="known: native, mooncake, aiperf"):
        check_target("csv", "x")
