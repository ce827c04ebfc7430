"""The readers by name, and which one a file is for.

A reader is an object with the attributes of `TraceReader`, registered under its name as an entry
point of group `vtsim.readers`; those of this package are also listed here, so that a checkout works
uninstalled. Modules are imported when their reader is asked, not before.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache, cached_property
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Protocol

from vtsim.errors import ConfigError, TraceFormatError
from vtsim.request import Trace
from vtsim.traces.csvtable import delimiter_of
from vtsim.traces.firstkeys import first_keys
from vtsim.traces.number import one_line
from vtsim.traces.schedule import Schedule
from vtsim.traces.source import HEAD_BYTES, Source

GROUP = "vtsim.readers"
BLOCK_SIZE = {"block_size": "tokens that a hash id stands for"}
"""For `options` of readers of hash ids."""

_MOST_PARTS = 20
"""Files of a folder that detection looks at."""
_BUILT_IN = {
    "native": "vtsim.traces.native:READER",
    "weka": "vtsim.traces.weka:READER",
    "dynamo": "vtsim.traces.dynamo:READER",
    "copilot": "vtsim.traces.copilot:READER",
    "servegen": "vtsim.traces.servegen:READER",
    "bailian": "vtsim.traces.bailian:READER",
    "llmservingsim-bench": "vtsim.traces.measured:SERVINGSIM_BENCH",
    "llmservingsim": "vtsim.traces.servingsim:READER",
    "aiperf-results": "vtsim.traces.measured:AIPERF_RESULTS",
    "vllm-bench": "vtsim.traces.measured:VLLM_BENCH",
    "tracelab": "vtsim.traces.tracelab:READER",
    "burstgpt": "vtsim.traces.burstgpt:READER",
    "azure": "vtsim.traces.azure:READER",
    "splitwise": "vtsim.traces.columns:SPLITWISE",
    "vidur": "vtsim.traces.columns:VIDUR",
    "vidur-lengths": "vtsim.traces.columns:LENGTHS",
    "otel": "vtsim.traces.otel:READER",
    "sglang-agentic": "vtsim.traces.sglang:READER",
    "sharegpt": "vtsim.traces.sharegpt:READER",
    "mooncake": "vtsim.traces.mooncake:READER",
    "prompts": "vtsim.traces.prompts:READER",
}
"""In the order of detection: the more particular first."""


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """What a user may tell a reader. `named` holds the options that the reader declares."""

    block_size: int | None = None
    schedule: Schedule | None = None
    """How requests without an arrival are to arrive."""
    named: Mapping[str, object] = field(default_factory=dict)

    def text(self, name: str, default: str, allowed: tuple[str, ...]) -> str:
        """A choice among `allowed`."""
        value = self.named.get(name)
        if value is None:
            return default
        if value not in allowed:
            raise ConfigError(f"{name} {value!r} is not one of {', '.join(allowed)}")
        return str(value)

    def flag(self, name: str) -> bool:
        return bool(self.named.get(name, False))


class TraceReader(Protocol):
    """Reads one format. Stateless; one instance serves all files."""

    name: str
    summary: str
    """One line: what it reads."""
    options: Mapping[str, str]
    """Name -> one line of help, of the options that `read` understands: `ReadOptions.named`, and
    `block_size` where the format has hash ids. Others are refused."""

    def detects(self, head: Head) -> bool:
        """True if the start of a file can only be, or is best read as, this format."""
        ...

    def read(self, source: Source, options: ReadOptions) -> Trace:
        """The whole trace. Raises TraceFormatError (a ConfigError for options that cannot be)."""
        ...


class Head:
    """What detection may look at: the start of a file, as text, keys and header cells."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self.is_dir = source.is_dir
        self.name = source.name
        self.text = ""
        if not source.is_dir:
            self.text = (
                source.head_bytes.removeprefix(b"\xef\xbb\xbf").decode(errors="replace").lstrip()
            )
        self.is_json = self.text.startswith(("{", "["))
        self.first = _first_object(self.text) if self.is_json else None
        """The first JSON object (in an array: its first element), None if cut off or broken."""
        line = "" if self.is_json else self.text.split("\n", 1)[0]
        self.header = tuple(
            cell.strip().strip('"').lower() for cell in line.split(delimiter_of(line))
        )

    @cached_property
    def keys(self) -> frozenset[str]:
        """Keys of the first object; where it is too long to find its end, of all objects at the
        start."""
        if not self.is_json:
            return frozenset()
        if self.first is not None:
            return frozenset(self.first)
        at_start = frozenset(re.findall(r'"([^"\\]+)"\s*:', self.text))
        if len(self._source.head_bytes) < HEAD_BYTES:
            return at_start
        with self._source.open() as stream:
            found, whole = first_keys(stream)
        return found if whole else found | at_start

    def parts(self) -> list[Head]:
        """Of a folder, those of its first JSON files; files that are no text are left out."""
        found = []
        for path in self._source.files()[:_MOST_PARTS] if self.is_dir else ():
            try:
                found.append(Head(Source(path)))
            except TraceFormatError:
                continue
        return found

    def has(self, *keys: str) -> bool:
        return self.keys.issuperset(keys)

    def has_any(self, *keys: str) -> bool:
        return not self.keys.isdisjoint(keys)

    def columns(self, *names: str) -> int:
        """How many of `names` the CSV header has."""
        return sum(name.lower() in self.header for name in names)


def _first_object(text: str) -> dict[str, object] | None:
    try:
        value, _ = json.JSONDecoder().raw_decode(text.lstrip("[ \t\r\n"))
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


@cache
def _plugged() -> dict[str, EntryPoint]:
    """Readers that other packages register; looking for them costs more than reading a trace."""
    found = {point.name: point for point in entry_points(group=GROUP)}
    return {name: found[name] for name in sorted(found) if name not in _BUILT_IN}


def reader_names() -> list[str]:
    """Names that `--from` takes, in the order of detection, plug-ins first."""
    return [*_plugged(), *_BUILT_IN]


def get_reader(name: str) -> TraceReader:
    """The reader of that name; ConfigError with the known names if there is none."""
    if name in _plugged():
        try:
            loaded: TraceReader = _plugged()[name].load()
        except Exception as error:
            raise ConfigError(f"trace reader {name!r} cannot be loaded: {error}") from error
        return loaded
    if name not in _BUILT_IN:
        raise ConfigError(f"unknown trace format {name!r}; known: {', '.join(reader_names())}")
    module, attribute = _BUILT_IN[name].split(":")
    reader: TraceReader = getattr(import_module(module), attribute)
    return reader


def detect(source: Source) -> TraceReader:
    """The reader for this file, by its content; TraceFormatError with what was seen if none."""
    head = Head(source)
    for name in reader_names():
        if name == next(iter(_BUILT_IN)):  # plug-ins have been asked
            _check_is_read(head, source)
        reader = get_reader(name)
        if reader.detects(head):
            return reader
    if head.is_dir:
        raise _no_folder(head, source)
    raise TraceFormatError(
        one_line(
            f"not a known trace format ({_seen(head)}); --from takes {', '.join(reader_names())}"
        ),
        path=source.path,
        line=1,
    )


def _seen(head: Head) -> str:
    if head.is_json:
        return f"JSON with keys {', '.join(sorted(head.keys)[:12]) or '(none)'}"
    first = head.text.split("\n", 1)[0].strip()
    return f"first line {first[:80]!r}"


def _no_folder(head: Head, source: Source) -> TraceFormatError:
    """Says what a folder may hold."""
    said = "a folder is read as kv-cache-tester (weka) conversations, JSON files with requests"
    files, parts = source.files(), head.parts()
    if not files:
        said += ", and this one has no .json or .jsonl file: name one file"
    else:
        shown = f" ({parts[0].name}: {_seen(parts[0])})" if parts else _why_not(files[0])
        said += f", and none of its {len(files)} JSON files is one{shown}: name one file"
    return TraceFormatError(one_line(said), path=source.path)


def _why_not(path: Path) -> str:
    """What a file that cannot be looked at is."""
    try:
        Source(path)
    except TraceFormatError as error:
        return f" ({path.name} {error.message})"
    return ""


def _check_is_read(head: Head, source: Source) -> None:
    """TraceFormatError for a format that is known by its marks and that no reader takes."""
    marks = {
        "BLIS (inference-sim) TraceV2": head.text.startswith("trace_version:")
        or head.columns("server_input_tokens", "arrival_time_us", "num_chunks") == 3,
        "an aibrix workload": head.has_any("requests", "Requests")
        and any(f'"{key}"' in head.text for key in ("Prompt Length", "prompt_length")),
        "LMBenchmark's agentic rounds": head.has("round_id", "agent_id", "input_from"),
        "a Dynamo agentic_mooncake file of version 2, whose rows state dependencies": (
            '"dynamo.agentic_mooncake"' in head.text and head.has("schema")
        ),
    }
    for what, found in marks.items():
        if found:
            raise TraceFormatError(
                f"is {what}, which no reader takes; convert it to the Mooncake or the native form "
                "(docs/traces/index.md)",
                path=source.path,
                line=1,
            )
