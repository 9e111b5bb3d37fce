"""Settings from flags, environment and file: flags over `DIPTYCH_*` over TOML over defaults.

Flags, variables and keys all follow from the fields of `EngineConfig` and `ServiceConfig`.
"""

from __future__ import annotations

import argparse
import difflib
import json
import logging
import tomllib
import typing
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import msgspec

from diptych import EngineConfig
from diptych.errors import ConfigError
from diptych_service.config import SECRET_FIELDS, ServiceConfig

logger = logging.getLogger("diptych_service")

SECTIONS: dict[str, type[msgspec.Struct]] = {"engine": EngineConfig, "service": ServiceConfig}
PREFIX = "DIPTYCH_"
MASK = "********"


class Settings(NamedTuple):
    engine: EngineConfig
    service: ServiceConfig


class Field(NamedTuple):
    """One setting. `type` is the field's, without annotations."""

    section: str
    name: str
    type: Any
    help: str
    default: Any

    @property
    def is_list(self) -> bool:
        return typing.get_origin(self.type) in (list, tuple)


def fields() -> list[Field]:
    """All settings in the order of their declaration."""
    return [
        Field(section, field.name, *_split(field.type), field.default)
        for section, struct in SECTIONS.items()
        for field in msgspec.structs.fields(struct)
    ]


def add_flags(parser: argparse.ArgumentParser) -> None:
    """One flag per field, absent unless given."""
    for section in SECTIONS:
        group = parser.add_argument_group(section)
        for field in fields():
            if field.section != section:
                continue
            flag = "--" + field.name.replace("_", "-")
            options: dict[str, Any] = {"dest": field.name, "default": argparse.SUPPRESS, "help": _help(field)}
            if field.type is bool:
                options["action"] = argparse.BooleanOptionalAction
            else:
                options["metavar"] = "A,B" if field.is_list else field.name.rsplit("_", 1)[-1].upper()
            group.add_argument(flag, **options)


def load(flags: Mapping[str, Any], environment: Mapping[str, str], file: Path | None) -> Settings:
    """The settings in force. Raises one `ConfigError` that lists every problem."""
    problems: list[str] = []
    given = _from_file(file, problems) if file is not None else {}
    known = {field.name: field for field in fields()}
    for variable, value in environment.items():
        name = variable.removeprefix(PREFIX).lower()
        if not variable.startswith(PREFIX):
            continue
        if name in known:
            given[name] = value
        else:
            logger.warning("the environment variable %s is no setting%s", variable, _suggest(name, known, PREFIX))
    given.update({name: value for name, value in flags.items() if name in known})
    values: dict[str, dict[str, Any]] = {section: {} for section in SECTIONS}
    for name, value in given.items():
        try:
            values[known[name].section][name] = _convert(known[name], value)
        except msgspec.ValidationError as error:
            shown = MASK if name in SECRET_FIELDS else repr(value)[:100]
            problems.append(f"{name} is {shown}: {error}")
    if "model" not in given:
        problems.append("model is missing: give --model NAME, a known name, a folder or a Hugging Face id")
    if problems:
        raise ConfigError(problems)
    settings = Settings(EngineConfig(**values["engine"]), ServiceConfig(**values["service"]))
    settings.service.validate()
    return settings


def to_toml(settings: Settings) -> str:
    """TOML that reads back to the same settings, but for secrets, which are masked."""
    lines: list[str] = []
    for section, struct in zip(SECTIONS, settings, strict=True):
        lines.append(f"[{section}]")
        for field in msgspec.structs.fields(struct):
            value = getattr(struct, field.name)
            if value is None:
                lines.append(f"# {field.name} is automatic")
            elif field.name in SECRET_FIELDS and value:
                lines.append(f"{field.name} = {_toml([MASK] * len(value))}")
            else:
                lines.append(f"{field.name} = {_toml(value)}")
        lines.append("")
    return "\n".join(lines)


def _from_file(file: Path, problems: list[str]) -> dict[str, Any]:
    try:
        tables = tomllib.loads(file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigError([f"the configuration file {file} cannot be read: {error}"]) from None
    given: dict[str, Any] = {}
    for section, table in tables.items():
        if section not in SECTIONS or not isinstance(table, dict):
            problems.append(
                f"{file}: [{section}] is no section; there are {', '.join(f'[{name}]' for name in SECTIONS)}"
            )
            continue
        names = {field.name for field in fields() if field.section == section}
        for name, value in table.items():
            if name in names:
                given[name] = value
            else:
                problems.append(f"{file}: {name} is no setting of [{section}]{_suggest(name, names, '')}")
    return given


def _convert(field: Field, value: Any) -> Any:
    if field.is_list and isinstance(value, str):
        value = [part for part in value.split(",") if part]
    return msgspec.convert(value, field.type, strict=False)


def _split(annotation: Any) -> tuple[Any, str]:
    """The bare type, and the description in its annotation."""
    if typing.get_origin(annotation) is not Annotated:
        return annotation, ""
    bare, *metadata = typing.get_args(annotation)
    texts = [meta.description for meta in metadata if isinstance(meta, msgspec.Meta) and meta.description]
    return bare, texts[0] if texts else ""


def _help(field: Field) -> str:
    parts = [field.help] if field.help else []
    if field.default is not msgspec.NODEFAULT and field.default is not None and field.default != ():
        parts.append(f"(default: {field.default})")
    return " ".join(parts).replace("%", "%%") or "see the documentation"


def _suggest(name: str, known: Iterable[str], prefix: str) -> str:
    close = difflib.get_close_matches(name, known, n=1)
    if not close:
        return ""
    return f": did you mean {prefix + close[0].upper() if prefix else close[0]}?"


def _toml(value: Any) -> str:
    """JSON's strings, numbers, booleans and arrays are TOML's too, once DEL is escaped."""
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
