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


@app.command("check")
def check(
    policy: Annotated[
        str, typer.Argument(metavar="NAME|FILE.py:Class", help="The policy: as in replay.")
    ],
    setting: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="NAME.PARAM=VALUE", help="A parameter; repeatable."),
    ] = None,
    examples: Annotated[
        int, typer.Option(metavar="N", help="Examples a check; costly checks take fewer.")
    ] = 40,
    seed: Annotated[int, typer.Option(metavar="N", help="Draws the examples.")] = 0,
    only: Annotated[
        list[str] | None, typer.Option(metavar="CHECK", help="This check only; repeatable.")
    ] = None,
    example: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="One saved example instead; with --only CHECK."),
    ] = None,
    save: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Write the failing example, as a native trace."),
    ] = None,
    json: Annotated[
        str | None,
        typer.Option("--json", metavar="FILE", help="Write the JSON document; - is stdout."),
    ] = None,
    debug: Debug = False,
) -> None:
    """Hold a policy to the contract of policies; status 1 if a check fails.

    A check that fails prints the clause that is broken, where, and the smallest example found.
    """
    from vtsim.cli.policy_check import run_checks

    passed = run_checks(
        policy,
        setting or [],
        examples=examples,
        seed=seed,
        only=only or [],
        example=example,
        save=save,
        json=json,
        debug=debug,
    )
    if not passed:
        raise typer.Exit(1)
