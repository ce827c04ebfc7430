"""`vtsim policy`: write a new policy, and hold one to its contract."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from vtsim.cli.state import Debug

app = typer.Typer(
    help="Write a memory policy and hold it to its contract. (`vtsim policies` lists those there "
    "are.)",
    no_args_is_help=True,
    rich_markup_mode=None,
)


@app.command("new")
def new(
    name: Annotated[str, typer.Argument(metavar="NAME", help="What the policy will be called.")],
    out: Annotated[
        Path | None, typer.Option(metavar="DIR", help="The folder to make. [default: ./NAME]")
    ] = None,
    debug: Debug = False,
) -> None:
    """Write a small package with a policy that works, to be changed into yours."""
    from vtsim.cli.scaffold import write_package

    folder = Path(name) if out is None else out
    written = write_package(name, folder)
    print(f"{folder}: {', '.join(written)}")
    print(f"next: pip install --no-deps --editable {folder}")
    print(f"      vtsim policy check {name}")
