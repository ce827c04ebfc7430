"""What commands write: compressed where the name says so, and nothing of a killed process stays."""

from __future__ import annotations

import gzip
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import zstandard

from vtsim.cli.main import run
from vtsim.metrics.output import aside_of, check_file, write_folder, write_text
from vtsim.traces.output import writing


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    path = tmp_path / "t.json"
    assert run(["trace", "synth", str(path), "-n", "5", "-q"]) == 0
    return path


@pytest.fixture
def gone() -> int:
    """The number of a process that has ended."""
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


def test_json_is_compressed_as_its_name_says(trace: Path, tmp_path: Path) -> None:
    plain, packed, framed = (tmp_path / f"run.json{end}" for end in ("", ".gz", ".zst"))
    for out in (plain, packed, framed):
        assert run(["replay", str(trace), "-q", "--policy", "paged", "--json", str(out)]) == 0
    text = plain.read_bytes()
    assert len(json.loads(text)["runs"]) == 1
    assert gzip.decompress(packed.read_bytes()) == text
    assert zstandard.decompress(framed.read_bytes()) == text
    first = packed.read_bytes()
    time.sleep(1.1)  # a time stamp in the file would have moved on
    assert run(["replay", str(trace), "-q", "--policy", "paged", "--json", str(packed)]) == 0
    assert packed.read_bytes() == first


def parts(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.glob(".*.part"))


def test_what_a_dead_process_left_goes_at_the_next_write(tmp_path: Path, gone: int) -> None:
    out, other = tmp_path / "x.json", f".y.json.{gone}.part"
    alive = f".x.json.{os.getppid()}.part"
    foreign = [alive, ".x.json.abc.part", other]
    for name in (f".x.json.{gone}.part", f".x.json.{os.getpid()}.part", *foreign):
        (tmp_path / name).write_text("half")
    write_text(out, "whole")
    assert out.read_text() == "whole" and parts(tmp_path) == sorted(foreign)
    (tmp_path / f".x.json.{gone}.part").mkdir()  # a folder was tried out, or written
    (tmp_path / f".x.json.{gone}.part" / "file").write_text("half")
    with writing(out) as stream:
        stream.write("again")
    assert out.read_text() == "again" and parts(tmp_path) == sorted(foreign)


def test_the_same_number_again_does_not_stand_in_the_way(tmp_path: Path) -> None:
    """In containers a process often has the number that the killed one had."""
    left = tmp_path / f".out.{os.getpid()}.part"
    left.write_text("half")
    check_file(tmp_path / "out")
    left.mkdir()

    def write(path: Path) -> None:
        path.write_text("a")

    write_folder(tmp_path / "out", {"a": write}, frozenset())
    assert (tmp_path / "out" / "a").read_text() == "a" and parts(tmp_path) == []


def test_names_with_marks_of_patterns(tmp_path: Path, gone: int) -> None:
    left, other = tmp_path / f".[a]*.{gone}.part", tmp_path / f".a.{gone}.part"
    left.write_text("")
    other.write_text("")
    assert aside_of(tmp_path / "[a]*").name == f".[a]*.{os.getpid()}.part"
    assert not left.exists() and other.exists()


def test_killed_while_writing(tmp_path: Path) -> None:
    out = tmp_path / "x.json"
    code = (
        "import sys, time\nfrom vtsim.traces.output import writing\n"
        f"with writing({str(out)!r}) as stream:\n"
        "    stream.write('half')\n    print('writing', flush=True)\n    time.sleep(60)\n"
    )
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
    assert process.stdout is not None and process.stdout.readline() == b"writing\n"
    write_text(out, "mine")  # it lives: what it writes is left alone
    assert parts(tmp_path) == [f".x.json.{process.pid}.part"]
    process.send_signal(signal.SIGKILL)
    process.wait()
    process.stdout.close()
    assert parts(tmp_path) == [f".x.json.{process.pid}.part"]
    assert run(["trace", "synth", str(out), "-n", "1", "-q"]) == 0
    assert parts(tmp_path) == [] and json.loads(out.read_text())["requests"]
