"""Where in a policy's own file something went wrong, as far as that can be told."""

from __future__ import annotations

import inspect
import os
from types import CodeType, TracebackType
from typing import Any

import vtsim.policies.base


def place(error: BaseException, policy_class: Any) -> str:
    """`file:line in Class.method` of the innermost call in the policy's file, else of the method
    that the error is about; "" if neither is known. The class's own file goes before those it
    derives from."""
    files = [file for file in map(_file, inspect.getmro(policy_class)) if file]
    for file in dict.fromkeys(files):
        for raised in (error, error.__cause__):
            code, line = _innermost(getattr(raised, "__traceback__", None), file)
            if code is not None:
                return f"{_shown(file)}:{line} in {code.co_qualname}"
    method = getattr(policy_class, getattr(error, "method", "") or "-", None)
    code = getattr(method, "__code__", None)
    if code is not None:
        return f"{_shown(code.co_filename)}:{code.co_firstlineno} in {code.co_qualname}"
    return ""


def _file(kind: type) -> str:
    try:
        file = inspect.getfile(kind)
    except (TypeError, OSError):
        return ""
    return "" if file == vtsim.policies.base.__file__ else file


def _innermost(trace: TracebackType | None, file: str) -> tuple[CodeType | None, int]:
    found: CodeType | None = None
    line = 0
    while trace is not None:
        code = trace.tb_frame.f_code
        if code.co_filename == file:
            found, line = code, trace.tb_lineno
        trace = trace.tb_next
    return found, line


def _shown(file: str) -> str:
    relative = os.path.relpath(file)
    return file if relative.startswith("..") else relative
