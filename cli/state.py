"""What a command knows of the one invocation it belongs to; held by typer's context."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import typer


@dataclass(slots=True)
class State:
    """Set by `vtsim.cli.main`."""

    debug: bool = False


Debug = Annotated[
    bool, typer.Option("--debug", help="Show a traceback with an error.", show_default=False)
]
"""Accepted behind a command too; `vtsim.cli.main` looks for it before anything is parsed."""
