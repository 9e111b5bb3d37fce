"""Settings from command-line flags, over `DIPTYCH_*` variables, over a TOML file, over defaults.

A *section* is a msgspec struct with defaults, under a name: `{"engine": EngineConfig, "service": ServiceConfig}`. Field
names are unique over all sections, so a flag or a variable needs no section name.
"""

from __future__ import annotations

import difflib
import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from diptych.errors import ConfigError
from diptych.validation import shown

PREFIX = "DIPTYCH_"
# Where the TOML file is; read by the caller, so it is no unknown variable here.
FILE_VARIABLE = "DIPTYCH_CONFIG"
Sections = Mapping[str, type[msgspec.Struct]]

# Kubernetes puts such variables into every container beside a service that is called "diptych".
_SERVICE_LINK = re.compile(r"DIPTYCH_(SERVICE_(HOST|PORT)|PORT_\d+_(TCP|UDP|SCTP))(_.*)?")


@dataclass(frozen=True)
class Loaded:
    """`values`: one struct per section. `origins`: where each field that was set comes from, by field name."""

    values: dict[str, msgspec.Struct]
    origins: dict[str, str]


@dataclass(frozen=True)
class _Field:
    section: str
    name: str
    type: Any
    required: bool
    default: Any


def flag_of(field: str) -> str:
    return "--" + field.replace("_", "-")


def variable_of(field: str) -> str:
    return PREFIX + field.upper()


def load(
    sections: Sections,
    *,
    flags: Mapping[str, Any],
    environ: Mapping[str, str],
    file: Path | None,
    secrets: frozenset[str] = frozenset(),
) -> Loaded:
    """Build every section. `flags` maps field names to values, None for a flag that was not given; text is parsed.

    The values of fields named in `secrets` are not quoted in problems.

    Raises one `ConfigError` that lists all problems of all sources: unknown names, unreadable values, wrong values.
    """
    fields = _fields(sections)
    problems: list[str] = []
    raw: dict[str, tuple[Any, str]] = {}
    for name, value, origin in [
        *_from_file(file, fields, problems),
        *_from_environment(environ, fields, problems),
        *((name, value, flag_of(name)) for name, value in flags.items() if value is not None),
    ]:
        raw[name] = (value, origin)
    arguments: dict[str, dict[str, Any]] = {section: {} for section in sections}
    for name, (value, origin) in raw.items():
        try:
            arguments[fields[name].section][name] = parse(value, fields[name].type)
        except msgspec.ValidationError as error:
            quoted = "(not shown)" if name in secrets else shown(value)
            problems.append(f"{name}={quoted} ({origin}): {error}")
    values = _construct(sections, fields, arguments, set(raw), problems)
    if problems:
        raise ConfigError(problems)
    return Loaded(values, {name: origin for name, (_, origin) in raw.items()})


def parse(value: Any, kind: Any) -> Any:
    """`value` as `kind`. Text may stand for any type: `none`, `true`, numbers, and lists as JSON or with commas."""
    if not isinstance(value, str):
        return msgspec.convert(value, kind)
    text = value.strip()
    try:
        return msgspec.convert(None if text.lower() == "none" else value, kind)
    except msgspec.ValidationError:
        pass
    if text.startswith(("[", "{")):
        try:
            return msgspec.json.decode(text, type=kind)
        except msgspec.DecodeError as error:
            raise msgspec.ValidationError(str(error)) from error
    try:
        return msgspec.convert(text, kind, strict=False)
    except msgspec.ValidationError as error:
        try:
            return msgspec.convert([part.strip() for part in text.split(",")], kind, strict=False)
        except msgspec.ValidationError:
            raise error from None


def to_toml(loaded: Loaded, secrets: frozenset[str] = frozenset()) -> str:
    """TOML that `load` reads back to the same values; fields named in `secrets` are masked and left to the reader."""
    parts = []
    for section, struct in loaded.values.items():
        lines = [
            _toml_line(field, getattr(struct, field.name), loaded.origins.get(field.name), field.name in secrets)
            for field in _fields({section: type(struct)}).values()
        ]
        parts.append(f"[{section}]\n" + "\n".join(lines) + "\n")
    return "\n".join(parts)


def _fields(sections: Sections) -> dict[str, _Field]:
    found: dict[str, _Field] = {}
    for section, struct in sections.items():
        for field in msgspec.structs.fields(struct):
            assert field.name not in found, f"{field.name} is a field of two sections"
            found[field.name] = _Field(section, field.name, field.type, field.required, field.default)
    return found


def _from_file(file: Path | None, fields: Mapping[str, _Field], problems: list[str]) -> Iterator[tuple[str, Any, str]]:
    if file is None:
        return
    try:
        content = tomllib.loads(file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        problems.append(f"{file} cannot be read: {error}")
        return
    sections = {field.section for field in fields.values()}
    for section, table in content.items():
        if section not in sections or not isinstance(table, dict):
            problems.append(f"{file}: unknown table [{section}]{_close_to(section, sections)}")
            continue
        known = {name for name, field in fields.items() if field.section == section}
        for name, value in table.items():
            if name in known:
                yield name, value, f"{file} [{section}]"
            else:
                problems.append(f"{file}: unknown setting {name} in [{section}]{_close_to(name, known)}")


def _from_environment(
    environ: Mapping[str, str], fields: Mapping[str, _Field], problems: list[str]
) -> Iterator[tuple[str, Any, str]]:
    known = {variable_of(name): name for name in fields}
    for variable, value in sorted(environ.items()):
        if not variable.startswith(PREFIX) or variable == FILE_VARIABLE or _SERVICE_LINK.fullmatch(variable):
            continue
        if variable not in known:
            problems.append(f"unknown variable {variable}{_close_to(variable, set(known))}")
        elif variable == "DIPTYCH_PORT" and value.startswith("tcp://"):
            problems.append(
                f"DIPTYCH_PORT={value} was set by Kubernetes for a service called 'diptych': "
                "set enableServiceLinks: false in the pod, or give the port with --port"
            )
        else:
            yield known[variable], value, variable


def _construct(
    sections: Sections,
    fields: Mapping[str, _Field],
    arguments: Mapping[str, dict[str, Any]],
    given: set[str],
    problems: list[str],
) -> dict[str, msgspec.Struct]:
    values = {}
    for section, struct in sections.items():
        missing = [name for name, f in fields.items() if f.section == section and f.required and name not in given]
        for name in missing:
            problems.append(f"{name} is missing: give {flag_of(name)}, {variable_of(name)} or {name} in [{section}]")
        required = {name for name, field in fields.items() if field.section == section and field.required}
        if required <= arguments[section].keys():
            try:
                values[section] = struct(**arguments[section])
            except ConfigError as error:
                problems.extend(error.problems)
    return values


def _close_to(name: str, known: set[str]) -> str:
    near = difflib.get_close_matches(name, known, n=1)
    return f" (did you mean {near[0]}?)" if near else f"; known: {', '.join(sorted(known))}"


def _toml_line(field: _Field, value: Any, origin: str | None, masked: bool) -> str:
    source = f"  # {origin}" if origin else ""
    if masked:
        return f"# {field.name} is {'set, and masked here' if value else 'not set'}{source}"
    if value is None:
        if field.default is None:
            return f"# {field.name} is not set"
        return f'{field.name} = "none"{source}'
    return f"{field.name} = {_toml_value(value)}{source}"


def _toml_value(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, str):
        return _toml_string(value)
    if isinstance(value, list | tuple):
        return "[" + ", ".join(_toml_value(item) for item in value) + "]"
    if isinstance(value, dict):
        pairs = [f"{_toml_string(key)} = {_toml_value(item)}" for key, item in value.items()]
        return "{" + ", ".join(pairs) + "}"
    raise TypeError(f"no TOML for {type(value).__name__}")


def _toml_string(value: str) -> str:
    """A basic string: JSON's escapes are TOML's, but for DEL, which TOML wants escaped."""
    return msgspec.json.encode(value).decode().replace("\x7f", "\\u007f")
