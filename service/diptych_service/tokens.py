"""`diptych tokens`: a text's tokens as a table."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from diptych import hub
from diptych.tokens import TokenRow, token_rows


def add_parser(commands: Any) -> None:
    """Add the command to those of `diptych`."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "tokens", help="list a text's tokens: id, piece, bytes, and the UTF-8 state after each"
    )
    parser.add_argument("text", metavar="TEXT", help="what to tokenise; - reads standard input")
    parser.add_argument("--model", required=True, help="known name, folder, or Hugging Face id")
    parser.add_argument("--revision", default=None, help="branch, tag or commit of a Hugging Face repository")
    parser.add_argument("--special", action="store_true", help="add what the tokenizer puts around a text, such as BOS")
    parser.set_defaults(run=_run)


def _run(options: argparse.Namespace) -> int:
    """0, or 2 for what is no text."""
    try:
        text = sys.stdin.buffer.read().decode() if options.text == "-" else options.text
        text.encode()
    except UnicodeError as error:
        print(f"diptych: TEXT is not UTF-8: {error}", file=sys.stderr)
        return 2
    rows = token_rows(_folder(options.model, options.revision), text, add_special_tokens=options.special)
    print(table(rows), end="")
    return 0


def _folder(model: str, revision: str | None) -> Path:
    """A folder need hold no more than the tokenizer."""
    folder = Path(model).expanduser()
    if revision is None and model not in hub.KNOWN_MODELS and (folder / "tokenizer.json").is_file():
        return folder
    return hub.resolve_model(model, revision, progress=True, weights=False)


def table(rows: Sequence[TokenRow]) -> str:
    """One line for each token under a line of titles. Pieces are quoted, with control characters escaped."""
    lines = [("id", "piece", "bytes", "UTF-8 after it")]
    lines += [(str(row.id), repr(row.piece), row.data.hex(" "), row.state) for row in rows]
    widths = [max(len(line[column]) for line in lines) for column in range(3)]
    shown = [
        f"{line[0]:>{widths[0]}}  {line[1]:<{widths[1]}}  {line[2]:<{widths[2]}}  {line[3]}".rstrip() for line in lines
    ]
    return "".join(f"{line}\n" for line in shown)
