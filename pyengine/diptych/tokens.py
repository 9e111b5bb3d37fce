"""What a text is made of: its tokens, the bytes of each, and how far into a character it ends."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from diptych.errors import ModelError


class TokenRow(NamedTuple):
    """One token of a text.

    `piece`: as the vocabulary has it. `data`: the bytes that it gives after other tokens. `pending`: the begun
    character after it, at most three bytes, none where the text so far is whole. `text`: what a stream would send with
    it; all of them joined are the tokenizer's own decode.
    """

    id: int
    piece: str
    data: bytes
    pending: bytes
    text: str

    @property
    def state(self) -> str:
        """The UTF-8 state for people."""
        if not self.pending:
            return "whole"
        return f"{self.pending.hex(' ')}: {len(self.pending)} of {_length(self.pending[0])} bytes"


def _length(lead: int) -> int:
    """Bytes of the character that a lead byte begins."""
    return 2 if lead < 0xE0 else 3 if lead < 0xF0 else 4


def token_rows(folder: Path, text: str, *, add_special_tokens: bool = False) -> list[TokenRow]:
    """The tokens of `text` under the tokenizer in `folder`. Raises `ModelError` where one of the two cannot be used."""
    from diptych_core.text import TextError, TextStream, Tokenizer

    try:
        tokenizer = Tokenizer.from_folder(folder)
        ids = tokenizer.encode(text, add_special_tokens=add_special_tokens)
    except TextError as error:
        raise ModelError(str(error)) from None
    stream = TextStream(tokenizer, skip_special_tokens=False)
    rows = []
    for token in ids:
        text, _ = stream.push(token)
        piece, data = tokenizer.token(token), tokenizer.token_bytes(token)
        if piece is None or data is None:
            raise ModelError(f"the tokenizer in {folder} gives the id {token}, for which it has no token")
        rows.append(TokenRow(token, piece, data, stream.pending, text))
    if rows:
        rows[-1] = rows[-1]._replace(text=rows[-1].text + stream.finish()[0])
    return rows
