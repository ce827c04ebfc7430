"""The command line as its users meet it: outputs, errors in one line, exit statuses."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from vtsim.cli.main import run

ROOT = Path(__file__).resolve().parents[2]


def write_trace(path: Path, requests: int = 12, prompt: int = 700, output: int = 20) -> Path:
    """A native trace with a shared prefix of one block in every prompt."""
    rows = [
        {
            "id": f"r{i}",
            "arrival_s": i * 0.05,
            "prompt_tokens": prompt,
            "output_tokens": output,
            "hash_ids": [0, i + 1],
        }
        for i in range(requests)
    ]
    document = {"format": "vtsim-trace", "version": 1, "block_size": 512}
    document |= {"tail_rule": "partial_tail", "hash_scope": "global", "requests": rows}
    path.write_text(json.dumps(document))
    return path


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    return write_trace(tmp_path / "trace.json")


Ran = tuple[int, str, str]


@pytest.fixture
def vtsim(capsys: pytest.CaptureFixture[str]) -> Callable[..., Ran]:
    """Run a command line in this process; returns (status, stdout, stderr)."""

    def call(*arguments: object) -> Ran:
        capsys.readouterr()
        status = run([str(argument) for argument in arguments])
        captured = capsys.readouterr()
        return status, captured.out, captured.err

    return call


def test_a_bare_replay_compares_three_policies(vtsim: Callable[..., Ran], trace: Path) -> None:
    status, out, err = vtsim("replay", trace)
    assert (status, err) == (0, "")
    for word in (
        *("native", "paged", "vtensor", "yi-6b", "a100-80g", "max_num_seqs 256"),
        *("max_batched_tokens 8192", "block 16", "chunk 2MiB", "retain all", "lookahead 1"),
        *("rows read 12 = kept 12 + dropped 0", "have no source", "vtensor leaves"),
    ):
        assert word in " ".join(out.split()), word


@pytest.mark.parametrize("width", [80, 120])
def test_the_table_fits_the_width(
    vtsim: Callable[..., Ran], trace: Path, monkeypatch: pytest.MonkeyPatch, width: int
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    labels = [f"{name}=vtensor" for name in ("one", "two", "three", "four", "five")]
    chosen = [word for label in labels for word in ("--policy", label)]
    status, out, _ = vtsim("replay", trace, "-v", *chosen)
    assert status == 0
    assert max(map(len, out.splitlines())) <= width
    for label in ("one", "two", "three", "four", "five"):
        assert label in out


def test_json_out_and_explain(vtsim: Callable[..., Ran], trace: Path, tmp_path: Path) -> None:
    folder, document = tmp_path / "run", tmp_path / "run.json"
    status, _, _ = vtsim(
        *("replay", trace, "--policy", "vtensor", "--policy", "paged", "--log"),
        *("--out", folder, "--json", document, "--set", "vtensor.retain=watermark"),
    )
    assert status == 0
    written = json.loads(document.read_text())
    assert [entry["policy"] for entry in written["runs"]] == ["vtensor", "paged"]
    assert written["runs"][0]["parameters"]["retain"] == "watermark"
    assert written["runs"][0]["requests"]["completed"] == 12
    assert written["runs"][0]["prefix"]["hit_tokens"] > 0
    assert written["trace"]["path"] == "trace.json"
    assert (folder / "result.json").read_text() == document.read_text()
    tables = {path.name for path in folder.iterdir()}
    assert {"calls.parquet", "decisions.parquet", "timeline.csv", "requests.csv"} <= tables

    import pandas as pd

    calls = pd.read_parquet(folder / "calls.parquet")
    for entry in written["runs"]:
        counted = calls[calls["policy"] == entry["policy"]]["kind"].value_counts().to_dict()
        assert counted == {kind: n for kind, n in entry["vmm"]["calls"].items() if n}

    status, out, _ = vtsim("explain", folder, "--request", "r5")
    assert status == 0
    assert "vtensor: request r5" in out and "paged: request r5" in out
    assert "prefix hit " in out and "was the most possible" in out and "TTFT" in out
    status, out, _ = vtsim("explain", folder, "--request", "r5", "--policy", "paged")
    assert "vtensor" not in out
    assert vtsim("explain", folder, "--request", "r99")[0] == 2
    assert (
        "there are: vtensor, paged"
        in vtsim("explain", folder, "--request", "r5", "--policy", "native")[2]
    )


def test_a_request_that_waited_is_explained(
    vtsim: Callable[..., Ran], trace: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    options = ("--policy", "paged", "--max-num-seqs", "1", "--speed", "100", "-q")
    status, out, err = vtsim("replay", trace, *options, "--out", folder)
    assert (status, out, err) == (0, "", "")
    _, out, _ = vtsim("explain", folder, "--request", "r7")
    assert "waited for" in out and "--max-num-seqs" in out


def test_json_on_standard_output_stands_alone(vtsim: Callable[..., Ran], trace: Path) -> None:
    status, out, err = vtsim("replay", trace, "--policy", "native", "--json", "-")
    assert status == 0
    assert json.loads(out)["schema"] == 1
    assert "max_num_seqs" in err


def test_options_that_change_no_result_change_no_json(
    vtsim: Callable[..., Ran], trace: Path, tmp_path: Path
) -> None:
    plain = vtsim("replay", trace, "-q", "--json", "-")[1]
    for extra in (["--step"], ["--check"], ["--log", "--out", tmp_path / "run"]):
        assert vtsim("replay", trace, "-q", "--json", "-", *extra)[1] == plain


def test_lists(vtsim: Callable[..., Ran]) -> None:
    status, out, _ = vtsim("policies")
    assert status == 0
    assert "--set vtensor.chunk=2MiB  (size)" in out
    assert "--set paged.block=16" in out
    status, out, _ = vtsim("models")
    assert status == 0 and "yi-34b" in out and "240.0 KiB" in out
    status, out, _ = vtsim("gpus")
    assert status == 0 and "a100-80g-slow-create" in out and "assumed" in out
    assert "assumed: " in vtsim("gpus", "-v")[1]
    assert vtsim("--version")[1].startswith("vtsim 0")
    status, out, _ = vtsim()
    assert status == 2 and "replay" in out


ERRORS = [
    ((), "Missing argument"),
    (("none.json",), "none.json"),
    (("{trace}", "--policy", "lru"), "unknown policy 'lru' (known: native, paged, vtensor"),
    (("{trace}", "--model", "gpt"), "unknown model: gpt (known models: yi-6b"),
    (("{trace}", "--gpu", "tpu"), "unknown GPU: tpu (known GPUs: a100-80g"),
    (("{trace}", "--tp", "3"), "cannot be cut for tp 3"),
    (("{trace}", "--tp", "x"), "--tp"),
    (("{trace}", "--nope"), "--nope"),
    (("{trace}", "--set", "paged.blok=8"), "did you mean 'block'"),
    (("{trace}", "--set", "block=8"), "is not POLICY.PARAM=VALUE"),
    (("{trace}", "--kv-memory", "40G"), "--kv-memory: unknown unit 'G'"),
    (("{trace}", "--kv-memory", "1TiB"), "are 957.1 GiB more"),
    (("{trace}", "--gpu-memory", "8GiB"), "yi-6b does not fit a100-80g"),
    (("{trace}", "--gpu-memory-utilization", "1.5"), "gpu_memory_utilization: 1.5"),
    (("{trace}", "--max-num-seqs", "0"), "max_num_seqs: 0"),
    (("{trace}", "--max-model-len", "300000"), "more than the 200000 positions of yi-6b"),
    (("{trace}", "--max-model-len", "600", "--on-overflow", "error"), "r0"),
    (("{trace}", "--max-model-len", "600", "--on-overflow", "drop"), "no requests left"),
    (("{trace}", "--kernel", "fast"), "no policy here can use kernel 'fast'"),
    (("{trace}", "--kernel", "paged=flash"), "paged cannot use kernel 'flash'"),
    (("{trace}", "--kernel", "lru=flash"), "no such policy runs here"),
    (("{trace}", "--num-gpu-blocks", "9", "--policy", "native"), "no policy here has a pool"),
    (("{trace}", "--speed", "0"), "speed"),
    (("{trace}", "--log"), "--log needs --out"),
    (("{trace}", "--json", "/nowhere/a.json"), "no folder /nowhere"),
    (("{trace}", "--out", "/dev/null"), "not a folder"),
    (("{trace}", "--from", "csv"), "unknown trace format 'csv'"),
]


@pytest.mark.parametrize(("arguments", "words"), ERRORS, ids=[words for _, words in ERRORS])
def test_bad_input_is_one_line_and_status_2(
    vtsim: Callable[..., Ran], trace: Path, arguments: tuple[str, ...], words: str
) -> None:
    status, out, err = vtsim("replay", *(a.format(trace=trace) for a in arguments))
    assert status == 2
    assert out == ""
    assert err.startswith("vtsim: ") and err.count("\n") == 1 and err.endswith("\n")
    assert words in err
    assert "Traceback" not in err


def test_debug_shows_the_traceback(vtsim: Callable[..., Ran], trace: Path) -> None:
    for arguments in (["--debug", "replay", "none.json"], ["replay", "none.json", "--debug"]):
        status, _, err = vtsim(*arguments)
        assert status == 2
        assert "Traceback" in err and err.splitlines()[-1].startswith("vtsim: none.json")


def test_requests_that_are_too_long_are_counted(vtsim: Callable[..., Ran], trace: Path) -> None:
    rows = json.loads(trace.read_text())
    rows["requests"][3]["output_tokens"] = 5000
    trace.write_text(json.dumps(rows))
    options = ("--max-model-len", "2048", "-q", "--json", "-")
    rejected = json.loads(vtsim("replay", trace, *options)[1])
    for entry in rejected["runs"]:
        assert entry["requests"]["completed"] == 11
        assert entry["requests"]["rejected_by_reason"] == {"max_model_len": 1}
    dropped = json.loads(vtsim("replay", trace, *options, "--on-overflow", "drop")[1])
    assert dropped["trace"]["requests"] == 11
    assert sum(dropped["trace"]["dropped"].values()) == 1


def start(*arguments: object, **environment: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-m", "vtsim.cli.main", *map(str, arguments)],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


@pytest.mark.parametrize(
    ("number", "status", "words"),
    [
        (signal.SIGINT, 130, b"vtsim: interrupted\n"),
        (signal.SIGTERM, 143, b"vtsim: terminated\n"),
        (signal.SIGHUP, 129, b"vtsim: terminated\n"),
    ],
)
def test_signals_leave_nothing_behind(
    tmp_path: Path, number: signal.Signals, status: int, words: bytes
) -> None:
    long = write_trace(tmp_path / "long.json", requests=3000, output=2000)
    outputs = ("--json", tmp_path / "a.json", "--out", tmp_path / "run")
    process = start("replay", long, "--step", *outputs)
    assert process.stdout is not None
    while b"policies" not in process.stdout.readline():  # the heading: the run begins
        pass
    time.sleep(0.3)
    process.send_signal(number)
    _, err = process.communicate(timeout=60)
    assert process.returncode == status
    assert err == words
    assert sorted(path.name for path in tmp_path.iterdir()) == ["long.json"]


def test_a_closed_pipe_is_quiet(trace: Path) -> None:
    process = start("replay", trace)
    assert process.stdout is not None and process.stderr is not None
    process.stdout.close()
    err = process.stderr.read()
    process.wait(timeout=60)
    process.stderr.close()
    assert err == b""


def test_the_same_run_elsewhere_writes_the_same_bytes(trace: Path, tmp_path: Path) -> None:
    written = []
    for number, zone in enumerate(("UTC", "Asia/Tokyo")):
        folder = tmp_path / f"folder{number}"
        folder.mkdir()
        copy = folder / "trace.json"
        copy.write_bytes(trace.read_bytes())
        process = start(*("replay", copy, "-q", "--json", "-"), PYTHONHASHSEED=str(number), TZ=zone)
        out, err = process.communicate(timeout=60)
        assert (process.returncode, err) == (0, b"")
        written.append(out)
    assert written[0] == written[1]


def loaded(code: str) -> set[str]:
    """Modules that a fresh interpreter has after `code`."""
    code += "\nimport sys; print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=True,
    )
    return set(done.stdout.splitlines()[-1].split())


def test_importing_vtsim_loads_nothing_heavy() -> None:
    heavy = {"torch", "cuda", "rich", "pandas", "numpy", "typer", "pyarrow", "simpy"}
    assert loaded("import vtsim") & heavy == set()
    assert loaded("import vtsim; vtsim.ConfigError") & heavy == set()
    assert loaded("import vtsim; vtsim.replay") & {"torch", "cuda", "rich", "pandas"} == set()


def test_a_replay_needs_no_torch(trace: Path) -> None:
    code = (
        "import sys; sys.modules['torch'] = sys.modules['cuda'] = None\n"
        f"import vtsim; result = vtsim.replay({str(trace)!r}, ['vtensor'])\n"
        "assert result['vtensor'].summary['requests']['completed'] == 12"
    )
    assert "vtsim.api" in loaded(code)


PLUGIN = """
from vtsim.policies.native import NativePolicy

class Mine(NativePolicy):
    name = "mine"
    kernels = ("flash", "flash_paged")
"""


def test_a_policy_from_a_file_runs(vtsim: Callable[..., Ran], trace: Path, tmp_path: Path) -> None:
    plugin = tmp_path / "mine.py"
    plugin.write_text(PLUGIN)
    chosen = ("--policy", f"{plugin}:Mine", "--policy", "native", "--kernel", "mine=flash_paged")
    status, out, err = vtsim("replay", trace, *chosen, "-q", "--json", "-")
    assert (status, err) == (0, "")
    mine, native = json.loads(out)["runs"]
    assert (mine["policy"], mine["kernel"], native["kernel"]) == ("mine", "flash_paged", "flash")
    assert mine["memory"]["peak_bytes"] == native["memory"]["peak_bytes"]
    assert mine["duration_s"] != native["duration_s"]


def test_a_bare_kernel_is_for_those_that_can_use_it(vtsim: Callable[..., Ran], trace: Path) -> None:
    _, out, _ = vtsim("replay", trace, "--kernel", "paged_v2", "-q", "--json", "-")
    kernels = {entry["policy"]: entry["kernel"] for entry in json.loads(out)["runs"]}
    assert kernels == {"native": "flash", "paged": "paged_v2", "vtensor": "flash"}


def test_a_folder_that_is_no_run_is_refused(vtsim: Callable[..., Ran], tmp_path: Path) -> None:
    status, _, err = vtsim("explain", tmp_path, "--request", "1")
    assert status == 2 and "requests.parquet is missing" in err
    (tmp_path / "requests.parquet").write_text("not parquet")
    status, _, err = vtsim("explain", tmp_path, "--request", "1")
    assert status == 2 and "cannot be read" in err and err.count("\n") == 1


def test_preemption_and_rejection_are_explained(vtsim: Callable[..., Ran], tmp_path: Path) -> None:
    """Memory for about two sequences, of which one grows; one request never fits."""
    rows = [
        {"id": i, "arrival_s": 0.0, "prompt_tokens": 480, "output_tokens": 400} for i in range(4)
    ]
    rows.append({"id": 4, "arrival_s": 0.0, "prompt_tokens": 3000, "output_tokens": 1})
    rows.append({"id": 5, "arrival_s": 0.0, "prompt_tokens": 9000, "output_tokens": 1})
    trace = tmp_path / "tight.json"
    trace.write_text(json.dumps({"format": "vtsim-trace", "version": 1, "requests": rows}))
    folder = tmp_path / "run"
    options = ("--policy", "paged", "--kv-memory", "66MiB", "--max-model-len", "4096", "-q")
    assert vtsim("replay", trace, *options, "--out", folder)[0] == 0
    stories = [vtsim("explain", folder, "--request", number)[1] for number in range(6)]
    assert any("preempted, its memory went to others" in story for story in stories)
    assert any("admitted again" in story for story in stories)
    assert any("memory was short" in story for story in stories)
    assert "cannot fit even alone" in stories[4]
    assert "exceed max_model_len" in stories[5]


BROKEN = """
import sys
from vtsim.policies.native import NativePolicy

class Raises(NativePolicy):
    name = "raises"
    def create(self, *given):
        raise ValueError("boom")

class Answers(NativePolicy):
    name = "answers"
    def setup(self, *given):
        return None

class Leaves(NativePolicy):
    name = "leaves"
    def match(self, *given):
        sys.exit(0)

class Nothing:
    pass
"""


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("Raises", "dyn.py:8 in create: ValueError: boom"),
        ("Answers", "dyn.py, Answers.setup returned None, not a Plan"),
        ("Leaves", "'leaves' (dyn.py, Leaves) called sys.exit(0)"),
        ("Nothing", "is no memory policy: it lacks kernels, parameters_type"),
        ("Missing", "no 'Missing' in "),
    ],
)
def test_a_broken_plug_in_is_one_line(
    vtsim: Callable[..., Ran], trace: Path, tmp_path: Path, name: str, words: str
) -> None:
    plugin = tmp_path / "dyn.py"
    plugin.write_text(BROKEN)
    status, out, err = vtsim("replay", trace, "-q", "--policy", f"{plugin}:{name}")
    assert (status, out) == (2, "")
    assert err.startswith("vtsim: ") and err.count("\n") == 1
    assert words in err


def test_a_replay_reshapes_the_trace_and_says_so(vtsim: Callable[..., Ran], trace: Path) -> None:
    options = ("-q", "--policy", "native", "--json", "-")
    plain = json.loads(vtsim("replay", trace, *options)[1])
    paced = json.loads(vtsim("replay", trace, *options, "--rate", "2", "--repeat", "2")[1])
    assert "reader" not in plain["options"]
    assert paced["options"]["reader"] == {"rate": 2.0, "repeats": 2}
    assert paced["trace"]["requests"] == 2 * plain["trace"]["requests"]
    drawn = [
        json.loads(
            vtsim("replay", trace, *options, "--rate", "2", "--arrival", "poisson", "--seed", seed)[
                1
            ]
        )["runs"][0]["latency"]
        for seed in (1, 2)
    ]
    assert drawn[0] != drawn[1]
    assert "no option of a reader" in vtsim("replay", trace, "-o", "seed=1")[2]
    assert "has no option 'nope'" in vtsim("replay", trace, "-o", "nope=1")[2]


def test_the_end_of_a_replay_compares_only_what_compares(
    vtsim: Callable[..., Ran], trace: Path
) -> None:
    chosen = ("--policy", "paged", "--policy", "vtensor")
    out = " ".join(vtsim("replay", trace, *chosen)[1].split())
    for words in (
        *("free than paged on average", "at worst", "x the TTFT p50", "x the TPOT p50"),
        *("(kernels differ: flash vs flash_paged)", "kept prefixes, mean", "(-v lists them)"),
    ):
        assert words in out, words
    rows = json.loads(trace.read_text())
    rows["requests"][3]["output_tokens"] = 5000
    trace.write_text(json.dumps(rows))
    out = " ".join(vtsim("replay", trace, *chosen, "--max-model-len", "2048")[1].split())
    assert "paged: rejected 1: max_model_len" in out
    assert "see --max-model-len and --on-overflow" in out


def test_a_bare_group_shows_its_help(vtsim: Callable[..., Ran]) -> None:
    for group in ("trace", "calibrate"):
        status, out, err = vtsim(group)
        assert (status, out) == (2, "")
        assert err.startswith(f"Usage: vtsim {group}") and "Commands:" in err


def test_explain_refuses_tables_of_others(vtsim: Callable[..., Ran], tmp_path: Path) -> None:
    import pandas as pd

    path = tmp_path / "requests.parquet"
    path.write_text("junk")
    status, _, err = vtsim("explain", tmp_path, "--request", "r0")
    assert status == 2 and "cannot be read" in err and err.count("\n") == 1
    pd.DataFrame({"a": [1]}).to_parquet(path)
    status, _, err = vtsim("explain", tmp_path, "--request", "r0")
    assert status == 2 and "not a saved run's table: no column 'policy'" in err
