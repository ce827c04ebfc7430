"""The Python API: what the command line does, with values instead of text."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import vtsim
from vtsim.api import prepare
from vtsim.budget import plan_budget
from vtsim.cli import console
from vtsim.errors import CapacityError, ConfigError, TraceFormatError, VtsimError
from vtsim.options import ReplayOptions
from vtsim.registry import PolicyChoice, choose_policies
from vtsim.request import Trace
from vtsim.spec import load_model
from vtsim.traces import load

GIB = 2**30


@pytest.fixture
def trace(tmp_path: Path) -> Trace:
    """Twenty requests, 0.1 s apart, each of two blocks; every second one shares the first."""
    rows = [
        {
            "id": i,
            "arrival_s": i / 10,
            "prompt_tokens": 1000,
            "output_tokens": 1 + i,
            "hash_ids": [i % 2, 10 + i],
        }
        for i in range(20)
    ]
    path = tmp_path / "made.json"
    head = {"format": "vtsim-trace", "version": 1, "block_size": 512, "tail_rule": "partial_tail"}
    path.write_text(json.dumps({**head, "hash_scope": "global", "requests": rows}))
    return load(path)


def test_a_result_holds_frames_for_every_policy(trace: Trace) -> None:
    result = vtsim.replay(trace, ["paged", "vtensor"], max_model_len=4096, decisions=True)
    assert [run.label for run in result.runs] == ["paged", "vtensor"]
    requests = result.requests
    assert requests.groupby("policy").size().to_dict() == {"paged": 20, "vtensor": 20}
    assert (requests["outcome"] == "completed").all()
    assert requests["tpot_s"].isna().sum() == 2  # the request of one token, in both runs
    assert (requests["finished_s"] >= requests["first_token_s"]).all()
    assert (requests["first_token_s"] > requests["admitted_s"]).all()
    assert (requests["ideal_hit_tokens"] >= requests["hit_tokens"]).all()
    for run in result.runs:
        summary, own = run.summary, requests[requests["policy"] == run.label]
        assert summary["prefix"]["hit_tokens"] == own["hit_tokens"].sum() > 0
        assert summary["latency"]["ttft_s"]["p90"] == pytest.approx(
            np.percentile(own["ttft_s"], 90), abs=1e-9
        )
        duration = summary["duration_s"]
        assert own["finished_s"].max() == pytest.approx(duration, abs=1e-9)
        timeline = run.timeline
        held = np.diff(timeline["time_s"], prepend=0.0)
        for category in ("kv_live", "free", "pool_unused"):
            mean = (timeline[category] * held).sum() / held.sum()
            assert summary["memory"]["mean_bytes"][category] == pytest.approx(mean, rel=1e-9)
        categories = timeline.drop(columns="time_s")
        assert (categories.sum(axis=1) == summary["memory"]["capacity_bytes"]).all()
    assert set(result.decisions["decision"]) == {"admit", "finish"}
    with pytest.raises(ConfigError, match="log=True"):
        _ = result.calls


def test_settings_are_values_or_text(trace: Trace) -> None:
    result = vtsim.replay(
        trace,
        ["vtensor", "eager=vtensor"],
        settings={"vtensor": {"chunk": 4 << 20}, "eager": {"chunk": "8MiB", "retain": "none"}},
        limit=5,
    )
    assert [run.chunk_bytes for run in result.runs] == [4 << 20, 8 << 20]
    assert result["eager"].policy == "vtensor"
    assert result["eager"].parameters["retain"] == "none"
    assert len(result.trace) == 5
    [choice] = choose_policies(["paged"], {"paged": {"block": 32}})
    [run] = vtsim.replay(trace, [choice]).runs
    assert run.parameters["block"] == 32
    with pytest.raises(ConfigError, match="named twice"):
        vtsim.replay(trace, [choice, PolicyChoice("paged", choice.policy, choice.parameters)])
    assert vtsim.replay(trace, "native").runs[0].label == "native"


def test_the_log_lists_every_operation(trace: Trace) -> None:
    [run] = vtsim.replay(trace, ["vtensor"], log=True).runs
    counted = run.calls["kind"].value_counts().to_dict()
    assert counted == {kind: n for kind, n in run.summary["vmm"]["calls"].items() if n}
    phases = run.calls["phase"].value_counts().to_dict()
    assert phases == {name: n for name, n in run.summary["vmm"]["calls_by_phase"].items() if n}
    assert run.calls["step"].is_monotonic_increasing


def test_a_measured_pool_size(trace: Trace) -> None:
    result = vtsim.replay(trace, ["paged", "native"], num_gpu_blocks=500)
    assert result["paged"].parameters["num_gpu_blocks"] == 500
    assert result["paged"].summary["memory"]["peak_bytes"]["pool_unused"] <= 500 * (1 << 20)


def test_speed_acts_on_a_trace_that_is_given(trace: Trace) -> None:
    slow = prepare(trace, speed="0.5")
    assert int(slow.trace.arrival[-1]) == 2 * int(trace.arrival[-1])
    document = slow.run().as_json()
    assert document["options"]["speed"] == 0.5


def test_progress_is_reported(trace: Trace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vtsim.metrics.progress.EVERY", 8)
    seen: list[tuple[str, int, int]] = []
    options: dict[str, Any] = {"max_model_len": 1010}
    watched = vtsim.replay(trace, ["native"], progress=lambda *s: seen.append(s), **options)
    assert seen == [("native", 8, 20), ("native", 16, 20), ("native", 20, 20)]
    assert watched.to_json() == vtsim.replay(trace, ["native"], **options).to_json()


def test_a_bar_is_drawn_for_a_terminal_only(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with console.progress_bar(wanted=True) as report:
        assert report is None
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    with console.progress_bar(wanted=False) as report:
        assert report is None
    with console.progress_bar(wanted=True) as report:
        assert report is not None
        report("paged", 1, 2)  # too early for a bar
    assert capsys.readouterr().err == ""
    monkeypatch.setattr(console, "PATIENCE_S", 0.0)
    with console.progress_bar(wanted=True) as report:
        assert report is not None
        report("paged", 1, 2)
        report("paged", 2, 2)
    assert "paged" in capsys.readouterr().err


def test_the_limit_is_what_the_formula_says(trace: Trace) -> None:
    ready = prepare(trace)
    budget = ready.budget
    weights = load_model("yi-6b").weight_bytes(1)
    capacity = ready.gpu.capacity_bytes
    assert budget.limit_bytes == capacity * 9 // 10 - weights - budget.workspace_bytes
    assert prepare(trace, kv_memory=5 * GIB).budget.limit_bytes == 5 * GIB
    half = prepare(trace, gpu_memory=40 * GIB)
    assert half.budget.capacity_bytes == half.gpu.capacity_bytes == 40 * GIB
    limits = {run.limit_bytes for run in ready.run().runs}
    assert limits == {budget.limit_bytes}


def test_what_is_missing_is_said(trace: Trace) -> None:
    ready = prepare(trace)
    opts = ReplayOptions(gpu_memory=12 * GIB)
    with pytest.raises(CapacityError, match="does not fit.* is .* less than weights 11.3 GiB"):
        plan_budget(trace, ready.model, ready.gpu, 1, 4096, 2 * GIB, opts)
    with pytest.raises(CapacityError, match="KV memory 70.0 GiB are .* more"):
        prepare(trace, kv_memory=70 * GIB)


def test_chunks_that_no_stock_driver_makes_are_said_to_need_another(trace: Trace) -> None:
    options: dict[str, Any] = {"max_model_len": 4096}
    small = {"vtensor": {"chunk": 64 << 10}}
    run = vtsim.replay(trace, ["vtensor"], settings=small, **options)["vtensor"]
    assert run.details["driver"] == "patched as vAttention's, for chunks of 64.0 KiB"
    assert "driver" not in vtsim.replay(trace, ["vtensor"], **options)["vtensor"].details


def test_unlimited_memory_takes_nothing_from_the_answer(trace: Trace) -> None:
    """The memory a load needs is the peak of kv_live with no limit: more changes nothing."""
    options: dict[str, Any] = {"max_model_len": 4096}
    free = vtsim.replay(trace, ["vtensor"], kv_memory="unlimited", **options)["vtensor"]
    enough = vtsim.replay(trace, ["vtensor"], **options)["vtensor"]
    assert free.summary["memory"]["peak_bytes"] | {"free": 0} == (
        enough.summary["memory"]["peak_bytes"] | {"free": 0}
    )
    assert free.summary["latency"] == enough.summary["latency"]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"max_seqs": 3}, "no option 'max_seqs' .known: max_num_seqs"),
        ({"max_num_seqs": True}, "max_num_seqs: True is not a whole number"),
        ({"max_batched_tokens": 0}, "max_batched_tokens: 0"),
        ({"kv_memory": -1}, "kv_memory: -1"),
        ({"gpu_memory_utilization": float("nan")}, "gpu_memory_utilization: nan"),
        ({"on_overflow": "ignore"}, "on_overflow: 'ignore' is not one of reject, drop, error"),
        ({"admit": "all"}, "admit: 'all' is not one of prompt, chunk"),
        ({"seed": -1}, "seed: -1"),
        ({"kv_dtype": "int4"}, "int4"),
        ({"policies": []}, "no policy"),
        ({"kernel": {"paged": "flash"}}, "paged cannot use kernel 'flash'"),
    ],
)
def test_bad_options_are_named(trace: Trace, options: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        vtsim.replay(trace, **options)


def test_a_trace_that_overflows_is_an_error_on_request(trace: Trace) -> None:
    with pytest.raises(TraceFormatError, match="made.json"):
        vtsim.replay(trace, max_model_len=1010, on_overflow="error")


def test_the_package_says_what_it_has() -> None:
    assert set(dir(vtsim)) >= {"replay", "RunResult", "ConfigError", "__version__"}
    assert vtsim.ConfigError is ConfigError
    with pytest.raises(AttributeError, match="no attribute 'replays'"):
        _ = vtsim.replays


def test_the_version_is_the_packages() -> None:
    text = (Path(__file__).resolve().parents[2] / "pyproject.toml").read_text()
    assert tomllib.loads(text)["project"]["version"] == vtsim.__version__


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"policies": None}, "policies: None"),
        ({"policies": [5]}, "policies: 5 is not a name"),
        ({"policies": ["a\nb=native"]}, "policy label"),
        ({"policies": ["=native"]}, "policy label ''"),
        ({"policies": ["exact.py"]}, "FILE.py:Class"),
        ({"settings": 5}, "settings: 5"),
        ({"settings": {"vtensor": {"lookahead": True}}}, "vtensor.lookahead: True is not int"),
        ({"settings": {"vtensor": {"release": 5}}}, "vtensor.release: 5 is not unmap | park"),
        ({"settings": {"vtensor": {"prefix_cache": 1}}}, "prefix_cache: 1 is not bool"),
        ({"settings": {"vtensor": {"chunk": "1e30"}}}, "vtensor.chunk: '1e30' is more than 4 EiB"),
        ({"settings": {"paged": {"block": 99999999999}}}, "paged.block: 99,999,999,999 tokens"),
        ({"num_gpu_blocks": 99999999999}, "for num_gpu_blocks 99,999,999,999"),
        ({"kernel": 5}, "kernel: 5"),
        ({"speed": None}, "speed None"),
        ({"speed": "1e400"}, "speed 1e400"),
        ({"speed": "1e999999999"}, "speed 1e999999999"),
        ({"gpu_memory_utilization": True}, "gpu_memory_utilization: True"),
        ({"gpu_memory": 10**20}, "does not fit 62 bits"),
        ({"model": 5}, "model: 5"),
        ({"tp": True}, "tp: True"),
        ({"log": "x"}, "log: 'x' is not True or False"),
    ],
)
def test_wrong_types_and_sizes_are_named(
    trace: Trace, arguments: dict[str, Any], words: str
) -> None:
    with pytest.raises(VtsimError) as raised:
        vtsim.replay(trace, **arguments)
    assert words in str(raised.value)
