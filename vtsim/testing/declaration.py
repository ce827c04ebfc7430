"""What a policy says of itself, before it is ever asked for memory."""

from __future__ import annotations

import json
from dataclasses import fields, is_dataclass
from typing import Any

from vtsim.errors import ConfigError
from vtsim.parameters import Parameter, make_parameters, parameters_of
from vtsim.testing.contracts import ContractError, demand
from vtsim.testing.driver import MakePolicy


def check_declaration(make: MakePolicy) -> None:
    """A name, kernels, a lookahead; parameters that are declared once and shown."""
    policy = make(False)
    name = policy.name
    demand(isinstance(name, str) and name, "declared-name", "a policy needs a name")
    demand(
        policy.kernels and all(isinstance(kernel, str) for kernel in policy.kernels),
        "declared-kernels",
        f"{name}: kernels must name at least one kernel family, got {policy.kernels!r}",
    )
    demand(
        type(policy.lookahead) is int and policy.lookahead >= 0,
        "declared-lookahead",
        f"{name}: lookahead {policy.lookahead!r} is not a number of steps",
    )
    demand(
        type(policy.fenced) is bool,
        "declared-fenced",
        f"{name}: fenced {policy.fenced!r} is not a bool",
    )
    demand(
        type(policy.grain_tokens) is int and policy.grain_tokens >= 1,
        "declared-grain",
        f"{name}: grain_tokens {policy.grain_tokens!r} is not a number of tokens",
    )
    declared = getattr(policy, "parameters_type", None)
    if declared is not None:
        _check_declared(name, declared)
    shown = dict(policy.parameters())
    try:
        said = json.loads(json.dumps(shown))
    except (TypeError, ValueError) as error:
        raise ContractError(
            "parameters-shown", f"{name}: parameters are not JSON: {error}", "parameters"
        ) from error
    demand(
        said == shown,
        "parameters-shown",
        f"{name}: parameters change in JSON: {shown} -> {said}",
        "parameters",
    )
    if declared is not None:
        names = [parameter.name for parameter in parameters_of(declared)]
        demand(
            list(shown) == names,
            "parameters-shown",
            f"{name}: declared are {', '.join(names) or 'none'}; shown {', '.join(shown)}",
            "parameters",
        )


def _check_declared(name: str, declared: Any) -> None:
    """Fields of a frozen dataclass with defaults, which `--set` reads back as they are shown."""
    how = getattr(declared, "__dataclass_params__", None)
    frozen = is_dataclass(declared) and getattr(how, "frozen", False)
    demand(frozen, "parameters-typed", f"{name}: {declared.__name__} is not a frozen dataclass")
    try:
        defaults = declared()
    except TypeError as error:
        raise ContractError("parameters-typed", f"{name}: {error}") from error
    known = fields(declared)
    for parameter, field in zip(parameters_of(declared), known, strict=True):
        value = getattr(defaults, field.name)
        text = parameter.show(value)
        demand(
            value == parameter.default and _reads(parameter, text, value),
            "parameters-typed",
            f"{name}.{field.name}: --set cannot read {text!r} back as {value!r}",
        )
    try:
        make_parameters(name, declared, {})
    except ConfigError as error:
        raise ContractError("parameters-typed", str(error)) from error


def _reads(parameter: Parameter, text: str, value: object) -> bool:
    try:
        return parameter.parse(text) == value
    except (ValueError, ConfigError):
        return False
