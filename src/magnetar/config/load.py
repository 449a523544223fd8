"""Loads the configuration: defaults, then the file, then the environment, then flags; each overrides those before it.

Invariant: every key is known, every value has the type of its key and lies within its bounds; then every section checks
           how its values relate. Variables and flags are text, parsed by the type of the key. TOML has types of its
           own, so there a string is not taken for a number.
Failure:   the first error is a ConfigError that names key, value, the allowed values, and the value's origin. An
           unknown key is shown with the nearest known one.
Read next: root.py
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from magnetar.config.knobs import MASK, Knob, Value
from magnetar.config.root import ENVIRONMENT_PREFIX, KEYS, SECTIONS, Config, Key
from magnetar.errors import ConfigError

CONFIG_VARIABLE = "MAGNETAR_CONFIG"
URL_VARIABLE = "MAGNETAR_URL"
ADMIN_URL_VARIABLE = "MAGNETAR_ADMIN_URL"
OTHER_VARIABLES = {
    CONFIG_VARIABLE: "Path of the configuration file, used if `--config` is not given.",
    URL_VARIABLE: "URL of the broker that commands connect to, used if `--url` is not given: `pulsar://HOST:PORT`.",
    ADMIN_URL_VARIABLE: "URL of the broker's admin interface, used if `--admin-url` is not given: `http://HOST:PORT`.",
}
"""Variables with the prefix `MAGNETAR_` that are not keys."""

DEFAULT_ORIGIN = "default"
SET_ORIGIN = "flag --set"

_KEYS_BY_VARIABLE = {key.variable: key for key in KEYS.values()}
_BOOLEANS = {"true": True, "yes": True, "on": True, "1": True, "false": False, "no": False, "off": False, "0": False}
_INTEGER = re.compile(r"[+-]?[0-9]+(_[0-9]+)*")
_INTEGER_CHARACTERS_MAX = 40  # Far beyond any bound of ours, and far below where Python refuses to parse.


@dataclass(frozen=True, slots=True)
class Assignment:
    """A value for a key as text, from a flag."""

    path: str
    text: str
    origin: str = SET_ORIGIN

    @staticmethod
    def parse(argument: str, origin: str = SET_ORIGIN) -> Assignment:
        """From `section.key=value`. `origin` is where the user wrote it."""
        path, equals, text = argument.partition("=")
        if not equals:  # The argument is not repeated: it may be a secret whose key was forgotten.
            raise ConfigError(f"{origin}: write section.key=value, such as metadata.session_timeout_ms=10_000")
        return Assignment(path.strip(), text, origin)


@dataclass(frozen=True, slots=True)
class Setting:
    """One key with its value in effect."""

    key: Key
    value: Value
    origin: str

    @property
    def shown(self) -> Value:
        return MASK if self.key.knob.secret and self.value else self.value


@dataclass(frozen=True, slots=True)
class Effective:
    """The configuration in effect, and where each value came from."""

    config: Config = field(default_factory=Config)
    origins: Mapping[str, str] = field(default_factory=dict)
    """`section.key` → origin, for values that are not the default."""

    def settings(self) -> Iterator[Setting]:
        """Every key in the order of declaration."""
        for path, key in KEYS.items():
            value = getattr(getattr(self.config, key.section), key.name)
            yield Setting(key, value, self.origins.get(path, DEFAULT_ORIGIN))


def load(
    *,
    toml: str = "",
    toml_name: str = "",
    environment: Mapping[str, str] | None = None,
    flags: Sequence[Assignment] = (),
) -> Effective:
    """Returns the effective configuration from what the caller has read. Of repeated flags the last one counts."""
    values: dict[str, Value] = {}
    origins: dict[str, str] = {}
    for given in (_from_toml(toml, toml_name), _from_environment(environment or {}), _from_flags(flags)):
        for key, value, origin in given:
            values[key.path] = value
            origins[key.path] = origin
    sections = {name: _make_section(name, values, origins) for name in SECTIONS}
    return Effective(Config(**sections), origins)


def _make_section(name: str, values: Mapping[str, Value], origins: Mapping[str, str]) -> Any:
    given = {key.name: values[path] for path, key in KEYS.items() if key.section == name and path in values}
    try:
        return SECTIONS[name](**given)
    except ConfigError as error:
        # Single values were checked before, so a relation is broken: name the origins of the values in it.
        known = [f"{key} from {origins[f'{name}.{key}']}" for key in given]
        raise ConfigError(f"{error} ({', '.join(known)})") from None


def _from_toml(text: str, name: str) -> Iterator[tuple[Key, Value, str]]:
    origin = f"file {name}"
    for section, content in _parse_toml(text, origin).items():
        if section not in SECTIONS:
            raise _unknown_section(section, content, origin)
        if not isinstance(content, dict):
            raise ConfigError(f"{origin}: {section} is a section: write its keys below a line [{section}]")
        for key_name, value in content.items():
            key = KEYS.get(f"{section}.{key_name}")
            if key is None:
                raise _unknown_key(section, key_name, origin)
            yield key, _checked(key, value, origin), origin


def _parse_toml(text: str, origin: str) -> dict[str, Any]:
    try:
        return tomllib.loads(text)
    except RecursionError:
        raise ConfigError(f"{origin}: nested too deeply") from None
    except ValueError as error:  # TOMLDecodeError, with line and column; or a number with thousands of digits.
        raise ConfigError(f"{origin} is not valid TOML: {error}") from None


def _unknown_section(section: str, content: object, origin: str) -> ConfigError:
    if isinstance(content, dict):
        known = nearest(section, list(SECTIONS))
        return ConfigError(f"{origin}: unknown section [{section}]: the nearest known section is [{known}]")
    return ConfigError(
        f"{origin}: unknown key {section} outside of any section: the nearest known key is {nearest_key('', section)}"
    )


def _from_environment(environment: Mapping[str, str]) -> Iterator[tuple[Key, Value, str]]:
    for variable in sorted(environment):
        if not variable.startswith(ENVIRONMENT_PREFIX) or variable in OTHER_VARIABLES:
            continue
        origin = f"environment {variable}"
        key = _KEYS_BY_VARIABLE.get(variable)
        if key is None:
            known = nearest(variable, [*_KEYS_BY_VARIABLE, *OTHER_VARIABLES])
            raise ConfigError(f"{origin}: unknown variable: the nearest known variable is {known}")
        yield key, _parsed(key, environment[variable], origin), origin


def _from_flags(flags: Iterable[Assignment]) -> Iterator[tuple[Key, Value, str]]:
    for flag in flags:
        key = KEYS.get(flag.path)
        if key is None:
            section, _, name = flag.path.rpartition(".")
            raise _unknown_key(section, name, flag.origin)
        yield key, _parsed(key, flag.text, flag.origin), flag.origin


def _unknown_key(section: str, name: str, origin: str) -> ConfigError:
    path = f"{section}.{name}" if section else name
    return ConfigError(f"{origin}: unknown key {path}: the nearest known key is {nearest_key(section, name)}")


def _parsed(key: Key, text: str, origin: str) -> Value:
    return _checked(key, _value_of(key.knob, text), origin)


def _value_of(knob: Knob, text: str) -> Value:
    """Returns the value of the text, or the text itself if it has none; the check then refuses it."""
    word = text.strip()
    if knob.type is bool:
        return _BOOLEANS.get(word.lower(), text)
    if knob.type is int and len(word) <= _INTEGER_CHARACTERS_MAX and _INTEGER.fullmatch(word):
        return int(word)
    return text


def _checked(key: Key, value: Any, origin: str) -> Value:
    complaint = key.knob.complaint(value)
    if complaint:
        raise ConfigError(f"{origin}: {key.path}: {complaint}")
    checked: Value = value
    return checked


def nearest_key(section: str, name: str) -> str:
    """Returns the known `section.key` nearest to an unknown one.

    A key written in the wrong section, and the name the knob has in BookKeeper, Pulsar or Kafka, count as nearest.
    """
    for path, key in KEYS.items():
        if name == key.name or name.lower() in (peer.lower() for peer in key.knob.peer_names):
            return path
    if section in SECTIONS:
        return f"{section}.{nearest(name, [key.name for key in KEYS.values() if key.section == section])}"
    return nearest(f"{section}.{name}", list(KEYS))


def nearest(word: str, known: list[str]) -> str:
    """Returns the best match, however bad: it shows at least what names look like."""
    import difflib  # Needed for a mistake only; otherwise every command would load it.

    return difflib.get_close_matches(word, known, n=1, cutoff=0.0)[0]
