"""The memory worker: one thread that makes the driver calls, while others launch and decide.

Jobs run strictly in order. The thread sets the device's context once, blocks on its queue instead
of spinning, and hands each job's result or error to whoever asks for it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any

from vtsim.backends.cuda.driver import CudaDriver


class Job:
    """One thing to do: done when `result` returns or raises."""

    __slots__ = ("_done", "_error", "_run", "_value")

    def __init__(self, run: Callable[[], Any]) -> None:
        self._run = run
        self._done = threading.Lock()
        self._done.acquire()
        self._value: Any = None
        self._error: BaseException | None = None

    def execute(self) -> None:
        try:
            self._value = self._run()
        except BaseException as error:  # told to whoever asks for the result
            self._error = error
        self._done.release()

    def wait(self) -> None:
        """Blocks until the job is done, however it went."""
        self._done.acquire()
        self._done.release()

    def result(self) -> Any:
        """Blocks until the job is done; raises what it raised."""
        self.wait()
        if self._error is not None:
            raise self._error
        return self._value


class Worker:
    """The thread. It ends with `close`, after the jobs it was given."""

    def __init__(self, driver: CudaDriver, name: str = "vtsim-memory") -> None:
        self._driver = driver
        self._jobs: SimpleQueue[Job | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._work, name=name, daemon=True)
        self._thread.start()

    def submit(self, run: Callable[[], Any]) -> Job:
        """Queue a job; returns at once."""
        job = Job(run)
        self._jobs.put(job)
        return job

    def do(self, run: Callable[[], Any]) -> Any:
        """Queue a job and wait for it: behind all that was queued before."""
        return self.submit(run).result()

    def close(self) -> None:
        if self._thread.is_alive():
            self._jobs.put(None)
            self._thread.join()

    def _work(self) -> None:
        self._driver.set_current()
        while True:
            job = self._jobs.get()
            if job is None:
                return
            job.execute()
