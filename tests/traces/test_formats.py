"""What readers make of the oddities of files of no format in particular; made-up rows."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from vtsim.errors import ConfigError, TraceFormatError
from vtsim.request import NO_ARRIVAL
from vtsim.traces import load, reader_names

MS = 10**9


@pytest.mark.parametrize(
    "content, words",
    [
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:1\n", "Git LFS pointer"),
        (b"\n <!DOCTYPE html><html>", "web page"),
        (b"PK\x03\x04zip", "zip archive"),
        (b"PAR1abc", "Parquet"),
        (b"\xff\xfeT\x00", "UTF-16"),
        (b"", "empty"),
        (b"\n \n", "empty"),
        (b"hello world\n", "not a known trace format"),
        (b'{"a": 1}\n', "keys a"),
        (b"\x1f\x8b\x08broken", "damaged"),
        (b"\x28\xb5\x2f\xfdbroken", "damaged"),
    ],
)
def test_things_are_named_for_what_they_are(read: Any, content: bytes, words: str) -> None:
    read.fails(content, words)


def test_missing_file_unknown_format_and_options(tmp_path: Path, read: Any) -> None:
    with pytest.raises(TraceFormatError, match="no such file"):
        load(tmp_path / "nothing.json")
    with pytest.raises(ConfigError, match="known: .*mooncake"):
        read("x", from_format="moonbake")
    with pytest.raises(ConfigError, match="no option 'colour'"):
        read([{"timestamp": 0, "input_length": 1, "output_length": 1}], colour="red")
    with pytest.raises(ConfigError, match="block size"):
        read([{"timestamp": 0, "input_length": 1, "output_length": 1}], block_size=0)
    assert "mooncake" in reader_names()


def test_a_pipe_is_read_once(tmp_path: Path) -> None:
    import os
    import threading

    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    row = b'{"timestamp": 0, "input_length": 1, "output_length": 1}\n'
    writer = threading.Thread(target=lambda: pipe.write_bytes(row))
    writer.start()
    assert len(load(pipe)) == 1
    writer.join()


def test_a_span_that_64_bits_cannot_hold(read: Any) -> None:
    rows = [{"timestamp": t, "input_length": 1, "output_length": 1} for t in (0, 10**10)]
    read.fails(rows, "64-bit picoseconds")
    assert int(read(rows, time_unit="us").arrival[1]) == 10**16


def test_all_wait_and_no_arrival(read: Any) -> None:
    row = {"prompt_tokens": 1, "output_tokens": 1}
    rows = [{**row, "id": 0, "after": [1]}, {**row, "id": 1, "after": [0]}]
    document = {"format": "vtsim-trace", "version": 1, "requests": rows}
    read.fails(json.dumps(document), "no request has an arrival")
    assert NO_ARRIVAL == -1
