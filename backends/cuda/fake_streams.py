"""Streams and events of the fake driver: queues whose work runs at once unless something waits.

Work is a function; a stream runs its queue in order, on whatever thread gets there, and stops at
work that waits for an event or for a test to let a spinning kernel end.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from vtsim.backends.cuda.fake_types import CUresult

DEFAULT = 0


@dataclass
class _Work:
    run: Callable[[], None] | None
    until: threading.Event | None = None
    """Set when a spinning kernel may end."""
    event: int | None = None
    """Work that waits for the event's n-th recording."""
    recording: int = 0


@dataclass
class _Event:
    recorded: int = 0
    done: int = 0


@dataclass
class _Stream:
    queue: deque[_Work] = field(default_factory=deque)


class Streams:
    """All streams and events of the device; the default stream is 0 and always there."""

    def __init__(self, lock: threading.RLock) -> None:
        self._lock = lock
        self._streams: dict[int, _Stream] = {DEFAULT: _Stream()}
        self._events: dict[int, _Event] = {}
        self._next = 1

    @property
    def stream_count(self) -> int:
        return len(self._streams) - 1

    @property
    def event_count(self) -> int:
        return len(self._events)

    def known(self, stream: int) -> bool:
        return stream in self._streams

    def create_stream(self) -> int:
        self._next += 1
        self._streams[self._next] = _Stream()
        return self._next

    def destroy_stream(self, stream: int) -> bool:
        """Its work still runs, as on a card: here, before the call returns."""
        if stream == DEFAULT or stream not in self._streams:
            return False
        self._wait(lambda: not self._streams[stream].queue)
        del self._streams[stream]
        return True

    def create_event(self) -> int:
        self._next += 1
        self._events[self._next] = _Event()
        return self._next

    def destroy_event(self, event: int) -> bool:
        return self._events.pop(event, None) is not None

    def enqueue(
        self, stream: int, run: Callable[[], None], until: threading.Event | None = None
    ) -> None:
        with self._lock:
            self._streams[stream].queue.append(_Work(run, until))
            self.drain_all()

    def record(self, event: int, stream: int) -> bool:
        found = self._events.get(event)
        if found is None or stream not in self._streams:
            return False
        found.recorded += 1
        number = found.recorded

        def reached() -> None:
            found.done = max(found.done, number)

        self.enqueue(stream, reached)
        return True

    def wait_event(self, stream: int, event: int) -> bool:
        found = self._events.get(event)
        if found is None or stream not in self._streams:
            return False
        self._streams[stream].queue.append(_Work(None, event=event, recording=found.recorded))
        self.drain_all()
        return True

    def event_done(self, event: int) -> bool | None:
        """None: no such event. One never recorded counts as done, as on a card."""
        self.drain_all()
        found = self._events.get(event)
        return None if found is None else found.done >= found.recorded

    def synchronize(self, stream: int) -> None:
        self._wait(lambda: stream not in self._streams or not self._streams[stream].queue)

    def synchronize_event(self, event: int) -> None:
        self._wait(lambda: self.event_done(event) is not False)

    def wait_idle(self) -> None:
        self._wait(lambda: not any(stream.queue for stream in self._streams.values()))

    def drain_all(self) -> None:
        """Run whatever can run now, on all streams."""
        with self._lock:
            moved = True
            while moved:
                moved = any([self._drain(stream) for stream in list(self._streams.values())])

    def _drain(self, stream: _Stream) -> bool:
        moved = False
        while stream.queue:
            work = stream.queue[0]
            if work.until is not None and not work.until.is_set():
                break
            if work.event is not None:
                awaited = self._events.get(work.event)
                if awaited is not None and awaited.done < work.recording:
                    break
            stream.queue.popleft()
            moved = True
            if work.run is not None:
                work.run()
        return moved

    def _wait(self, done: Callable[[], bool]) -> None:
        """Block the calling thread until `done`: nobody tells when a test lets a kernel end."""
        while True:
            with self._lock:
                self.drain_all()
                if done():
                    return
            time.sleep(0.0002)


Result = tuple[Any, ...]
OK = CUresult.CUDA_SUCCESS
_BAD_HANDLE = CUresult.CUDA_ERROR_INVALID_HANDLE


class StreamCalls:
    """The driver's functions on streams and events, as they are called."""

    streams: Streams
    failure: CUresult | None

    def _has_context(self) -> bool:
        raise NotImplementedError

    def cuStreamCreate(self, flags: int) -> Result:
        if not self._has_context():
            return CUresult.CUDA_ERROR_INVALID_CONTEXT, None
        return OK, self.streams.create_stream()

    def cuStreamDestroy(self, stream: int) -> Result:
        return (OK,) if self.streams.destroy_stream(stream) else (_BAD_HANDLE,)

    def cuStreamSynchronize(self, stream: int) -> Result:
        if not self.streams.known(stream):
            return (_BAD_HANDLE,)
        self.streams.synchronize(stream)
        return (self.failure or OK,)

    def cuStreamWaitEvent(self, stream: int, event: int, flags: int) -> Result:
        done = self.streams.wait_event(stream, event)
        return (OK,) if done else (_BAD_HANDLE,)

    def cuEventCreate(self, flags: int) -> Result:
        if not self._has_context():
            return CUresult.CUDA_ERROR_INVALID_CONTEXT, None
        return OK, self.streams.create_event()

    def cuEventDestroy(self, event: int) -> Result:
        return (OK,) if self.streams.destroy_event(event) else (_BAD_HANDLE,)

    def cuEventRecord(self, event: int, stream: int) -> Result:
        return (OK,) if self.streams.record(event, stream) else (_BAD_HANDLE,)

    def cuEventQuery(self, event: int) -> Result:
        done = self.streams.event_done(event)
        if done is None:
            return (_BAD_HANDLE,)
        return (OK,) if done else (CUresult.CUDA_ERROR_NOT_READY,)

    def cuEventSynchronize(self, event: int) -> Result:
        if self.streams.event_done(event) is None:
            return (_BAD_HANDLE,)
        self.streams.synchronize_event(event)
        return (self.failure or OK,)
