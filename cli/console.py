"""Where commands print: one rich console, and the progress bar of long runs."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from time import monotonic

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
)

from vtsim.api import Progress as Report

PATIENCE_S = 1.0
"""A run shorter than this shows no bar."""


def console(to_stderr: bool = False) -> Console:
    """As wide as the terminal or COLUMNS says; 120 columns where neither does."""
    width = shutil.get_terminal_size((120, 24)).columns
    return Console(file=sys.stderr if to_stderr else sys.stdout, width=width, highlight=False)


@contextmanager
def progress_bar(wanted: bool) -> Iterator[Report | None]:
    """A reporter that draws a bar on standard error, gone when done; None where nobody looks."""
    if not wanted or not sys.stderr.isatty():
        yield None
        return
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
    )
    bar = Progress(*columns, console=Console(stderr=True), transient=True)
    tasks: dict[str, TaskID] = {}
    begun = monotonic()

    def report(label: str, done: int, total: int) -> None:
        if not bar.live.is_started:
            if monotonic() - begun < PATIENCE_S:
                return
            bar.start()
        if label not in tasks:
            tasks[label] = bar.add_task(label, total=total)
        bar.update(tasks[label], completed=done)

    try:
        yield report
    finally:
        if bar.live.is_started:
            bar.stop()
