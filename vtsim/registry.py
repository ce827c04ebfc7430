"""Finds plug-ins by name.

Built-in tables and entry points (`vtsim.policies`, `vtsim.backends`) name classes by
`module:attribute`; a module is imported when its class is asked for, not before. A policy may also
be `path/to/file.py:Class`. Nothing here knows what a policy does.
"""

from __future__ import annotations

import importlib.util
import sys
import types
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from hashlib import sha256
from importlib import import_module
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

from vtsim.errors import ConfigError
from vtsim.guard import check_policy
from vtsim.parameters import make_parameters


@dataclass(frozen=True, slots=True)
class Registry:
    """Classes of one kind by name. Built-in names win over entry points of the same name."""

    kind: str
    """What error messages call one: `policy`."""
    group: str
    """Entry-point group of plug-ins."""
    built_in: Mapping[str, str]
    """Name -> `module:attribute`; also there when a checkout is not installed."""

    def names(self) -> list[str]:
        """The known names: built-in ones in their order, then plug-ins by name."""
        plugged = {point.name for point in entry_points(group=self.group)} - self.built_in.keys()
        return [*self.built_in, *sorted(plugged)]

    def load(self, name: str) -> Any:
        """The class called `name`. `ConfigError`, with the known names, if there is none."""
        where = self.built_in.get(name)
        if where is not None:
            return _attribute(import_module(where.partition(":")[0]), where)
        for point in entry_points(group=self.group):
            if point.name == name:
                try:
                    return point.load()
                except (Exception, SystemExit) as error:  # a plug-in's fault, whatever it is
                    raise ConfigError(
                        f"{self.kind} {name!r} cannot be loaded from {point.value}: {error}"
                    ) from error
        hint = "; a file's class is FILE.py:Class" if name.endswith(".py") else ""
        raise ConfigError(f"unknown {self.kind} {name!r} (known: {', '.join(self.names())}{hint})")

    def load_file(self, text: str) -> Any:
        """The class named by `path/to/file.py:Class`."""
        path_text, _, attribute = text.rpartition(":")
        path = Path(path_text)
        if not path.is_file():
            raise ConfigError(f"{self.kind} {text!r}: no file {path}")
        # One module a file, whatever the folder that vtsim runs in: classes keep one identity.
        name = "vtsim_plugin_" + sha256(str(path.resolve()).encode()).hexdigest()[:16]
        module = sys.modules.get(name)
        if module is None:
            spec = importlib.util.spec_from_file_location(name, path)
            if spec is None or spec.loader is None:
                raise ConfigError(f"{self.kind} {text!r}: {path} is not a Python file")
            module = importlib.util.module_from_spec(spec)
            sys.modules[name] = module
            try:
                spec.loader.exec_module(module)
            except (Exception, SystemExit) as error:
                del sys.modules[name]
                raise ConfigError(
                    f"{self.kind} {text!r}: {path} cannot be loaded: "
                    f"{type(error).__name__}: {error}"
                ) from error
        return _attribute(module, text)

    def find(self, text: str) -> Any:
        """The class for what a user wrote: a name, or `path/to/file.py:Class`."""
        return self.load_file(text) if ".py:" in text else self.load(text)


def _attribute(module: types.ModuleType, where: str) -> Any:
    name = where.rpartition(":")[2]
    value = getattr(module, name, None)
    if value is None:
        place = getattr(module, "__file__", None) or module.__name__
        raise ConfigError(f"{where}: no {name!r} in {place}")
    return value


POLICIES = Registry(
    "policy",
    "vtsim.policies",
    {
        "native": "vtsim.policies.native:NativePolicy",
        "paged": "vtsim.policies.paged:PagedPolicy",
        "vtensor": "vtsim.policies.vtensor:VTensorPolicy",
        "vattention": "vtsim.policies.vattention:VAttentionPolicy",
        "radix": "vtsim.policies.radix:RadixPolicy",
        "elastic-paged": "vtsim.policies.elastic:ElasticPagedPolicy",
    },
)
BACKENDS = Registry(
    "backend",
    "vtsim.backends",
    {"sim": "vtsim.backends.sim:SimBackend", "cuda": "vtsim.backends.cuda.backend:CudaBackend"},
)


@dataclass(frozen=True, slots=True)
class PolicyChoice:
    """A policy with its parameters, under a label that `--set` and the results use."""

    label: str
    policy: Any
    """The class."""
    parameters: Any
    """An instance of the class's `parameters_type`."""


def choose_policies(
    names: Iterable[str | PolicyChoice],
    settings: Mapping[str, Mapping[str, object]],
) -> list[PolicyChoice]:
    """Policies and their parameters.

    `names`: `NAME`, `FILE.py:Class`, or either behind `LABEL=`, which lets one policy run with
    several settings. `settings`: label -> parameter -> text or value. Raises `ConfigError`: an
    unknown policy, parameter or value, a label that is used twice, settings for a policy that
    does not run.
    """
    if not isinstance(settings, Mapping):
        raise ConfigError(f"settings: {settings!r} is not a mapping of labels to parameters")
    for label, values in settings.items():
        if not isinstance(values, Mapping):
            raise ConfigError(f"settings for {label!r}: {values!r} is not a mapping")
    chosen: dict[str, Any] = {}
    for text in names:
        if isinstance(text, PolicyChoice):
            label, policy = text.label, text
        elif isinstance(text, str):
            label, equals, name = text.partition("=")
            policy = POLICIES.find(name if equals else text)
            if not hasattr(policy, "parameters_type"):
                check_policy(name if equals else text, policy)
            label = label if equals else str(getattr(policy, "name", "") or text)
        else:
            raise ConfigError(f"policies: {text!r} is not a name or a PolicyChoice")
        if not label.strip() or not label.isprintable():
            raise ConfigError(f"policy label {label!r}: wanted is a word on one line")
        if label in chosen:
            raise ConfigError(
                f"policy {label!r} is named twice "
                "(to run it with other settings, write OTHER_LABEL=NAME)"
            )
        chosen[label] = policy
    if not chosen:
        raise ConfigError("no policy is named")
    for label in settings:
        if label not in chosen:
            raise ConfigError(
                f"settings for {label!r}: no such policy runs here (these do: {', '.join(chosen)})"
            )
    return [
        policy
        if isinstance(policy, PolicyChoice)
        else PolicyChoice(
            label, policy, make_parameters(label, policy.parameters_type, settings.get(label, {}))
        )
        for label, policy in chosen.items()
    ]


def parse_settings(texts: Iterable[str]) -> dict[str, dict[str, object]]:
    """`LABEL.PARAM=VALUE` of a command line, as `choose_policies` takes them."""
    settings: dict[str, dict[str, object]] = {}
    for text in texts:
        target, equals, value = text.partition("=")
        label, dot, parameter = target.rpartition(".")
        if not equals or not dot:
            raise ConfigError(f"setting {text!r} is not POLICY.PARAM=VALUE")
        of_label = settings.setdefault(label, {})
        if parameter in of_label:
            raise ConfigError(f"{target} is set twice: {of_label[parameter]} and {value}")
        of_label[parameter] = value
    return settings


def choose_kernels(
    choices: list[PolicyChoice], asked: str | Mapping[str, str] | None
) -> dict[str, str]:
    """Label -> attention kernel: the one asked for (for all that can use it, or by label), else
    the policy's first. `ConfigError` if a policy cannot use it."""
    if asked is None:
        asked = {}
    elif not isinstance(asked, str | Mapping):
        raise ConfigError(f"kernel: {asked!r} is not a name, nor a mapping of labels to names")
    elif isinstance(asked, str):
        # One name stands for all policies that can use it: they differ in what they can read.
        able = {c.label: asked for c in choices if asked in c.policy.kernels}
        if not able:
            known = ", ".join(f"{c.label}: {' '.join(c.policy.kernels)}" for c in choices)
            raise ConfigError(f"no policy here can use kernel {asked!r} ({known})")
        asked = able
    labels = [c.label for c in choices]
    for label in asked:
        if label not in labels:
            raise ConfigError(
                f"kernel for {label!r}: no such policy runs here (these do: {', '.join(labels)})"
            )
    chosen = {}
    for choice in choices:
        name = asked.get(choice.label, choice.policy.kernels[0])
        if name not in choice.policy.kernels:
            raise ConfigError(
                f"{choice.label} cannot use kernel {name!r} "
                f"(it can: {', '.join(choice.policy.kernels)})"
            )
        chosen[choice.label] = name
    return chosen
