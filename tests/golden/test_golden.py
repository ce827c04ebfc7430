"""Small replays compared with results under version control.

A difference is a change of behaviour: explain it in the commit that runs `pytest --update-golden`.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import vtsim
from vtsim.request import Trace
from vtsim.testing import Ask, make_trace
from vtsim.traces.bundled import sample_path

HERE = Path(__file__).parent
MS = 10**9
GIB = 1 << 30


def pressed() -> Trace:
    """Long prompts with a common beginning, two priorities, and one request that cannot fit."""
    asks = [
        Ask(
            row * 60 * MS,
            prompt=1900 + 137 * (row % 5),
            output=400 + 61 * (row % 7),
            priority=row % 4 == 3,
            ids=(*range(3 + row % 2), *range(100 * row + 100, 100 * row + 102)),
        )
        for row in range(16)
    ]
    return make_trace([*asks, Ask(900 * MS, 9000, 600)], block=512, name="pressed")


def conversation() -> Trace:
    """Three closed-loop conversations, whose turns say what they share."""
    asks = [Ask(100 * MS * s, 500 + 90 * s, 120, session=s, turn=0) for s in range(3)]
    for turn in range(1, 4):
        for session in range(3):
            last = asks[3 * (turn - 1) + session]
            grown = last.prompt + last.output + 40 * turn + 7
            row = 3 * (turn - 1) + session
            asks.append(
                Ask(
                    0, grown, 80 + 25 * session, 0, (), session, turn, (row,), (1 + turn) * 500 * MS
                )
            )
    return make_trace(asks, name="conversation")


CASES: dict[str, tuple[Any, list[str], dict[str, Any]]] = {
    "multi-turn": (
        sample_path("multi-turn"),
        ["native", "paged", "vtensor"],
        {"limit": 60, "kv_memory": GIB // 2, "max_model_len": 8192, "speed": 8, "admit": "chunk"},
    ),
    "pressed": (
        pressed(),
        ["native", "paged", "vtensor", "ahead=vtensor", "park=vtensor", "frugal=vtensor"],
        {
            "kv_memory": GIB // 2,
            "max_model_len": 16384,
            "admit": "chunk",
            "settings": {
                "ahead": {"lookahead": 100, "layout": "kv_split", "initial_tokens": 64},
                "park": {"release": "park", "prefix_cache": False},
                "frugal": {"retain": "none", "lookahead": 0},
            },
        },
    ),
    "conversation": (
        conversation(),
        ["native", "paged", "vtensor", "recompute=vtensor"],
        {
            "model": "yi-34b",
            "gpu": "h200",
            "tp": 2,
            "kv_memory": 4 * GIB,
            "max_model_len": 4096,
            "max_batched_tokens": 512,
            "settings": {"recompute": {"tail": "recompute", "retain": "watermark"}},
        },
    ),
}


def replayed(name: str, **more: Any) -> dict[str, Any]:
    trace, policies, options = CASES[name]
    result = vtsim.replay(trace, policies, **options, **more)
    document: dict[str, Any] = json.loads(result.to_json())
    for told_elsewhere in ("vtsim", "definitions"):
        document.pop(told_elsewhere, None)
    document["finished_ticks"] = {run.label: list(run.recorder.finished_at) for run in result.runs}
    return document


@pytest.mark.parametrize("name", CASES)
def test_replays_as_before(name: str, update_golden: bool) -> None:
    path = HERE / f"{name}.json"
    document = replayed(name, check=True)
    if update_golden:
        path.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    expected = json.loads(path.read_text(encoding="utf-8"))
    differences = list(differing("", expected, document))
    assert not differences, "\n".join(differences[:20])


@pytest.mark.parametrize("name", CASES)
def test_stepping_changes_nothing(name: str) -> None:
    """Nor does leaving out the checks, and with them the placement."""
    assert replayed(name, step=True) == replayed(name)


def differing(where: str, old: Any, new: Any) -> Any:
    """`where: old -> new` of every leaf that differs."""
    if isinstance(old, dict) and isinstance(new, dict):
        for key in [*old, *(key for key in new if key not in old)]:
            yield from differing(f"{where}.{key}", old.get(key), new.get(key))
    elif isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        for index, pair in enumerate(zip(old, new, strict=True)):
            yield from differing(f"{where}[{index}]", *pair)
    elif old != new:
        yield f"{where.lstrip('.')}: {old} -> {new}"


def test_the_cases_are_under_pressure() -> None:
    """Or the comparison says little: these are the golden files' own numbers."""
    documents = [json.loads((HERE / f"{name}.json").read_text(encoding="utf-8")) for name in CASES]
    runs = [run for document in documents for run in document["runs"]]
    assert sum(run["requests"]["preemptions"] for run in runs) >= 20
    assert sum(run["requests"]["rejected"] for run in runs) >= 5
    assert sum(run["prefix"]["hit_tokens"] > 0 for run in runs) >= 5
    assert sum(run["prefix"]["rehit_tokens"] > 0 for run in runs) >= 2
    assert sum(run["vmm"]["exposed_s"] > 0 for run in runs) >= 5
