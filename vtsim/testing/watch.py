"""A limit on the processor time of what may never end, such as a policy's call."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from types import FrameType

from vtsim.testing.contracts import ContractError

CALL_SECONDS = 5.0
"""For one call of a policy, with all that is checked behind it; a usual one takes milliseconds."""
RUN_SECONDS = 20.0
"""For one run of a small case; a usual one takes a tenth of a second."""
_shorter: ContextVar[float] = ContextVar("shorter", default=1.0)


class Overtime(BaseException):
    """Raised in what takes too long. No `Exception`, which the watched code may swallow."""


@contextmanager
def at_most(seconds: float, what: str) -> Iterator[None]:
    """Ends what takes longer, and raises ContractError (answers-in-time).

    Processor time of this process counts, so a busy machine does no harm; what sleeps is not
    noticed. Only the main thread is watched: signals arrive there. Limits do not nest.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    seconds *= _shorter.get()

    def over(number: int, frame: FrameType | None) -> None:
        raise Overtime

    before = signal.signal(signal.SIGVTALRM, over)
    signal.setitimer(signal.ITIMER_VIRTUAL, seconds, 1.0)  # again, should it be swallowed
    try:
        yield
    except Overtime as error:
        raise ContractError(
            "answers-in-time", f"{what} had not ended after {seconds:g} s of processor time"
        ) from error
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0.0)
        signal.signal(signal.SIGVTALRM, before)


@contextmanager
def patience(share: float) -> Iterator[None]:
    """All limits inside are shorter by this factor: for what is known to hang."""
    token = _shorter.set(_shorter.get() * share)
    try:
        yield
    finally:
        _shorter.reset(token)
