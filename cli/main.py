"""`vtsim`: runs a command, and answers every error in one line.

Errors end with 2, Ctrl-C with 130, other signals with 128 + their number, a closed pipe quietly, as
a shell expects. A traceback is shown with `--debug` only. Everything heavy is imported inside the
guarded part, so that an early Ctrl-C is answered alike.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Sequence
from types import FrameType, TracebackType
from typing import NoReturn

USAGE_ERROR = 2
INTERRUPTED = 130
BROKEN_PIPE = 141


class Terminated(BaseException):
    """SIGTERM or SIGHUP: unwinds like Ctrl-C, so that nothing half-written stays behind. No
    `KeyboardInterrupt`, which typer would answer for us, forgetting which signal it was."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.number = number


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line and exit. `arguments` default to the process's own."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is signal.SIG_DFL:
            signal.signal(number, _terminate)
    sys.exit(run(sys.argv[1:] if arguments is None else list(arguments)))


def _terminate(number: int, frame: FrameType | None) -> NoReturn:
    raise Terminated(number)


def run(arguments: Sequence[str]) -> int:
    """Run one command; returns the exit status."""
    debug = "--debug" in arguments
    if sys.stdout is None:
        return _fail("standard output is closed", debug, USAGE_ERROR)
    try:
        return _run(list(arguments), debug)
    except SystemExit as closed:  # typer's answer to a closed pipe, already quiet
        return BROKEN_PIPE if closed.code == 1 else int(closed.code or 0)
    except BrokenPipeError:
        _give_up_stdout()
        return BROKEN_PIPE
    except Terminated as terminated:
        return _fail("terminated", debug, 128 + terminated.number)
    except KeyboardInterrupt:
        return _fail("interrupted", debug, INTERRUPTED)
    except OSError as error:
        if error.filename is None:  # standard output is all that is written to without a name
            _give_up_stdout()
        where = "standard output" if error.filename is None else os.fspath(error.filename)
        return _fail(f"{where}: {error.strerror or error}", debug, USAGE_ERROR)
    except Exception as error:
        if type(error).__name__ == "NoArgsIsHelpError":  # a bare group: its help, as it is
            print(error.format_message(), file=sys.stderr)  # type: ignore[attr-defined]
            return USAGE_ERROR
        return _fail(_say(error), debug, USAGE_ERROR)


def _run(arguments: list[str], debug: bool) -> int:
    from vtsim.cli.app import app
    from vtsim.cli.state import State

    if hasattr(sys.stdout, "reconfigure"):
        sys.stdout.reconfigure(errors="replace")
    status = app(arguments, prog_name="vtsim", standalone_mode=False, obj=State(debug=debug))
    sys.stdout.flush()
    if status == INTERRUPTED:  # typer has caught it
        raise KeyboardInterrupt
    return status if isinstance(status, int) else 0


def _say(error: Exception) -> str:
    """What went wrong, for one line."""
    from vtsim.errors import VtsimError

    if isinstance(error, VtsimError):
        return str(error)
    if type(error).__name__ == "Abort":
        return "interrupted"
    # typer brings its own click since 0.16: its usage errors are told by what they offer.
    message = getattr(error, "format_message", None)
    if message is not None:
        context = getattr(error, "ctx", None)
        hint = f" (see '{context.command_path} --help')" if context is not None else ""
        return str(message()) + hint
    # Not foreseen: say where. In a plug-in's file, that is where its author has to look.
    name, line, function = _place(error.__traceback__)
    words = str(error) or "no message"
    return f"{name}:{line} in {function}: {type(error).__name__}: {words} (--debug tells more)"


def _place(trace: TracebackType | None) -> tuple[str, int, str]:
    """(file, line, function) of the innermost frame, or of the innermost in a plug-in."""
    place = ("vtsim", 0, "?")
    in_plugin = False
    while trace is not None:
        frame = trace.tb_frame
        plugin = str(frame.f_globals.get("__name__", "")).startswith("vtsim_plugin_")
        if plugin or not in_plugin:
            code = frame.f_code
            place = (os.path.basename(code.co_filename), trace.tb_lineno, code.co_name)
            in_plugin = plugin
        trace = trace.tb_next
    return place


def _fail(message: str, debug: bool, status: int) -> int:
    """One line on standard error, whatever the message holds."""
    if debug and sys.exc_info()[0] is not None:
        import traceback

        traceback.print_exc()
    if sys.stderr is not None:
        print("vtsim: " + " ".join(message.split()), file=sys.stderr)
    return status


def _give_up_stdout() -> None:
    """Nobody reads: keep Python from complaining when it flushes at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


if __name__ == "__main__":
    main()
