"""`vtsim explain RUN --request ID`: what was decided about one request, and why."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from vtsim.cli.state import Debug


def explain(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A folder that --out has written.")],
    request: Annotated[str, typer.Option(metavar="ID", help="The request's id in the trace.")],
    policy: Annotated[
        str | None, typer.Option(metavar="NAME", help="One policy only. [default: all of the run]")
    ] = None,
    debug: Debug = False,
) -> None:
    """Say why a request waited, was preempted or missed its prefix."""
    from vtsim.report import explain as story

    for line in story.explain(run, request, policy):
        print(line)
