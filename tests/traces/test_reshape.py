"""Choosing requests and pacing them: limit, window, speed, rate, idle cap, repeat, sample."""

from __future__ import annotations

import json
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from vtsim.cli.main import run
from vtsim.errors import ConfigError
from vtsim.request import NO_ARRIVAL, TICKS_PER_S, Trace
from vtsim.traces import load, write_native
from vtsim.traces.bundled import SAMPLES, sample_path
from vtsim.traces.generate import generate, synth
from vtsim.traces.lengths import Lengths
from vtsim.traces.pace import cap_idle, repeat, reschedule, scale_speed, scale_to_rate
from vtsim.traces.schedule import Schedule
from vtsim.traces.stats import distinct_blocks, ideal_prefix_hits
from vtsim.traces.transform import limit_requests, limit_rows, sample_requests, window

S = TICKS_PER_S


@pytest.fixture(scope="module")
def talks() -> Trace:
    return load(sample_path("multi-turn"))


@pytest.fixture
def loop(tmp_path: Path) -> Trace:
    head = "session_id,arrival_time,round_idx,prefix_len,input_len,output_len,tool_wait_after_ms\n"
    path = tmp_path / "loop.csv"
    path.write_text(
        head + "a,0,0,0,9,1,50000\na,0,1,10,9,1,0\nb,9000,0,0,9,1,5\nb,9000,1,10,5,1,0\n"
    )
    return load(path)


def whole(trace: Trace, cut: Trace) -> bool:
    """True if every session in `cut` has all its rows."""
    names = {cut.session_names[s] for s in cut.session}
    sizes = np.bincount(trace.session)
    return len(cut) == sum(int(sizes[trace.session_names.index(name)]) for name in names)


def test_limit_keeps_whole_conversations(talks: Trace) -> None:
    cut = limit_requests(talks, 40)
    assert 0 < len(cut) <= 40 and whole(talks, cut)
    assert cut.report.dropped == {"limit": 300 - len(cut)}
    assert cut.report.rows_read == 300 == cut.report.rows_kept + 300 - len(cut)
    rows = limit_rows(talks, 40)
    assert len(rows) == 40 and any("cuts" in w for w in rows.report.warnings)
    assert limit_requests(talks, 300) is talks
    with pytest.raises(ConfigError, match="first conversation alone"):
        limit_requests(talks, 1)
    with pytest.raises(ConfigError):
        limit_requests(talks, 0)


def test_window_moves_the_clock(talks: Trace) -> None:
    cut = window(talks, 50, 100)
    assert whole(talks, cut)
    assert int(cut.arrival[0]) == 0
    first = next(r for r in range(300) if talks.id_of(r) == cut.id_of(0))
    assert 50 * S <= int(talks.arrival[first]) < 100 * S
    assert [cut.content(0)] == [talks.content(first)]
    with pytest.raises(ConfigError, match="no requests left"):
        window(talks, 10**6, 10**7)
    with pytest.raises(ConfigError, match="window"):
        window(talks, 5, 5)


@pytest.mark.parametrize("speed", ["0.2", "3", "7.3", "1000000.5", "1e-3"])
def test_speed_divides_exactly(talks: Trace, speed: str) -> None:
    fast = scale_speed(talks, speed)
    expected = [round(Fraction(a) / Fraction(speed)) for a in talks.arrival.tolist()]
    assert fast.arrival.tolist() == expected
    assert scale_speed(talks, 1.0) is talks


@pytest.mark.parametrize("speed", ["0", "-1", "nan", "inf", "fast", "1/0", float("inf")])
def test_speed_must_be_a_positive_number(talks: Trace, speed: str) -> None:
    with pytest.raises(ConfigError, match="speed"):
        scale_speed(talks, speed)


def test_speed_leaves_waits(loop: Trace) -> None:
    fast = scale_speed(loop, 2)
    assert sorted(fast.arrival.tolist()) == [NO_ARRIVAL, NO_ARRIVAL, 0, 4500 * 10**9]
    assert fast.wait == loop.wait
    with pytest.raises(ConfigError, match="64-bit"):
        scale_speed(loop, "1e-9")


def test_rate_scales_or_redraws(talks: Trace) -> None:
    scaled = scale_to_rate(talks, 5.0)
    assert 299 / (int(scaled.arrival[-1]) / S) == pytest.approx(5.0)
    assert (np.diff(scaled.arrival) >= 0).all()
    drawn = reschedule(talks, Schedule(2.0, "gamma", 3.0, 7))
    assert (np.diff(drawn.arrival) >= 0).all() and len(drawn) == 300
    assert sorted(map(str, drawn.ids)) == sorted(str(talks.id_of(r)) for r in range(300))
    assert int(ideal_prefix_hits(drawn).sum()) > 0
    again = reschedule(talks, Schedule(2.0, "gamma", 3.0, 7))
    assert again.arrival.tolist() == drawn.arrival.tolist()


def test_reschedule_of_a_closed_loop(loop: Trace) -> None:
    drawn = reschedule(loop, Schedule(1.0, "uniform"))
    assert [int(a) for a in drawn.arrival if a != NO_ARRIVAL] == [0, S]
    for row, parents in drawn.after.items():
        assert drawn.session[row] == drawn.session[parents[0]] and parents[0] < row


def test_idle_cap_shortens_gaps_and_waits(loop: Trace) -> None:
    cut = cap_idle(loop, 2.0)
    assert [int(a) for a in cut.arrival if a != NO_ARRIVAL] == [0, 2 * S]
    assert sorted(cut.wait.values()) == [5 * 10**9, 2 * S]


def test_repeat_shares_nothing(talks: Trace) -> None:
    three = repeat(talks, 3)
    assert len(three) == 900 and distinct_blocks(three) == 3 * distinct_blocks(talks)
    assert int(ideal_prefix_hits(three).sum()) == 3 * int(ideal_prefix_hits(talks).sum())
    assert len({three.id_of(r) for r in range(900)}) == 900
    assert (np.diff(three.arrival) >= 0).all()
    assert any("copies" in w for w in three.report.warnings)


def test_repeat_of_a_closed_loop(loop: Trace) -> None:
    two = repeat(loop, 2)
    assert two.after == {
        **loop.after,
        **{row + 4: tuple(p + 4 for p in parents) for row, parents in loop.after.items()},
    }
    assert int((two.arrival == NO_ARRIVAL).sum()) == 4


def test_sample_takes_whole_conversations(talks: Trace) -> None:
    some = sample_requests(talks, 60, 1)
    assert 0 < len(some) <= 60 and whole(talks, some)
    assert sample_requests(talks, 60, 1).arrival.tolist() == some.arrival.tolist()
    assert some.report.dropped == {"not_sampled": 300 - len(some)}


def test_load_applies_them_in_order() -> None:
    trace = load(sample_path("chat"), limit=100, speed="2", repeats=2, max_context=2000)
    assert len(trace) == 200
    with pytest.raises(ConfigError, match="arrival needs a rate"):
        load(sample_path("chat"), arrival="poisson")
    with pytest.raises(ConfigError, match="limit by"):
        load(sample_path("chat"), limit=5, limit_by="moon")


# schedules and generated traces


@pytest.mark.parametrize("process, cv", [("poisson", 1.0), ("gamma", 3.0), ("gamma", 0.5)])
def test_schedules_have_their_rate_and_burstiness(process: str, cv: float) -> None:
    times = Schedule(4.0, process, cv, 3).times(40_000)
    gaps = np.diff(times) / S
    assert gaps.mean() == pytest.approx(0.25, rel=0.05)
    assert gaps.std() / gaps.mean() == pytest.approx(cv, rel=0.05)
    assert times[0] == 0 and (gaps >= 0).all()


def test_uniform_schedule_and_bad_ones() -> None:
    assert Schedule(4.0, "uniform").times(3).tolist() == [0, S // 4, S // 2]
    assert Schedule(4.0).times(0).tolist() == []
    for bad in ({"rate": 0.0}, {"rate": 1.0, "process": "x"}, {"rate": 1.0, "cv": -1.0}):
        with pytest.raises(ConfigError):
            Schedule(**bad)
    with pytest.raises(ConfigError, match="64-bit"):
        Schedule(1e-9).times(100)


@pytest.mark.parametrize("name", SAMPLES)
def test_samples_are_what_their_generator_makes(name: str, tmp_path: Path) -> None:
    write_native(generate(SAMPLES[name]), tmp_path / "again.json")
    assert (tmp_path / "again.json").read_bytes() == sample_path(name).read_bytes()
    trace = load(sample_path(name))
    assert trace.source["synthetic"] is True


def test_generated_conversations_hang_together() -> None:
    trace = synth(
        500, 3, turns=5.0, block_size=16, system_prompts=2, system_tokens=100, max_context=4000
    )
    assert len(trace) == 500 and int((trace.prompt_tokens + trace.output_tokens).max()) <= 4000
    hits = ideal_prefix_hits(trace)
    first_of_prompt: set[int] = set()
    for row in range(500):
        whole_blocks = int(trace.prompt_tokens[row]) // 16 * 16
        assert sum(length for _, length in trace.content(row)) == whole_blocks
        before = trace.naming.next_of(row)
        if before >= 0:
            assert trace.turn[before] == trace.turn[row] + 1
            assert trace.arrival[before] > trace.arrival[row]
        if trace.turn[row] == 0:
            assert hits[row] in (0, 96)
            first_of_prompt.add(trace.content(row)[0][0])
    assert len(first_of_prompt) == 2
    again = synth(
        500, 3, turns=5.0, block_size=16, system_prompts=2, system_tokens=100, max_context=4000
    )
    assert again.arrival.tolist() == trace.arrival.tolist()


def test_generated_lengths_follow_their_distribution(tmp_path: Path) -> None:
    trace = synth(
        20_000,
        1,
        prompt=Lengths.of("lognormal:median=100,sigma=0.5"),
        output=Lengths.of("fixed:value=7"),
    )
    assert float(np.median(trace.prompt_tokens)) == pytest.approx(100, rel=0.03)
    assert float(np.log(trace.prompt_tokens).std()) == pytest.approx(0.5, rel=0.05)
    assert set(trace.output_tokens.tolist()) == {7}
    even = synth(20_000, 1, prompt=Lengths.of("uniform:min=3,max=5"))
    assert set(even.prompt_tokens.tolist()) == {3, 4, 5}
    prompts, outputs = Lengths.of_trace(sample_path("chat"))
    drawn = synth(1000, 1, prompt=prompts, output=outputs)
    assert set(drawn.prompt_tokens.tolist()) <= set(
        load(sample_path("chat")).prompt_tokens.tolist()
    )
    assert "chat.json" in str(drawn.source["prompt"])


def test_diurnal_arrivals_swing() -> None:
    trace = synth(50_000, 1, rate=10.0, arrival="diurnal", period_s=1000.0, depth=1.0)
    phase = (trace.arrival % (1000 * S)) / S
    night = int(((phase < 100) | (phase > 900)).sum())
    day = int(((phase > 400) & (phase < 600)).sum())
    assert day > 10 * night


@pytest.mark.parametrize(
    "options",
    [
        {"rate": 0.0},
        {"turns": 0.5},
        {"depth": 2.0},
        {"block_size": -1},
        {"system_prompts": 2},
        {"max_context": 1},
        {"arrival": "weekly"},
        {"think_s": -1.0},
        {"think_s": 5.0},
        {"seconds_per_token": 0.1},
        {"cv": 3.0},
        {"arrival": "diurnal", "cv": 3.0},
        {"period_s": 60.0},
        {"depth": 0.5},
        {"max_context": 500, "prompt": Lengths.of("fixed:value=800")},
        {"max_context": 500, "prompt": Lengths.of("uniform:min=500,max=800")},
        {
            "max_context": 500,
            "system_prompts": 1,
            "system_tokens": 400,
            "prompt": Lengths.of("fixed:value=100"),
        },
    ],
)
def test_bad_synth_options(options: dict[str, object]) -> None:
    with pytest.raises(ConfigError):
        synth(10, 0, **options)


@pytest.mark.parametrize(
    "text",
    [
        "normal:mean=1",
        "fixed",
        "fixed:value=0",
        "uniform:min=5,max=2",
        "fixed:value=x",
        "lognormal:median=5",
        "lognormal:median=inf,sigma=1",
        "fixed:mean=3",
        "fixed:value=1.5",
        "uniform:min=1.5,max=3",
        "lognormal:median=0,sigma=1",
        "lognormal:median=9,sigma=1,max=5",
        "lognormal:median=9,sigma=1,min=50",
        "fixed:value=5,value=6",
        "fixed:value=5,value=5",
    ],
)
def test_bad_lengths(text: str) -> None:
    with pytest.raises(ConfigError, match="lengths"):
        Lengths.of(text)


def test_what_is_cut_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Lengths that sometimes do not fit are cut, which the file and the terminal say."""
    out = tmp_path / "s.json"
    told = ["--max-context", "500", "--prompt", "uniform:min=100,max=800", "-n", "50"]
    assert run(["trace", "synth", str(out), *told]) == 0
    trace = load(out)
    cut = int(str(trace.source["cut"]))
    assert 0 < cut < 50 and int((trace.prompt_tokens + trace.output_tokens).max()) == 500
    said = f"warning: {cut} of 50 requests had more tokens than max_context 500 leaves room for"
    assert said in capsys.readouterr().err
    assert "cut" not in synth(50, 0, max_context=10**6).source


# requests that are too long, in closed loops


def chain(tmp_path: Path, *rows: dict[str, Any]) -> Path:
    path = tmp_path / "chain.json"
    path.write_text(json.dumps({"format": "vtsim-trace", "version": 1, "requests": rows}))
    return path


def ask(name: str, prompt: int, **when: Any) -> dict[str, Any]:
    return {"id": name, "prompt_tokens": prompt, "output_tokens": 1, **when}


def test_a_long_request_in_the_middle_of_a_loop(tmp_path: Path) -> None:
    """What waits for it waits for those that it waited for, its wait added."""
    path = chain(
        tmp_path,
        ask("a", 5, arrival_s=1),
        ask("b", 50, after=["a"], wait_s=2),
        ask("c", 5, after=["b"], wait_s=3),
        ask("d", 5, after=["b", "c"], wait_s=4),
    )
    trace = load(path, max_context=10, on_overflow="drop")
    assert trace.ids == ("a", "c", "d") and trace.report.dropped == {"over_max_context": 1}
    assert trace.after == {1: (0,), 2: (1, 0)}
    assert trace.wait == {1: 5 * S, 2: 4 * S}


def test_a_long_request_at_the_start_of_a_loop(tmp_path: Path) -> None:
    """What waits for it comes when it would have come, and the wait later."""
    path = chain(
        tmp_path,
        ask("a", 50, arrival_s=0),
        ask("b", 50, after=["a"], wait_s=2),
        ask("c", 5, after=["b"], wait_s=3),
        ask("d", 5, arrival_s=4),
        ask("e", 5, after=["c"], wait_s=1),
    )
    trace = load(path, max_context=10, on_overflow="drop")
    assert trace.ids == ("d", "c", "e")
    assert trace.arrival.tolist() == [0, S, NO_ARRIVAL] and trace.report.removed_offset_s == 4
    assert trace.after == {2: (1,)} and trace.wait == {2: S}
    words = ["--policy", "paged", "--max-model-len", "40", "--on-overflow", "drop", "-q"]
    assert run(["replay", str(path), *words]) == 0


def test_a_rate_of_a_closed_loop_says_whose_it_is(loop: Trace) -> None:
    (said,) = scale_to_rate(loop, 4.0).report.warnings
    assert said == (
        "rate 4: 2 of 4 requests wait for others; the rate is that of the 2 that arrive by "
        "themselves"
    )
