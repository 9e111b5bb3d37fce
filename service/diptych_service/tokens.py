"""`diptych tokens`: a text's tokens as a table."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from diptych import hub
from diptych.tokens import TokenRow, token_rows


def add_parser(commands: Any) -> None:
    """Add the command to those of `diptych`."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "tokens", help="list a text's tokens: id, piece, bytes, the UTF-8 state after each, and what a stream sends"
    )
    parser.add_argument("text", metavar="TEXT", help="what to tokenise; - reads standard input")
    parser.add_argument("--model", required=True, help="known name, folder, or Hugging Face id")
    parser.add_argument("--revision", default=None, help="branch, tag or commit of a Hugging Face repository")
    parser.add_argument("--special", action="store_true", help="add what the tokenizer puts around a text, such as BOS")
    parser.set_defaults(run=_run)


def _run(options: argparse.Namespace) -> int:
    """0, or 2 for what is no text."""
    try:
        content = sys.stdin.buffer.read() if options.text == "-" else os.fsencode(options.text)
        text = content.decode()
    except UnicodeDecodeError as error:
        wrong = f"{content[error.start : error.end].hex(' ')} at offset {error.start}: {error.reason}"
        print(f"diptych: TEXT is not UTF-8: bytes {wrong}", file=sys.stderr)
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
    """One line for each token under a line of titles. Pieces and texts are quoted, with control characters escaped."""
    lines = [("id", "piece", "bytes", "UTF-8 after it", "sent")]
    lines += [
        (str(row.id), repr(row.piece), row.data.hex(" "), row.state, repr(row.text) if row.text else "") for row in rows
    ]
    widths = [max(len(line[column]) for line in lines) for column in range(4)]
    # What is sent comes last: terminals do not agree on how wide it is.
    return "".join(
        "  ".join([line[0].rjust(widths[0]), *map(str.ljust, line[1:4], widths[1:]), line[4]]).rstrip() + "\n"
        for line in lines
    )
