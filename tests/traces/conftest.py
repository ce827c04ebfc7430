"""What the tests of readers share."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from vtsim.request import Trace
from vtsim.traces import load


@pytest.fixture
def read(tmp_path: Path) -> Any:
    """Reads what is written to a file: text, bytes, or rows as JSON lines."""

    def reader(content: str | bytes | list[dict[str, Any]], **options: Any) -> Trace:
        path = tmp_path / "trace"
        if isinstance(content, list):
            content = "\n".join(json.dumps(row) for row in content)
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return load(path, **options)

    return reader
