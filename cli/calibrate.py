"""`vtsim calibrate`: measure this machine and write what was found into a profile."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from vtsim.cli.state import Debug

app = typer.Typer(help="Measure this machine and write a GPU profile.", no_args_is_help=True)


@app.callback()
def _group() -> None:
    """Keeps `memory` a word of its own."""


@app.command()
def memory(
    output: Annotated[str, typer.Argument(metavar="FILE", help="Where to write the TOML profile.")],
    base: Annotated[
        str | None,
        typer.Option(
            help="A profile, by name or path, for all that is not measured. "
            "[default: the one the card's name says]"
        ),
    ] = None,
    name: Annotated[
        str | None, typer.Option(help="The profile's name. [default: the file's]")
    ] = None,
    device: Annotated[int, typer.Option(help="The card's number.")] = 0,
    debug: Debug = False,
) -> None:
    """Measure a card's memory: capacity, context, VMM calls, ordinary allocations."""
    from vtsim.backends.cuda.calibrate import measure, profile_text
    from vtsim.backends.cuda.doctor import profile_for
    from vtsim.backends.cuda.driver import open_driver
    from vtsim.backends.gpus import PROFILES, gpus, load_gpu
    from vtsim.errors import ConfigError
    from vtsim.metrics.output import check_file, write_text

    check_file(output)
    if base is not None:
        load_gpu(base)
    driver = open_driver(device)
    try:
        if base is None:
            known = profile_for(driver.name, gpus())
            if known is None:
                raise ConfigError(f"no profile is for {driver.name}: name one with --base")
            base = known.name
        measured = measure(driver)
    finally:
        driver.close()
    path = Path(base)
    shipped = PROFILES / f"{base}.toml"
    text = profile_text(shipped if shipped.is_file() else path, name or Path(output).stem, measured)
    write_text(output, text)
