"""The commands of `vtsim`, put together. `vtsim.cli.main` runs them and answers their errors."""

from __future__ import annotations

import importlib.util
from typing import Annotated

import typer

import vtsim
from vtsim.cli import calibrate, diff, doctor, explain, gpus, models, policies, policy, replay
from vtsim.cli.once import Once

USAGE_ERROR = 2

app = typer.Typer(
    name="vtsim",
    help="Replay LLM request traces against KV-cache memory policies.",
    invoke_without_command=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command("replay")(replay.replay)
app.command("explain")(explain.explain)
app.command("diff")(diff.diff)
app.command("policies")(policies.policies)
app.add_typer(policy.app, name="policy")
app.command("models")(models.models)
app.command("gpus")(gpus.gpus)
app.command("doctor")(doctor.doctor)
app.add_typer(calibrate.app, name="calibrate")
if importlib.util.find_spec("vtsim.cli.trace") is not None:
    from vtsim.cli.trace import app as trace_app

    app.add_typer(trace_app, name="trace")
for each in (app, *(group.typer_instance for group in app.registered_groups)):
    for command in each.registered_commands if each is not None else ():
        command.cls = Once


def _version(asked: bool) -> None:
    if asked:
        print(f"vtsim {vtsim.__version__}")
        raise typer.Exit


@app.callback()
def root(
    context: typer.Context,
    debug: Annotated[bool, typer.Option("--debug", help="Show a traceback with an error.")] = False,
    version: Annotated[
        bool,
        typer.Option("--version", help="Show the version.", callback=_version, is_eager=True),
    ] = False,
) -> None:
    if context.invoked_subcommand is None:
        print(context.get_help())
        raise typer.Exit(USAGE_ERROR)
