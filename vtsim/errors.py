"""The error tree. Users are answered with one of these; `assert` is for impossibilities.

The command line prints the message in one line and exits with status 2; see `vtsim.cli.main`.
"""

from __future__ import annotations

from pathlib import Path


class VtsimError(Exception):
    """Base of everything vtsim raises on purpose."""


class ConfigError(VtsimError):
    """An option, a profile or a combination of them that cannot be run."""


class TraceFormatError(VtsimError):
    """A trace that cannot be read: says which file, line, field and value.

    `line` is the physical line, counted from 1 (blank lines, BOM and CRLF included), or None where
    the file as a whole is meant. `field` is a column or a path such as `requests[3].arrival_s`.
    """

    def __init__(
        self,
        message: str,
        *,
        path: str | Path | None = None,
        line: int | None = None,
        column: int | None = None,
        field: str | None = None,
        value: object = None,
    ) -> None:
        self.message = message
        self.path = None if path is None else str(path)
        self.line = line
        self.column = column
        self.field = field
        self.value = value
        where = self.path or "trace"
        if line is not None:
            where += f":{line}"
            if column is not None:
                where += f":{column}"
        parts = [where]
        if field is not None:
            parts.append(field)
        text = ": ".join([*parts, message])
        if value is not None:
            shown = repr(value)
            text += f" (got {shown if len(shown) <= 80 else shown[:77] + '...'})"
        super().__init__(text)


class CapacityError(VtsimError):
    """The GPU is too small for what must be on it; the message says how much is missing."""


class BackendError(VtsimError):
    """A memory backend failed in a way that is not plain shortage."""


class CudaDriverError(BackendError):
    """A CUDA driver call returned an error status.

    `name` is the status (`CUDA_ERROR_INVALID_VALUE`), `call` the call with its arguments.
    """

    def __init__(self, name: str, call: str) -> None:
        self.name = name
        self.call = call
        super().__init__(f"{call} returned {name}")


class InvariantError(VtsimError):
    """A named invariant does not hold: always a fault of a policy, a backend or the engine."""

    def __init__(self, invariant: str, detail: str) -> None:
        self.invariant = invariant
        self.detail = detail
        super().__init__(f"invariant {invariant} broken: {detail}")
