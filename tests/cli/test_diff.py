"""`vtsim diff`: real runs that are the same, or part by memory, parameter, policy or trace."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pytest

from vtsim.cli.main import run

ROOT = Path(__file__).resolve().parents[2]
SAMPLES = ROOT / "traces" / "samples"
Replayed = Callable[..., Path]


@pytest.fixture(scope="module")
def replayed(tmp_path_factory: pytest.TempPathFactory) -> Replayed:
    """Replays the first requests of a sample into a folder; equal arguments, one folder."""
    done: dict[tuple[str, ...], Path] = {}

    def replay(*arguments: str, sample: str = "multi-turn", again: int = 0) -> Path:
        key = (*arguments, sample, str(again))
        if key not in done:
            folder = tmp_path_factory.mktemp("runs") / "run"
            trace = str(SAMPLES / f"{sample}.json")
            options = ["--limit", "60", "--out", str(folder), "-q", *arguments]
            assert run(["replay", trace, *options]) == 0
            done[key] = folder
        return done[key]

    return replay


BOTH = ("--policy", "vtensor", "--policy", "paged", "--kv-memory")


def said(capsys: pytest.CaptureFixture[str], status: int, *arguments: object) -> str:
    capsys.readouterr()
    assert run(["diff", *map(str, arguments)]) == status
    text = capsys.readouterr().out
    assert all(len(line) <= 80 or line.startswith(("A  /", "B  /")) for line in text.splitlines())
    return text


def test_equal_runs_are_said_to_be(replayed: Replayed, capsys: pytest.CaptureFixture[str]) -> None:
    one, other = replayed(*BOTH, "1GiB"), replayed(*BOTH, "1GiB", again=1)
    text = said(capsys, 0, one, other)
    decisions = pd.read_parquet(one / "decisions.parquet")
    for label in ("vtensor", "paged"):
        count = (decisions["policy"] == label).sum()
        assert f"the same: {count:,} decisions" in text
    assert "input" not in text


def test_other_memory_parts_them_where_the_tables_part(
    replayed: Replayed, capsys: pytest.CaptureFixture[str]
) -> None:
    one, other = replayed(*BOTH, "600MiB"), replayed(*BOTH, "1GiB")
    text = said(capsys, 1, one, other, "--policy", "paged")
    tables = []
    for folder in (one, other):
        table = pd.read_parquet(folder / "decisions.parquet")
        table = table[table["policy"] == "paged"].astype({"request": str})
        tables.append(table[["request", "decision", "reason", "bytes_short"]].values.tolist())
    pairs = zip(*tables, strict=False)
    at = next(n for n, (a, b) in enumerate(pairs) if a != b)
    assert f"the first {at} decisions are the same" in text
    parted = [line for line in text.splitlines() if line.startswith(("A  req", "B  req"))]
    for line, table in zip(parted, tables, strict=True):
        request, decision, reason, _ = table[at]
        assert f"request {request}," in line and f"{decision}: {reason}" in line
    assert "input options.kv_memory: 600.0 MiB | 1.00 GiB" in text
    assert "input limit_bytes: 600.0 MiB | 1.00 GiB" in text


def test_the_state_before_is_that_of_the_tables(
    replayed: Replayed, capsys: pytest.CaptureFixture[str]
) -> None:
    """Requests that run have been admitted, by their own columns, and have not finished."""
    one, other = replayed(*BOTH, "600MiB"), replayed(*BOTH, "1GiB")
    lines = said(capsys, 1, one, other, "--policy", "vtensor").splitlines()
    at = next(n for n, line in enumerate(lines) if line.startswith("A  request"))
    state = next(line for line in lines[at:] if "before:" in line)
    before = [d for d in lines if d.startswith("  request")]
    assert len(before) == 3
    decisions = pd.read_parquet(one / "decisions.parquet")
    decisions = decisions[decisions["policy"] == "vtensor"].reset_index(drop=True)
    count = int(next(line for line in lines if line.startswith("the first")).split()[2])
    now = decisions["time_s"][count]
    made = decisions[:count]
    admitted = made["decision"].isin(["admit", "readmit"]).sum()
    gone = made["decision"].isin(["finish", "preempt"]).sum()
    requests = pd.read_parquet(one / "requests.parquet")
    requests = requests[requests["policy"] == "vtensor"]
    arrived = (requests["arrival_s"] <= now).sum()
    finished = (made["decision"] == "finish").sum()
    running = admitted - gone
    assert state == f"   before: {running} run, {arrived - running - finished} wait"
    timeline = pd.read_parquet(one / "timeline.parquet")
    timeline = timeline[timeline["policy"] == "vtensor"]
    sampled = timeline[timeline["time_s"] <= now]["time_s"].iloc[-1]
    assert f"{sampled:.6f} s)" in "\n".join(lines[at : at + 5])


def test_a_parameter_that_decides_nothing_else_parts_times(
    replayed: Replayed, capsys: pytest.CaptureFixture[str]
) -> None:
    """Lookahead 0 exposes memory work: steps come later, and it is said that they do."""
    one = replayed("--policy", "vtensor")
    other = replayed("--policy", "vtensor", "--set", "vtensor.lookahead=0")
    text = said(capsys, 1, one, other)
    assert "input parameters.lookahead: 1 | 0" in text
    assert "times part at decision" in text


def test_two_policies_of_one_run(replayed: Replayed, capsys: pytest.CaptureFixture[str]) -> None:
    folder = replayed(*BOTH, "1GiB")
    text = said(capsys, 1, folder, "--policy", "paged:vtensor")
    assert "input policy: paged | vtensor" in text and "input parameters.block: 16 | -" in text
    assert said(capsys, 1, folder) == said(capsys, 1, folder, "--policy", "vtensor:paged")
    assert "the same:" in said(capsys, 0, folder, "--policy", "paged:paged")


def test_another_trace_is_said_first(
    replayed: Replayed, capsys: pytest.CaptureFixture[str]
) -> None:
    one, other = replayed(*BOTH, "1GiB"), replayed(*BOTH, "1GiB", sample="chat")
    lines = said(capsys, 1, one, other, "--policy", "paged").splitlines()
    assert lines[2] == "input trace.path: multi-turn.json | chat.json"
    assert lines[3].startswith("input trace.sha256: ") and "A  request" in "\n".join(lines)


def test_a_run_that_stops_earlier_has_no_more_decisions(
    replayed: Replayed, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    one = replayed("--policy", "paged")
    cut = tmp_path / "cut"
    cut.mkdir()
    for file in one.iterdir():
        (cut / file.name).write_bytes(file.read_bytes())
    decisions = pd.read_parquet(one / "decisions.parquet")
    decisions[:-2].to_parquet(cut / "decisions.parquet")
    text = said(capsys, 1, one, cut)
    assert f"the first {len(decisions) - 2} decisions are the same" in text
    assert "B  has no more decisions" in text


def test_memory_alone_may_differ(
    replayed: Replayed, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    one = replayed("--policy", "paged")
    changed = tmp_path / "changed"
    changed.mkdir()
    for file in one.iterdir():
        (changed / file.name).write_bytes(file.read_bytes())
    timeline = pd.read_parquet(one / "timeline.parquet")
    timeline.loc[7, "kv_live"] += 1
    timeline.to_parquet(changed / "timeline.parquet")
    text = said(capsys, 1, one, changed)
    assert "decisions are the same" in text and "memory part in row 7:" in text


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["{run}", "nowhere"], "nowhere: not a saved run, result.json is missing"),
        (["{run}", "--policy", "paged"], "--policy paged: one run needs LABEL:LABEL"),
        (["{run}", "--policy", "paged:"], "--policy paged:: wanted is LABEL or LABEL:LABEL"),
        (["{run}", "--policy", "paged:radix"], "no policy 'radix' (there are: vtensor, paged)"),
        (["{run}", "{file}"], "not a saved run, result.json is missing"),
        (["{one}"], "which two policies? --policy LABEL:LABEL (there are: paged)"),
        (["{broken}", "{run}"], "result.json: not a saved run's document"),
        (["{tenants}"], "tenants: a run of tenants; name the folder of one ("),
        (["{run}", "{numbers}"], "not a saved run's document: 'trace' is not what a run says"),
        (["{run}", "{labels}"], "not a saved run's document: 'label' is not a name"),
        (["{run}", "{deep}"], "not a saved run's document: nested too deep"),
    ],
)
def test_what_cannot_be_compared_is_one_line(
    arguments: list[str], told: str, replayed: Replayed, tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    documents = {
        "broken": '{"runs": []}',
        "tenants": '{"runs": [], "tenants": [{"tenant": "a"}, {"tenant": "b"}]}',
        "numbers": '{"trace": 1, "options": {}, "runs": [{"label": "paged"}]}',
        "labels": '{"trace": {}, "options": {}, "runs": [{"label": ["paged"]}]}',
        "deep": "[" * 100_000,
    }
    for name, text in documents.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "result.json").write_text(text)
    names = {
        "run": replayed(*BOTH, "1GiB"),
        "one": replayed("--policy", "paged"),
        "file": Path(__file__),
        **{name: tmp_path / name for name in documents},
    }
    capsys.readouterr()
    assert run(["diff", *(text.format(**names) for text in arguments)]) == 2
    error = capsys.readouterr().err
    assert told in error and error.count("\n") == 1


def test_policies_with_nothing_in_common_need_labels(
    replayed: Replayed, capsys: pytest.CaptureFixture[str]
) -> None:
    both = replayed(*BOTH, "1GiB")
    native = replayed("--policy", "native", "--policy", "radix")
    assert run(["diff", str(both), str(native)]) == 2
    assert "no policy is in both runs: vtensor, paged | native, radix" in capsys.readouterr().err
    assert said(capsys, 1, both, native, "--policy", "paged:radix")
