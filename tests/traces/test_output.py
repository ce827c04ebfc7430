"""Writing traces: whole or not at all, compressed by name, every failure one clear error."""

from __future__ import annotations

import gzip
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest
import zstandard

from vtsim.errors import ConfigError
from vtsim.traces import load
from vtsim.traces.bundled import sample_path
from vtsim.traces.export import check_target, export
from vtsim.traces.output import check_writable, writing


def test_compressed_names_are_compressed(tmp_path: Path) -> None:
    trace = load(sample_path("chat"), limit=20)
    plain, packed, frame = (tmp_path / f"t.json{end}" for end in ("", ".gz", ".zst"))
    for path in (plain, packed, frame):
        export(trace, path)
    text = plain.read_bytes()
    assert gzip.decompress(packed.read_bytes()) == text
    assert zstandard.ZstdDecompressor().decompressobj().decompress(frame.read_bytes()) == text
    for path in (packed, frame):
        again = load(path)
        assert again.arrival.tolist() == trace.arrival.tolist()
        before = path.read_bytes()
        export(trace, path)
        assert path.read_bytes() == before  # no time stamp
    assert check_target(None, "x.jsonl.gz") == "mooncake"
    assert check_target(None, "x.json.zst") == "native"


def test_what_cannot_be_written_is_said(tmp_path: Path) -> None:
    (tmp_path / "a").symlink_to(tmp_path / "b")
    (tmp_path / "b").symlink_to(tmp_path / "a")
    for path in ("", "/", tmp_path, tmp_path / "a", tmp_path / ("n" * 300), tmp_path / "no" / "x"):
        with pytest.raises(ConfigError, match="^cannot write"):
            check_writable(path)
        with pytest.raises(ConfigError, match="^cannot write"), writing(path) as stream:
            stream.write("x")
    with pytest.raises(ConfigError, match="null"):
        check_writable("a\0b")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a", "b"]


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no /dev/full")
@pytest.mark.parametrize("size", [1, 1 << 20])
def test_a_full_device(size: int) -> None:
    with pytest.raises(ConfigError, match="/dev/full: No space left"), writing("/dev/full") as out:
        out.write("x" * size)


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no /dev/full")
def test_a_full_standard_output_is_one_line() -> None:
    command = [sys.executable, "-m", "vtsim.cli.main", "trace", "convert", "-q"]
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [*command, str(sample_path("chat")), "-"],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        )
    assert done.returncode == 2 and done.stderr.count("\n") == 1
    assert "cannot write -: No space left" in done.stderr


def test_a_failure_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    path.write_text("old")
    path.chmod(0o600)
    with pytest.raises(RuntimeError), writing(path) as stream:
        stream.write("half")
        raise RuntimeError
    assert path.read_text() == "old" and [p.name for p in tmp_path.iterdir()] == ["x.json"]
    with writing(path) as stream:
        stream.write("new\n")
    assert path.read_bytes() == b"new\n" and stat.S_IMODE(path.stat().st_mode) == 0o600


def test_standard_output(capfd: pytest.CaptureFixture[str]) -> None:
    print("before", end=" ")
    with writing("-") as stream:
        stream.write("text")
    assert capfd.readouterr().out == "before text"
