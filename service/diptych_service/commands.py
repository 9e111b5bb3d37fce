"""What `diptych serve | pull | quantize | replay | simulate | tokens | version` do."""

from __future__ import annotations

import argparse
import json
import logging
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from aiohttp.http_exceptions import BadHttpMessage
from aiohttp.web import RequestPayloadError

from diptych import AsyncEngine, hub
from diptych.config_sources import FILE_VARIABLE
from diptych.errors import DiptychError
from diptych.replay import replay_log
from diptych.versions import versions
from diptych_service import otel, server, settings, simulate, tokens
from diptych_service.config import LOG_LEVELS, SECRET_FIELDS


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Which command, with its options. Wrong usage ends the process with code 2."""
    return _parser().parse_args(arguments)


def run(options: argparse.Namespace) -> int:
    """Run a command; returns the exit code: 0 done, 1 failed, 2 wrong configuration, 130 interrupted."""
    try:
        return int(options.run(options))
    except DiptychError as error:
        print(f"diptych: {error}", file=sys.stderr)
        return 2 if error.kind == "config" else 1
    except KeyboardInterrupt:
        print("diptych: interrupted", file=sys.stderr)
        return 130


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="diptych", description="LLM inference behind an OpenAI-compatible API.")
    names = "serve | pull | quantize | replay | simulate | tokens | version"
    commands = parser.add_subparsers(required=True, metavar=names)
    serve = commands.add_parser("serve", help="serve a model over HTTP")
    serve.add_argument("--config", type=Path, metavar="FILE", help="TOML file with [engine] and [service]")
    serve.add_argument("--print-config", action="store_true", help="print the settings in force as TOML, and end")
    settings.add_flags(serve)
    serve.set_defaults(run=_serve)
    pull = commands.add_parser("pull", help="fetch a model; the last line of the output is its folder")
    pull.add_argument("name", help="known name, folder, or Hugging Face id")
    pull.add_argument("--revision", default=None, help="branch, tag or commit of a Hugging Face repository")
    pull.set_defaults(run=_pull)
    quantize = commands.add_parser("quantize", help="pack a model's weights in other formats, into a new folder")
    quantize.add_argument("model", help="known name, folder, GGUF file, or Hugging Face id")
    quantize.add_argument("--to", required=True, choices=hub.WEIGHT_FORMATS, help="formats of the weights")
    quantize.add_argument("--output", required=True, type=Path, metavar="FOLDER", help="new folder, for serve --model")
    quantize.add_argument("--revision", default=None, help="branch, tag or commit of a Hugging Face repository")
    quantize.set_defaults(run=_quantize)
    replay = commands.add_parser("replay", help="run an event log again and compare every plan")
    replay.add_argument("file", type=Path, metavar="FILE", help="written by a service or engine with --event-log")
    replay.set_defaults(run=_replay)
    simulate.add_parser(commands)
    tokens.add_parser(commands)
    version = commands.add_parser("version", help="print the versions of what is installed")
    version.set_defaults(run=_version)
    return parser


def _serve(options: argparse.Namespace) -> int:
    # Until the loop answers signals. SIGINT raises KeyboardInterrupt of itself.
    before = signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    try:
        return _run_service(options)
    finally:
        signal.signal(signal.SIGTERM, before)


def _run_service(options: argparse.Namespace) -> int:
    _log_to_stderr(logging.INFO)
    file = options.config or os.environ.get(FILE_VARIABLE)
    chosen = settings.load(vars(options), os.environ, Path(file) if file else None)
    if options.print_config:
        print(chosen.toml, end="")
        return 0
    logging.getLogger().setLevel(LOG_LEVELS[chosen.service.log_level])
    # What the worker does not need it does not inherit.
    for name in SECRET_FIELDS:
        os.environ.pop(f"DIPTYCH_{name.upper()}", None)
    flush = otel.set_up(os.environ)
    try:
        return server.run(chosen, _announce)
    finally:
        flush()


def _pull(options: argparse.Namespace) -> int:
    _log_to_stderr(logging.INFO)
    print(hub.resolve_model(options.name, options.revision, progress=True))
    return 0


def _quantize(options: argparse.Namespace) -> int:
    _log_to_stderr(logging.INFO)
    print(hub.quantize(options.model, options.to, options.output, revision=options.revision))
    return 0


def _replay(options: argparse.Namespace) -> int:
    """0 if every plan is the same, 1 if one differs or the log cannot be replayed."""
    try:
        report = replay_log(options.file)
    except (OSError, ValueError) as error:
        print(f"diptych: {options.file}: {error}", file=sys.stderr)
        return 1
    print(report.text)
    return 0 if report.identical else 1


def _version(_options: argparse.Namespace) -> int:
    found = versions()
    print(f"diptych {found.diptych}")
    print(f"diptych-core {found.diptych_core} ({found.build_profile})")
    return 0


def _announce(engine: AsyncEngine, url: str) -> None:
    """Print what to try."""
    print(f"Diptych serves {engine.model_name} on {url}", flush=True)
    print(f"Try it: {_curl(engine, url)}", flush=True)


def _curl(engine: AsyncEngine, url: str) -> str:
    question = "What is the capital of France?"
    asked: dict[str, Any]
    if _has_chat_template(Path(engine.model.folder)):
        path, asked = "chat/completions", {"messages": [{"role": "user", "content": question}]}
    else:
        path, asked = "completions", {"prompt": question}
    body = {**asked, "max_tokens": 64, "temperature": 0, "stream": True}
    return f"curl -N {url}/v1/{path} -H 'Content-Type: application/json' -d '{json.dumps(body)}'"


def _has_chat_template(folder: Path) -> bool:
    if (folder / "chat_template.jinja").exists():
        return True
    configuration = folder / "tokenizer_config.json"
    return configuration.exists() and '"chat_template"' in configuration.read_text(encoding="utf-8")


def _is_news(record: logging.LogRecord) -> bool:
    """False for aiohttp's tracebacks of requests that are no HTTP: anybody could fill the log with them."""
    error = record.exc_info[1] if record.exc_info else None
    return not isinstance(error, BadHttpMessage | RequestPayloadError)


def _log_to_stderr(level: int) -> None:
    logging.getLogger("aiohttp.server").addFilter(_is_news)
    logging.basicConfig(
        level=level, stream=sys.stderr, format="%(asctime)s %(levelname)s %(name)s: %(message)s", datefmt="%H:%M:%S"
    )
