"""`vtsim`: puts the commands together, and answers errors in one line with exit status 2.

Ctrl-C ends with 130, a closed pipe quietly, as a shell expects. A traceback is shown with
`--debug` only.
"""

from __future__ import annotations

import importlib.util
import os
import sys
import traceback
from collections.abc import Sequence
from typing import Annotated

import typer

import vtsim
from vtsim.cli import calibrate, doctor, explain, gpus, models, policies, replay
from vtsim.cli.state import State
from vtsim.errors import VtsimError

USAGE_ERROR = 2
INTERRUPTED = 130
BROKEN_PIPE = 141

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
app.command("policies")(policies.policies)
app.command("models")(models.models)
app.command("gpus")(gpus.gpus)
app.command("doctor")(doctor.doctor)
app.add_typer(calibrate.app, name="calibrate")
if importlib.util.find_spec("vtsim.cli.trace") is not None:
    from vtsim.cli.trace import app as trace_app

    app.add_typer(trace_app, name="trace")


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


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line and exit. `arguments` default to the process's own."""
    sys.exit(run(sys.argv[1:] if arguments is None else list(arguments)))


def run(arguments: Sequence[str]) -> int:
    """Run one command; returns the exit status."""
    state = State(debug="--debug" in arguments)
    try:
        status = app(list(arguments), prog_name="vtsim", standalone_mode=False, obj=state)
        sys.stdout.flush()
    except SystemExit as closed:  # typer's answer to a closed pipe, already quiet
        return BROKEN_PIPE if closed.code == 1 else int(closed.code or 0)
    except BrokenPipeError:
        _give_up_stdout()
        return BROKEN_PIPE
    except (KeyboardInterrupt, typer.Abort):
        return _fail("interrupted", state, INTERRUPTED)
    except VtsimError as error:
        return _fail(str(error), state, USAGE_ERROR)
    except Exception as error:
        # typer brings its own click since 0.16: its usage errors are told by what they offer.
        message = getattr(error, "format_message", None)
        if message is None:
            raise
        context = getattr(error, "ctx", None)
        hint = f" (see '{context.command_path} --help')" if context is not None else ""
        return _fail(message() + hint, state, USAGE_ERROR)
    if status == INTERRUPTED:  # typer has caught it
        return _fail("interrupted", state, INTERRUPTED)
    return status if isinstance(status, int) else 0


def _fail(message: str, state: State, status: int) -> int:
    """One line on standard error, whatever the message holds."""
    if state.debug:
        traceback.print_exc()
    print("vtsim: " + " ".join(message.split()), file=sys.stderr)
    return status


def _give_up_stdout() -> None:
    """Nobody reads: keep Python from complaining when it flushes at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


if __name__ == "__main__":
    main()
