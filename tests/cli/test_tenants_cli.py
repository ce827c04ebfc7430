"""`vtsim replay --tenant`: what it prints and writes, and its answers to bad input."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pytest

import vtsim
from vtsim.cli.main import run
from vtsim.errors import ConfigError
from vtsim.metrics import frames
from vtsim.report.second import Need, largest, lines
from vtsim.tenants import Tenant, parse_tenant, replay_tenants
from vtsim.testing.toys import Ask, make_trace, toy_model

Ran = tuple[int, str, str]
Call = Callable[..., Ran]


@pytest.fixture
def call(capsys: pytest.CaptureFixture[str]) -> Call:
    """Run a command line in this process; returns (status, stdout, stderr)."""

    def ran(*arguments: object) -> Ran:
        capsys.readouterr()
        status = run([str(argument) for argument in arguments])
        captured = capsys.readouterr()
        return status, captured.out, captured.err

    return ran


def write_trace(path: Path, requests: int, every_s: float) -> Path:
    rows = [
        {"id": i, "arrival_s": i * every_s, "prompt_tokens": 900, "output_tokens": 30}
        for i in range(requests)
    ]
    document = {"format": "vtsim-trace", "version": 1, "block_size": 0, "tail_rule": "exact"}
    path.write_text(json.dumps({**document, "hash_scope": "global", "requests": rows}))
    return path


@pytest.fixture
def two(tmp_path: Path) -> list[str]:
    """Arguments of two tenants; the first one's trace has a colon in its name."""
    chat = write_trace(tmp_path / "a:chat.json", 30, 0.05)
    burst = write_trace(tmp_path / "burst.json", 20, 0.0)
    tenants = ["--tenant", f"chat:{chat}:yi-6b", "--tenant", f"burst:{burst}:llama-3-8b"]
    return ["replay", *tenants, "--max-model-len", "4096"]


# -- end to end -----------------------------------------------------------------------------------


def test_tenants_are_compared_and_written(
    call: Call, two: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    document, folder = tmp_path / "r.json", tmp_path / "out"
    policies = ["--policy", "paged", "--policy", "vtensor", "--policy", "native"]
    status, out, err = call(*two, *policies, "-v", "--json", document, "--out", folder, "--log")
    assert (status, err) == (0, "")
    assert all(len(line) <= 80 for line in out.splitlines())
    for shown in (
        "tenant chat",
        "tenant burst",
        "static",
        "elastic",
        "shares   vtensor (elastic)",
        "options  max_num",
    ):
        assert shown in out
    whole = json.loads(document.read_text())
    assert [tenant["tenant"] for tenant in whole["tenants"]] == ["chat", "burst"]
    assert [tenant["model"] for tenant in whole["tenants"]] == ["yi-6b", "llama-3-8b"]
    assert [(each["label"], each["elastic"]) for each in whole["runs"]] == [
        ("paged", False),
        ("vtensor", True),
        ("native", True),
    ]
    for each in whole["runs"]:
        gpu, own = each["gpu"], each["tenants"]
        assert gpu["requests"]["completed"] == 50
        assert [tenant["requests"]["completed"] for tenant in own] == [30, 20]
        tokens = gpu["throughput"]["output_tokens_per_s"] * gpu["duration_s"]
        assert tokens == pytest.approx(50 * 30)
        assert gpu["compute_s"] == pytest.approx(sum(t["steps"]["compute_s"] for t in own))
        capacity = gpu["memory"]["capacity_bytes"]
        assert sum(gpu["memory"]["mean_bytes"].values()) == pytest.approx(capacity)
        for tenant in own:
            assert sum(tenant["memory"]["mean_bytes"].values()) == pytest.approx(capacity)
            assert tenant["shared"]["floor_bytes"] <= tenant["limit_bytes"]
    defined = whole["definitions"]
    for name in ("memory.others", "latency.ttft_s", "shared_bytes", "limit_bytes"):
        assert defined[name]["definition"]
    assert all(f"gpu.{name}" in defined for name in whole["runs"][0]["gpu"])
    assert all(f"shared.{name}" in defined for name in whole["runs"][0]["tenants"][0]["shared"])
    alone = json.loads((folder / "chat" / "result.json").read_text())
    assert "shared.floor_bytes" in alone["definitions"] and len(alone["runs"]) == 3
    assert (folder / "result.json").read_text() == document.read_text()
    timeline = pd.read_csv(folder / "gpu.csv")
    assert set(timeline["policy"]) == {"paged", "vtensor", "native"}
    own = pd.read_parquet(folder / "burst" / "timeline.parquet")
    categories = own.drop(columns=["policy", "time_s"])
    assert "others" in categories and set(categories.sum(axis=1)) == {capacity}
    assert len(pd.read_csv(folder / "chat" / "calls.csv"))
    status, out, _ = call("explain", folder / "burst", "--request", "7")
    assert status == 0 and "request 7" in out
    status, _, err = call("explain", folder, "--request", "7")
    assert status == 2 and "a run of tenants; name the folder of one" in err
    assert call(*two, "-q", "--out", folder)[0] == 0  # over the earlier run


def test_results_do_not_depend_on_hashes_nor_on_the_folder(two: list[str], tmp_path: Path) -> None:
    seen = []
    for seed, place in (("1", tmp_path / "one"), ("77", tmp_path / "two")):
        place.mkdir()
        code = "import sys; from vtsim.cli.main import main; main(sys.argv[1:])"
        done = subprocess.run(
            [sys.executable, "-c", code, *two, "--gpu-memory", "32GiB", "--json", "-", "-q"],
            cwd=place,
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stderr
        seen.append(done.stdout)
    assert seen[0] == seen[1] and '"tenants"' in seen[0]


def test_the_command_line_and_the_api_are_one(call: Call, two: list[str], tmp_path: Path) -> None:
    tenants = [
        vtsim.Tenant("chat", tmp_path / "a:chat.json", "yi-6b", 20 << 30),
        vtsim.Tenant("burst", tmp_path / "burst.json", "llama-3-8b"),
    ]
    result = vtsim.replay_tenants(tenants, ["vtensor"], max_model_len=4096)
    two[2] += ":20GiB"
    status, out, _ = call(*two, "--policy", "vtensor", "--json", "-", "-q")
    assert status == 0 and out == result.to_json()
    assert result["vtensor"].runs[0].limit_bytes == 20 << 30
    assert "chat" in repr(result)
    with pytest.raises(KeyError, match="there are vtensor"):
        result["paged"]


# -- bad input ------------------------------------------------------------------------------------


def test_the_parts_of_a_tenant() -> None:
    assert parse_tenant("a:t.json:yi-6b") == Tenant("a", "t.json", "yi-6b")
    assert parse_tenant("a:t.json:yi-6b:2GiB") == Tenant("a", "t.json", "yi-6b", 2 << 30)
    assert parse_tenant("a:x:y/t.json:m") == Tenant("a", "x:y/t.json", "m")
    assert parse_tenant("a:x:y:z:m:1MiB") == Tenant("a", "x:y:z", "m", 1 << 20)
    assert parse_tenant("a:t:8GiB") == Tenant("a", "t", "8GiB")  # three parts: no limit
    for text in ("", "a", "a:b", "a::m", "a:t:", ":t:m", "a:t:5GiB:"):
        with pytest.raises(ConfigError, match="NAME:TRACE:MODEL"):
            parse_tenant(text)
    for name in ("a/b", ".", "a b", "-x", "ä", "x" * 65):
        with pytest.raises(ConfigError, match="a name is letters, digits, - and _"):
            parse_tenant(f"{name}:t:m")
    with pytest.raises(ConfigError, match="limit 0 is not a size"):
        parse_tenant("a:t:m:0")
    for limit in ("-1GiB", "0.5", "20G", "1e400GiB", "nan", "99999999999TiB"):
        with pytest.raises(ConfigError, match=f"--tenant a:t:m:{limit}: size: "):
            parse_tenant(f"a:t:m:{limit}")


@pytest.mark.parametrize(
    ("change", "said"),
    (
        (["x.json"], "x.json and --tenant: each tenant has its own trace"),
        (["--model", "yi-6b"], "--model yi-6b and --tenant: each tenant has its own model"),
        (["--tenant", "chat:t:yi-6b"], "tenant 'chat' is named twice"),
        (["--tenant", "CHAT:t:yi-6b"], "tenant 'CHAT' is named twice"),
        (["--tenant", "c:t:no-model"], "tenant c: unknown model: no-model"),
        (["--tenant", "c:no-trace.json:yi-6b"], "no-trace.json: no such file"),
        (["--memory", "cuda"], "memory: tenants share a simulated GPU only, not 'cuda'"),
        (["--kv-memory", "unlimited"], "kv_memory: unlimited"),
        (["--fail-at", "3"], "fail_at: "),
        (["--num-gpu-blocks", "30"], "num_gpu_blocks: a tenant's pool is given by its limit"),
        (["--max-model-len", "999999"], "more than the positions of any tenant"),
        (["--gpu-memory", "29GiB"], "2 tenants do not fit 29.0 GiB"),
        (["--gpu-memory", "9GiB"], "tenant chat: yi-6b does not fit"),
        (["--kv-memory", "70GiB"], "tenant chat: a100-80g has 79.1 GiB"),
        (["--kv-memory", "55GiB"], "2 tenants do not fit 79.1 GiB"),
        (["--policy", "nothing"], "unknown policy 'nothing'"),
        (["--set", "paged.evict=never"], "paged.evict"),
    ),
)
def test_bad_input_is_one_line(call: Call, two: list[str], change: list[str], said: str) -> None:
    given = two[:-2] if "--max-model-len" in change else two  # an option is given once
    status, out, err = call(*given, *change)
    assert status == 2 and out == ""
    assert said in err and err.count("\n") == 1


def test_limits_that_do_not_fit(call: Call, two: list[str]) -> None:
    two[2] += ":40GiB"
    two[4] += ":30GiB"
    status, out, err = call(*two, "--policy", "paged")
    assert (status, out) == (
        2,
        "",
    ) and "the tenants' limits are 70.0 GiB, and there are 42.9 GiB" in err
    assert call(*two, "--policy", "vtensor", "-q")[0] == 0  # what one may hold at some time
    two[2] = two[2].replace("40GiB", "60GiB")
    status, out, err = call(*two, "--policy", "vtensor")
    assert status == 2 and "tenant chat: its limit of 60.0 GiB is more than the 42.9 GiB" in err


def test_one_tenant_or_none(call: Call, two: list[str]) -> None:
    status, _, err = call(*two[:3])
    assert status == 2 and "two or more share a GPU" in err
    status, _, err = call("replay")
    assert status == 2 and "Missing argument 'TRACE', or --tenant twice or more" in err
    with pytest.raises(ConfigError, match="'x' is not a Tenant"):
        replay_tenants(["x", "y"])  # type: ignore[list-item]


def test_a_trace_is_not_written_over(call: Call, two: list[str], tmp_path: Path) -> None:
    status, _, err = call(*two, "--json", tmp_path / "burst.json")
    assert status == 2 and "that is the trace itself" in err


def test_a_folder_holds_one_run_whole(
    call: Call, two: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tables of another kind of run go; a tenant's folder that is not ours is refused at once;
    where one tenant's tables cannot be written, nothing is."""
    one = ["replay", tmp_path / "burst.json", "--policy", "paged", "-q", "--out"]
    several = [*two, "--policy", "paged", "-q", "--out"]
    shared = {"result.json", "gpu.csv", "gpu.parquet"}
    folder = tmp_path / "out"
    assert call(*one, folder)[0] == 0 and (folder / "requests.csv").exists()
    assert call(*several, folder)[0] == 0
    assert {path.name for path in folder.iterdir()} == {*shared, "chat", "burst"}
    assert call(*one, folder)[0] == 0 and not (folder / "gpu.csv").exists()

    (tmp_path / "mixed" / "burst").mkdir(parents=True)
    (tmp_path / "mixed" / "result.json").write_text("{}")
    (tmp_path / "mixed" / "burst" / "mine.txt").write_text("mine")
    with monkeypatch.context() as patch:
        patch.setattr("vtsim.cli.tenants.run", None)  # it comes that far never
        status, _, err = call(*several, tmp_path / "mixed")
    assert status == 2 and "burst: it holds files, but no earlier run" in err
    assert err.count("\n") == 1 and (tmp_path / "mixed" / "result.json").read_text() == "{}"

    write = frames.write_parquet

    def full(frame: pd.DataFrame, path: Path) -> None:
        if path.parent.name == "burst":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        write(frame, path)

    monkeypatch.setattr(frames, "write_parquet", full)
    before = sorted(tmp_path.rglob("*"))
    status, _, err = call(*several, tmp_path / "new")
    assert status == 2 and err.endswith("new: No space left on device\n")
    assert sorted(tmp_path.rglob("*")) == before


def test_a_policy_that_cannot_shrink_is_static(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(
        "from vtsim.policies.vtensor import VTensorPolicy\n"
        "from vtsim.policies.base import Policy\n"
        "class Mine(VTensorPolicy):\n"
        "    name = 'mine'\n"
        "    set_limit = Policy.set_limit\n"
    )
    trace = make_trace([Ask(0, 100, 30)] * 9)
    tenants = [Tenant(name, trace, toy_model()) for name in "ab"]
    run = replay_tenants(
        tenants, [f"{file}:Mine"], max_model_len=300, kv_memory=160 << 20, check=True
    ).runs[0]
    assert not run.elastic and not run.reclaimed
    assert [own.limit_bytes for own in run.runs] == [80 << 20] * 2


# -- a second model -------------------------------------------------------------------------------


def test_the_largest_second_model_is_the_one_with_most_weights() -> None:
    small, large = Need("small", 10, 15, 1), Need("large", 20, 22, 1)
    hungry = Need("hungry", 19, 90, 1)
    assert largest(14, (small, large, hungry)) is None
    assert largest(15, (small, large, hungry)) == small
    assert largest(22, (small, large, hungry)) == large
    assert largest(100, (hungry, small)) == hungry


def test_a_replay_says_which_second_model_fits(call: Call, two: list[str], tmp_path: Path) -> None:
    trace = tmp_path / "burst.json"
    status, out, _ = call("replay", trace, "--policy", "paged", "--policy", "vtensor")
    words = " ".join(out.split())
    assert status == 0
    assert "largest second model in what is free 99 % of the time: paged none, vtensor " in words
    result = vtsim.replay(trace, ["paged", "vtensor"])
    free = [run.summary["memory"]["free_bytes"]["p1"] for run in result.runs]
    (line,) = lines(result, [Need("m", 1, free[1], 7), Need("n", 2, free[1] + 1, 7)])
    assert line.endswith("paged none, vtensor m (" + line.split(" m (")[1]) and "7 tokens" in line
