"""The fence: nothing that a kernel may still read is unmapped or freed before the kernel has ended.

The driver does not care (an unmap succeeds at once and the reader dies), so whoever launches
kernels says here what they use, and whoever takes memory away waits here first. It must not know
chunks, plans or steps.
"""

from __future__ import annotations

import threading
from collections.abc import Hashable, Iterable
from typing import Any

from vtsim.backends.cuda.driver import CudaDriver


class _Recorded:
    """One event, shared by all that the kernels before it use."""

    __slots__ = ("event", "users")

    def __init__(self, event: Any, users: int) -> None:
        self.event = event
        self.users = users


class Fence:
    """Last use of each thing by each stream. `protect` and waits may be on different threads."""

    def __init__(self, driver: CudaDriver) -> None:
        self._driver = driver
        self._lock = threading.Lock()
        self._uses: dict[Hashable, dict[Any, _Recorded]] = {}
        self._idle: list[Any] = []
        self.waits = 0
        """Times that something had to wait for a kernel still running."""

    @property
    def active(self) -> bool:
        """True if anything was protected since it was last waited for."""
        return bool(self._uses)

    def protect(self, stream: Any, things: Iterable[Hashable]) -> None:
        """The work enqueued on `stream` so far may use `things`; later work says so itself."""
        names = list(things)
        if not names:
            return
        with self._lock:
            event = self._idle.pop() if self._idle else self._driver.create_event()
            self._driver.record_event(event, stream)
            recorded = _Recorded(event, len(names))
            key = stream if isinstance(stream, int) else int(stream)
            for name in names:
                uses = self._uses.setdefault(name, {})
                earlier = uses.get(key)
                uses[key] = recorded  # later on the same stream: it covers the earlier
                if earlier is not None:
                    self._let_go(earlier)

    def wait(self, thing: Hashable) -> None:
        """Block until the kernels that may use `thing` have ended."""
        with self._lock:
            uses = self._uses.pop(thing, None)
        if uses is None:
            return
        for recorded in uses.values():
            if not self._driver.event_done(recorded.event):
                self.waits += 1
                self._driver.synchronize_event(recorded.event)
        with self._lock:
            for recorded in uses.values():
                self._let_go(recorded)

    def order(self, stream: Any, thing: Hashable) -> None:
        """Work enqueued on `stream` from now on runs after the kernels that may use `thing`."""
        with self._lock:
            for recorded in self._uses.get(thing, {}).values():
                self._driver.wait_event(stream, recorded.event)

    def wait_all(self) -> None:
        """Block until every protected thing is free."""
        for thing in list(self._uses):
            self.wait(thing)

    def _let_go(self, recorded: _Recorded) -> None:
        recorded.users -= 1
        if not recorded.users:
            self._idle.append(recorded.event)

    def close(self) -> None:
        """Give the events back; waits for all."""
        self.wait_all()
        while self._idle:
            self._driver.destroy_event(self._idle.pop())
