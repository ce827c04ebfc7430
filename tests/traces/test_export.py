"""Written for other tools and read back: everything the target can hold survives."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

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


def test_fan_in_is_said_by_names_or_refused(tmp_path: Path) -> None:
    rows: list[dict[str, Any]] = [
        {"id": 0, "arrival_s": 0, "prompt_tokens": 1, "output_tokens": 1},
        {"id": 1, "arrival_s": 0, "prompt_tokens": 1, "output_tokens": 1},
        {"id": 2, "after": [0, 1], "prompt_tokens": 1, "output_tokens": 1},
    ]
    path = tmp_path / "in.json"
    path.write_text(json.dumps({"format": "vtsim-trace", "version": 1, "requests": rows}))
    trace, out = load(path), tmp_path / "out.jsonl"
    with pytest.raises(ConfigError, match="request 2 waits"):
        export(trace, out, "aiperf")
    assert not out.exists()
    assert "id: kept as text, in request_id" in export(trace, out, "mooncake")
    again = load(out)
    assert again.report.warnings == [] and again.ids == ("0", "1", "2")
    assert (again.after, again.wait) == ({2: (0, 1)}, {2: 0})
    rows[1]["id"] = "0"
    rows[2]["after"] = [0, "0"]
    path.write_text(json.dumps({"format": "vtsim-trace", "version": 1, "requests": rows}))
    with pytest.raises(ConfigError, match="the same id as text"):
        export(load(path), tmp_path / "none.jsonl", "mooncake")


def test_sub_agents_go_to_mooncake_and_back(tmp_path: Path) -> None:
    """Fan-out, fan-in and sharing of a coding agent with two sub-agents."""

    def call(t: int, *blocks: int) -> dict[str, Any]:
        length = {"in": 64 * len(blocks) + 5, "out": 9, "api_time": 1.5}
        return {"t": t, "hash_ids": list(blocks), **length}

    def agent(name: str, t: int, *calls: dict[str, Any]) -> dict[str, Any]:
        return {"type": "subagent", "agent_id": name, "t": t, "requests": list(calls)}

    talk = {
        "id": "x",
        "models": [],
        "block_size": 64,
        "requests": [
            call(0, 1, 2),
            agent("a", 5, call(5, 1, 7), call(8, 1, 7, 8)),
            agent("b", 5, call(6, 1, 9)),
            call(20, 1, 2, 3),
        ],
    }
    path, out = tmp_path / "in.json", tmp_path / "out.jsonl"
    path.write_text(json.dumps(talk))
    trace = load(path, closed_loop=True)
    export(trace, out)
    again = load(out, block_size=64)
    assert again.after == trace.after and again.wait == trace.wait
    assert max(map(len, again.after.values())) > 1
    for column in ("arrival", "prompt_tokens", "output_tokens", "session", "turn"):
        assert getattr(again, column).tolist() == getattr(trace, column).tolist(), column
    assert again.extra == trace.extra
    hits = [ideal_prefix_hits(each, with_outputs=False).tolist() for each in (trace, again)]
    assert hits[0] == hits[1] and sum(hits[0]) > 0


def test_targets() -> None:
    assert check_target(None, "x.jsonl") == "mooncake" and check_target(None, "x.json") == "native"
    with pytest.raises(ConfigError, match="known: native, mooncake, aiperf"):
        check_target("csv", "x")
