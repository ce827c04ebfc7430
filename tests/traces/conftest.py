"""What the tests of readers share."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from vtsim.errors import TraceFormatError
from vtsim.request import TICKS_PER_S, Trace
from vtsim.traces import load

Content = str | bytes | list[dict[str, Any]]


class Reader:
    """Reads what is written to a file: text, bytes, or rows as JSON lines."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def __call__(self, content: Content, **options: Any) -> Trace:
        path = self._folder / "trace"
        if isinstance(content, list):
            content = "\n".join(json.dumps(row) for row in content)
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return load(path, **options)

    def fails(self, content: Content, *words: str, **options: Any) -> TraceFormatError:
        """It is refused, with all these words."""
        with pytest.raises(TraceFormatError) as caught:
            self(content, **options)
        for word in words:
            assert word in str(caught.value)
        return caught.value

    def means(self, want: Any) -> None:
        """`want.data` is read as arrivals in seconds, prompts, outputs, and what was dropped and
        moved, that `want` says."""
        trace = self(want.data)
        arrivals = [round(second * TICKS_PER_S) for second in want.arrival_s]
        assert trace.arrival.tolist() == arrivals
        assert trace.prompt_tokens.tolist() == want.prompt
        assert trace.output_tokens.tolist() == want.output
        report = trace.report
        assert (report.dropped, report.rows_moved) == (want.dropped, want.moved)
        assert report.rows_read == report.rows_kept + sum(report.dropped.values())


@pytest.fixture
def read(tmp_path: Path) -> Reader:
    """A `Reader` in a folder of its own."""
    return Reader(tmp_path)
