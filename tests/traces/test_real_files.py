"""The real traces in ../shared/traces, read with the check values of their README."""

from __future__ import annotations

import gzip
import io
from pathlib import Path

import numpy as np
import pytest
import zstandard

from vtsim.errors import TraceFormatError
from vtsim.request import NO_ARRIVAL, TICKS_PER_S
from vtsim.traces import load, write_native
from vtsim.traces.stats import describe, distinct_blocks, ideal_prefix_hits

SHARED = Path(__file__).parents[3] / "shared" / "traces"
AZURE = SHARED / "azure2023" / "AzureLLMInferenceTrace_conv.csv"
MOONCAKE = SHARED / "mooncake" / "conversation_trace.jsonl"
WEKA = SHARED / "kv-cache-tester"

pytestmark = pytest.mark.skipif(not AZURE.exists(), reason="../shared/traces is not here")


def test_azure_2023() -> None:
    trace = load(AZURE)
    assert (len(trace), trace.report.rows_read, trace.report.dropped) == (19366, 19366, {})
    assert int(trace.prompt_tokens.sum()) == 22_361_870
    assert int(trace.output_tokens.sum()) == 4_088_665
    assert round(int(trace.arrival[-1]) / TICKS_PER_S, 1) == 3501.7
    assert bool((trace.arrival % 100_000 == 0).all())  # 100 ns stamps survive
    assert not trace.has_hashes and trace.content(0) == ()
    assert describe(trace)["sharing"] is None


def test_mooncake() -> None:
    trace = load(MOONCAKE)
    assert len(trace) == 12_031
    assert int(trace.prompt_tokens.sum()) == 144_793_823
    assert int(trace.output_tokens.sum()) == 4_122_048
    assert distinct_blocks(trace) == 182_790
    hits = ideal_prefix_hits(trace)
    assert abs(100 * int(hits.sum()) / 144_793_823 - 37.36) <= 0.01
    assert trace.block_size == 512 and trace.tail_rule == "partial_tail"
    content = [sum(length for _, length in trace.content(row)) for row in range(len(trace))]
    assert content == trace.prompt_tokens.tolist()


@pytest.mark.parametrize("name, rows", [("0002", 33), ("0242", 3), ("0291", 32)])
def test_kv_cache_tester(name: str, rows: int) -> None:
    trace = load(WEKA / f"trace_{name}.json")
    assert len(trace) == rows
    known = [sum(length for _, length in trace.content(row)) for row in range(rows)]
    assert ((trace.prompt_tokens - known) == trace.prompt_tokens % 64).all()


def test_sub_agents_count_from_their_spawn() -> None:
    trace = load(WEKA / "trace_0291.json")
    agents = {e["agent_id"] for e in trace.extra.values()}
    assert agents == {"main", "agent_001", "agent_002"}
    first = min(r for r, e in trace.extra.items() if e["agent_id"] == "agent_001")
    assert int(trace.arrival[first]) == 1148_013 * 10**9
    lacking = load(WEKA / "trace_0242.json")
    assert [lacking.recorded[row].get("duration_s") for row in range(3)] == [43.48, None, 3.8]


def test_a_folder_keeps_conversations_apart() -> None:
    trace = load(WEKA)
    assert len(trace) == 68
    parts = [load(WEKA / f"trace_{n}.json") for n in ("0002", "0242", "0291")]
    assert distinct_blocks(trace) == sum(distinct_blocks(part) for part in parts)
    apart = sum(int(ideal_prefix_hits(part).sum()) for part in parts)
    assert int(ideal_prefix_hits(trace).sum()) == apart


def test_closed_loop_fans_out_and_in() -> None:
    trace = load(WEKA / "trace_0291.json", closed_loop=True)
    agent_of = [trace.extra[row]["agent_id"] for row in range(len(trace))]
    assert int((trace.arrival != NO_ARRIVAL).sum()) == 1
    for name in ("agent_001", "agent_002"):
        first = agent_of.index(name)
        assert [agent_of[p] for p in trace.after[first]] == ["main"]
        last = len(agent_of) - 1 - agent_of[::-1].index(name)
        joins = [row for row, parents in trace.after.items() if last in parents]
        assert [agent_of[row] for row in joins] == ["main"]


def test_tracelab_is_a_closed_loop_of_shared_histories() -> None:
    trace = load(SHARED / "tracelab" / "multi_session_large.csv")
    assert len(trace) == 303 and len(trace.session_names) == 48
    assert int((trace.arrival != NO_ARRIVAL).sum()) == 48
    prefixes = [trace.extra[row]["prefix_len"] for row in range(303)]
    assert ideal_prefix_hits(trace).tolist() == prefixes
    assert round(100 * sum(prefixes) / int(trace.prompt_tokens.sum()), 1) == 81.7  # type: ignore[arg-type]


def test_lengths_only_need_a_rate() -> None:
    path = SHARED / "vattention" / "arxiv_sample.csv"
    with pytest.raises(TraceFormatError, match="arrivals"):
        load(path)
    trace = load(path, rate=2.0, seed=1)
    assert len(trace) == 2895
    assert trace.report.arrivals_made == "poisson at 2/s, seed 1"
    assert abs(2894 / (int(trace.arrival[-1]) / TICKS_PER_S) - 2) < 0.1


def test_measured_run_keeps_its_latencies() -> None:
    trace = load(SHARED / "llmservingsim" / "bench_requests.jsonl")
    assert len(trace) == 300
    ttft = np.array([trace.recorded[row]["ttft_s"] for row in range(300)], dtype=float)
    tpot = np.array([trace.recorded[row]["tpot_s"] for row in range(300)], dtype=float)
    # as the README's numbers are: of the engine's clock, at the higher of the two ranks
    assert round(float(np.percentile(ttft, 50, method="higher")), 2) == 9.50
    assert round(float(np.percentile(ttft, 99, method="higher")), 2) == 19.86
    assert round(float(np.percentile(tpot, 50, method="higher")), 5) == 0.03345


def test_a_measured_row_that_was_not_queued_has_no_latency_but_between_tokens(
    tmp_path: Path,
) -> None:
    """Nothing ties the client's clock to the engine's."""
    path = tmp_path / "bench.jsonl"
    row = '{"input_toks": 3, "output_toks": 3, "arrival_time": 5.0, "first_token_ts": 90.5, '
    path.write_text(
        row + '"last_token_ts": 91.5}\n' + row + '"last_token_ts": 91.5, "queued_ts": 90}\n'
    )
    trace = load(path)
    assert trace.recorded == {
        0: {"tpot_s": 0.5},
        1: {"ttft_s": 0.5, "duration_s": 1.5, "tpot_s": 0.5},
    }


def test_splitwise_csv_of_the_same_data_agrees_to_a_microsecond(tmp_path: Path) -> None:
    trace = load(AZURE, limit=2000)
    path = tmp_path / "splitwise.csv"
    rows = [
        "request_id,request_type,application_id,arrival_timestamp,batch_size,prompt_size,token_size"
    ]
    for row in range(len(trace)):
        stamp = int(trace.arrival[row]) / TICKS_PER_S
        lengths = f"{trace.prompt_tokens[row]},{trace.output_tokens[row]}"
        rows.append(f"{row},2,0,{stamp:.7f},1,{lengths}")
    path.write_text("\n".join(rows) + "\n")
    other = load(path)
    assert other.report.format == "splitwise"
    assert other.prompt_tokens.tolist() == trace.prompt_tokens.tolist()
    assert other.output_tokens.tolist() == trace.output_tokens.tolist()
    assert int(abs(other.arrival - trace.arrival).max()) <= 10**6


@pytest.mark.parametrize("path", [AZURE, MOONCAKE, WEKA / "trace_0291.json"])
def test_compressed_and_native_copies_are_the_same_trace(path: Path, tmp_path: Path) -> None:
    trace = load(path)
    data = path.read_bytes()
    packed = tmp_path / "a.gz"
    packed.write_bytes(gzip.compress(data, 1))
    framed = tmp_path / "b.zst"
    buffer = io.BytesIO()
    for half in (data[: len(data) // 2], data[len(data) // 2 :]):
        buffer.write(zstandard.compress(half, 1))
    framed.write_bytes(buffer.getvalue())
    native = tmp_path / "c.json"
    write_native(trace, native)
    for copy in (packed, framed, native):
        other = load(copy)
        for column in ("arrival", "prompt_tokens", "output_tokens", "turn", "run_offsets"):
            assert (getattr(other, column) == getattr(trace, column)).all(), (copy, column)
        assert [other.content(r) for r in range(50)[: len(trace)]] == [
            trace.content(r) for r in range(50)[: len(trace)]
        ]
        assert other.recorded == trace.recorded
