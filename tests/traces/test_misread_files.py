"""Files that are packed, damaged or no text at all: read, or named for what they are."""

from __future__ import annotations

import gzip
import io
import os
import subprocess
import sys
import tarfile
from pathlib import Path
from subprocess import Popen

import pytest
import zstandard

from vtsim.errors import TraceFormatError
from vtsim.traces import load

ROW = '{"timestamp": 0, "input_length": 40, "output_length": 2}\n'
BYTES = ROW.encode()
ZSTD = zstandard.ZstdCompressor().compress(BYTES)


def packed(*parts: bytes) -> bytes:
    return b"".join(gzip.compress(part) for part in parts)


def tar(data: bytes) -> bytes:
    written = io.BytesIO()
    with tarfile.open(fileobj=written, mode="w") as archive:
        entry = tarfile.TarInfo("x.jsonl")
        entry.size = len(data)
        archive.addfile(entry, io.BytesIO(data))
    return written.getvalue()


READ = {
    "gzip of two members": (packed(BYTES, BYTES), 2),
    "gzip with zeros behind, as tapes pad": (packed(BYTES) + bytes(512), 1),
    "gzip by another name": (packed(BYTES), 1),
    "zstd of two frames": (ZSTD + ZSTD, 2),
    "zstd behind a skippable frame, as pzstd writes": (
        b"\x50\x2a\x4d\x18\x04\0\0\0size" + ZSTD,
        1,
    ),
    "zstd before a skippable frame, as of seekable files": (
        ZSTD + b"\x5e\x2a\x4d\x18\x04\0\0\0seek",
        1,
    ),
}


@pytest.mark.parametrize("kind", READ)
def test_packed_files_are_read_whole(kind: str, tmp_path: Path) -> None:
    data, rows = READ[kind]
    path = tmp_path / "x"
    path.write_bytes(data)
    trace = load(path)
    assert trace.prompt_tokens.tolist() == [40] * rows


REFUSED = {
    "gzip in gzip": (packed(packed(BYTES)), "x: is compressed twice"),
    "gzip in zstd": (zstandard.ZstdCompressor().compress(packed(BYTES)), "x: is compressed twice"),
    "an empty file, compressed": (packed(b""), "x: is empty"),
    "gzip cut off": (packed(BYTES * 99)[:-6], "x: damaged compressed data"),
    "gzip with a wrong sum": (packed(BYTES)[:-8] + bytes(8), "x: damaged compressed data: CRC"),
    "a tar archive": (tar(BYTES), "x: is a tar archive"),
    "a tar archive, compressed": (packed(tar(BYTES)), "x: is a tar archive"),
    "7z": (b"7z\xbc\xaf\x27\x1c" + bytes(9), "x: is a 7z archive"),
    "lz4": (b"\x04\x22\x4d\x18abc", "x: is compressed with lz4"),
    "an old Excel file": (b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1abc", "x: is an Excel"),
    "a database": (b"SQLite format 3\0" + bytes(9), "x: is an SQLite database"),
    "an array": (b"\x93NUMPY\x01\0", "x: is a NumPy array"),
    "UTF-16": (ROW.encode("utf-16"), "x: is UTF-16 text"),
    "UTF-16 without a mark": (ROW.encode("utf-16-le"), "x: is UTF-16 text"),
    "UTF-32": (ROW.encode("utf-32"), "x: is UTF-32 text"),
    "NUL bytes far behind": (BYTES * 3000 + bytes(9), "x:3001:1: malformed JSON"),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_what_is_no_text_is_named(kind: str, tmp_path: Path) -> None:
    data, words = REFUSED[kind]
    path = tmp_path / "x"
    path.write_bytes(data)
    with pytest.raises(TraceFormatError) as caught:
        load(path)
    assert words in str(caught.value).replace(f"{tmp_path}/", "")
    assert "\n" not in str(caught.value)


# -- pipes -----------------------------------------------------------------------------------------


def pipe(tmp_path: Path, command: str) -> Popen[bytes]:
    """A shell command that writes to `tmp_path / "pipe"`."""
    os.mkfifo(tmp_path / "pipe")
    return Popen(["sh", "-c", f"{command} > pipe 2>/dev/null"], cwd=tmp_path)


def test_a_pipe_is_read_as_a_file_is(tmp_path: Path) -> None:
    (tmp_path / "rows").write_bytes(BYTES * 20_000)
    with pipe(tmp_path, "cat rows") as writer:
        trace = load(tmp_path / "pipe")
    assert writer.returncode == 0 and len(trace) == 20_000
    assert trace.sha256 == load(tmp_path / "rows").sha256


@pytest.mark.parametrize(
    ("command", "form", "words"),
    [
        ("yes", None, "pipe:1: not a known trace format (first line 'y')"),
        ("yes", "mooncake", "pipe:1:1: malformed JSON"),
        ("yes a,b", "azure", "pipe:1: TIMESTAMP: column 'TIMESTAMP' is missing"),
        ("yes '['", "native", "pipe:1: a native trace is one JSON object"),
        ("cat /dev/zero", None, "pipe: holds NUL bytes"),
    ],
)
def test_an_endless_pipe_is_refused_where_it_is_wrong(
    command: str, form: str | None, words: str, tmp_path: Path
) -> None:
    """Without taking more of it than that needs: the writer is stopped, not waited for."""
    with pipe(tmp_path, command), pytest.raises(TraceFormatError) as caught:
        load(tmp_path / "pipe", from_format=form)
    assert words in str(caught.value)


def test_an_endless_trace_is_refused_when_it_is_too_much(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("vtsim.traces.pipe.MOST_BYTES", 1 << 20)
    (tmp_path / "rows").write_bytes(BYTES)
    with pipe(tmp_path, 'yes "$(cat rows)"'), pytest.raises(TraceFormatError) as caught:
        load(tmp_path / "pipe")
    assert "pipe: more than 1 MiB through a pipe: save it in a file" in str(caught.value)


@pytest.mark.parametrize("data", [BYTES * 300, gzip.compress(BYTES * 300)], ids=["plain", "gzip"])
def test_a_dash_is_standard_input(data: bytes) -> None:
    command = [
        sys.executable,
        "-c",
        "from vtsim.cli.main import main; main()",
        "trace",
        "info",
        "-",
    ]
    said = subprocess.run(command, input=data, capture_output=True, check=True).stdout.decode()
    assert said.startswith("stdin: mooncake") and "300 rows read = 300 kept" in said
