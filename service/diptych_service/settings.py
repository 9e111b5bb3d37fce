"""The settings of `diptych serve`: each field of both configurations as a flag, a variable and a TOML key."""

from __future__ import annotations

import argparse
import typing
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, NamedTuple, cast

import msgspec

from diptych import EngineConfig, config_sources
from diptych_service.config import SECRET_FIELDS, ServiceConfig, check_together

SECTIONS: dict[str, type[msgspec.Struct]] = {"engine": EngineConfig, "service": ServiceConfig}


class Settings(NamedTuple):
    """What is in force, and the TOML that says so, without secrets."""

    engine: EngineConfig
    service: ServiceConfig
    toml: str


def add_flags(parser: argparse.ArgumentParser) -> None:
    """One flag per field, None unless given."""
    for section, struct in SECTIONS.items():
        group = parser.add_argument_group(section)
        for field in msgspec.structs.fields(struct):
            kind, description = _split(field.type)
            flag = config_sources.flag_of(field.name)
            options: dict[str, Any] = {"dest": field.name, "help": _help(description, field.default)}
            if kind is bool:
                options["action"] = argparse.BooleanOptionalAction
            else:
                options["metavar"] = field.name.rsplit("_", 1)[-1].upper()
            group.add_argument(flag, **options)


def load(flags: Mapping[str, Any], environ: Mapping[str, str], file: Path | None) -> Settings:
    """Flags over variables over the file over defaults. Raises one `ConfigError` that lists every problem."""
    names = {field.name for struct in SECTIONS.values() for field in msgspec.structs.fields(struct)}
    given = {name: value for name, value in flags.items() if name in names}
    loaded = config_sources.load(SECTIONS, flags=given, environ=environ, file=file, secrets=SECRET_FIELDS)
    engine, service = cast(EngineConfig, loaded.values["engine"]), cast(ServiceConfig, loaded.values["service"])
    check_together(engine, service)
    return Settings(
        engine,
        service,
        config_sources.to_toml(loaded, SECRET_FIELDS),
    )


def _split(annotation: Any) -> tuple[Any, str]:
    """The bare type, and the description in its annotation."""
    if typing.get_origin(annotation) is not Annotated:
        return annotation, ""
    bare, *metadata = typing.get_args(annotation)
    texts = [meta.description for meta in metadata if isinstance(meta, msgspec.Meta) and meta.description]
    return bare, texts[0] if texts else ""


def _help(description: str, default: Any) -> str:
    known = default is not msgspec.NODEFAULT and default is not None and default != ()
    shown = f"(default: {default})" if known else ""
    return f"{description} {shown}".strip().replace("%", "%%") or "(default: automatic)"
