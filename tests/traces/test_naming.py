"""Names of what follows a prompt: session streams, and next turns that name it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from vtsim.request import Trace, clip_runs
from vtsim.traces import load


def make(tmp_path: Path, requests: list[dict[str, Any]], **head: object) -> Trace:
    document = {"format": "vtsim-trace", "version": 1, **head, "requests": requests}
    path = tmp_path / "trace.json"
    path.write_text(json.dumps(document))
    return load(path)


def turn(session: str, number: int, prompt: int, output: int, **more: Any) -> dict[str, Any]:
    return {
        **{"arrival_s": number, "session": session, "turn": number},
        **{"prompt_tokens": prompt, "output_tokens": output, **more},
    }


def test_turns_of_a_session_without_hash_ids_are_prefixes_of_one_stream(tmp_path: Path) -> None:
    trace = make(tmp_path, [turn("a", 0, 10, 5), turn("a", 1, 20, 5), turn("b", 0, 7, 2)])
    a, b = trace.session_names.index("a"), trace.session_names.index("b")
    rows = {
        (int(s), int(t)): r for r, (s, t) in enumerate(zip(trace.session, trace.turn, strict=True))
    }
    first, second, other = rows[a, 0], rows[a, 1], rows[b, 0]
    ((base, length),) = trace.content(first)
    assert length == 10
    assert trace.content(second) == ((base, 20),)
    assert trace.output_content(first) == ((base + 10, 5),)
    assert trace.output_content(second) == ((base + 20, 5),)
    ((other_base, _),) = trace.content(other)
    assert other_base + 7 + 2 <= base or other_base >= base + 25


def test_an_edited_history_and_a_missing_turn_begin_a_new_range(tmp_path: Path) -> None:
    trace = make(
        tmp_path,
        [turn("a", 0, 10, 5), turn("a", 1, 14, 5), turn("a", 2, 19, 1), turn("a", 4, 50, 1)],
    )
    bases = [trace.content(row)[0][0] for row in range(4)]
    assert bases[0] != bases[1]  # 14 < 10 + 5
    assert bases[1] == bases[2]  # 19 == 14 + 5
    assert bases[3] not in bases[:3]


def test_streams_stand_behind_all_hash_ids(tmp_path: Path) -> None:
    trace = make(
        tmp_path,
        [turn("a", 0, 32, 5, hash_ids=[7, 9]), turn("b", 1, 20, 5), turn("b", 2, 40, 5)],
        **{"block_size": 16, "tail_rule": "exact"},
    )
    assert trace.content(0) == ((0, 32),)
    assert trace.content(1)[0][0] >= 32
    assert trace.content(1)[0][0] == trace.content(2)[0][0]


def test_the_next_turn_names_the_unhashed_rest_and_the_output(tmp_path: Path) -> None:
    trace = make(
        tmp_path,
        [
            turn("a", 0, 130, 10, hash_ids=[1, 2]),
            turn("a", 1, 200, 10, hash_ids=[1, 2, 3]),
            turn("a", 2, 260, 10, hash_ids=[1, 8, 9, 10]),
        ],
        **{"block_size": 64, "tail_rule": "prefix_only"},
    )
    assert trace.content(0) == ((0, 128),)
    assert trace.output_content(0) == ((128, 12),)
    assert trace.output_content(1) == ()  # turn 2 is another history
    assert trace.output_content(2) == ()  # no next turn


def test_without_hash_ids_nothing_is_invented(tmp_path: Path) -> None:
    one = {"arrival_s": 0, "prompt_tokens": 9, "output_tokens": 2}
    trace = make(tmp_path, [one, {**one, "session": "a"}, {**one, "session": "a", "turn": 0}])
    assert trace.content(0) == () and trace.output_content(0) == ()
    assert trace.content(1) == () and trace.output_content(1) == ()
    hashed = make(
        tmp_path,
        [turn("a", 0, 16, 1, hash_ids=[4]), turn("a", 1, 40, 1)],
        **{"block_size": 16, "tail_rule": "exact"},
    )
    assert hashed.content(1) == ()  # a session with hash ids has no stream


def test_a_turn_number_that_occurs_twice_continues_nothing(tmp_path: Path) -> None:
    trace = make(tmp_path, [turn("a", 0, 5, 1), turn("a", 1, 9, 1), turn("a", 1, 9, 1)])
    assert len({trace.content(row)[0][0] for row in range(3)}) == 3


def test_clip_runs_joins_neighbours() -> None:
    assert clip_runs(((0, 4), (4, 4), (20, 3)), 2, 10) == ((2, 6), (20, 2))
    assert clip_runs(((0, 4),), 4, 9) == ()
