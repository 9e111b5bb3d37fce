"""`diptych tokens`: every token with its bytes, and how far into a character it ends."""

import io
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from spoken_folder import WRITERS
from tiny_tokenizer import write_tokenizer
from tokenizers import Tokenizer as Oracle

from diptych.errors import ModelError
from diptych.tokens import token_rows
from diptych_service.cli import main


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Only a tokenizer: no configuration, no weights."""
    return write_tokenizer(tmp_path_factory.mktemp("tokenizer"))


TEXT = "Köln ☃ 😀\n"


def test_rows_are_the_librarys_ids_and_their_bytes_are_the_text(folder: Path) -> None:
    rows = token_rows(folder, TEXT)
    oracle = Oracle.from_file(str(folder / "tokenizer.json"))
    assert [row.id for row in rows] == oracle.encode(TEXT, add_special_tokens=False).ids
    assert [row.piece for row in rows] == oracle.encode(TEXT, add_special_tokens=False).tokens
    assert b"".join(row.data for row in rows).decode() == TEXT


def test_the_state_counts_the_bytes_of_a_begun_character(folder: Path) -> None:
    rows = token_rows(folder, "☃")
    assert [row.data.hex() for row in rows] == ["e2", "98", "83"]
    assert [row.state for row in rows] == ["e2: 1 of 3 bytes", "e2 98: 2 of 3 bytes", "whole"]
    assert [row.text for row in rows] == ["", "", "☃"]


@pytest.mark.parametrize("write", WRITERS.values(), ids=WRITERS)
def test_what_is_sent_is_the_librarys_decode(write: Callable[[Path], Path], tmp_path: Path) -> None:
    folder = write(tmp_path)
    oracle = Oracle.from_file(str(folder / "tokenizer.json"))
    for text in ["the end. é", "<s>the</s>", " and  the"]:
        rows = token_rows(folder, text)
        assert "".join(row.text for row in rows) == oracle.decode([row.id for row in rows], skip_special_tokens=False)


def test_the_table_has_a_line_for_each_token(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tokens", TEXT, "--model", str(folder)]) == 0
    lines = capsys.readouterr().out.splitlines()
    rows = token_rows(folder, TEXT)
    assert lines[0].split() == ["id", "piece", "bytes", "UTF-8", "after", "it", "sent"]
    assert [line.split()[0] for line in lines[1:]] == [str(row.id) for row in rows]
    assert all(
        row.data.hex(" ") in line and line.endswith(repr(row.text) if row.text else row.state)
        for row, line in zip(rows, lines[1:], strict=True)
    )


def test_standard_input_is_read_and_what_is_no_text_is_code_2(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"a")))
    assert main(["tokens", "-", "--model", str(folder)]) == 0
    assert capsys.readouterr().out.splitlines()[1].split()[1:] == ["'a'", "61", "whole", "'a'"]
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"\xff")))
    assert main(["tokens", "-", "--model", str(folder)]) == 2
    assert main(["tokens", "ab\udcf0\udc9f", "--model", str(folder)]) == 2
    assert capsys.readouterr().err.splitlines() == [
        "diptych: TEXT is not UTF-8: bytes ff at offset 0: invalid start byte",
        "diptych: TEXT is not UTF-8: bytes f0 9f at offset 2: unexpected end of data",
    ]


def test_a_folder_without_a_tokenizer_is_a_clear_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tokens", "a", "--model", str(tmp_path)]) == 1
    assert str(tmp_path) in capsys.readouterr().err
    with pytest.raises(ModelError, match=r"tokenizer\.json"):
        token_rows(tmp_path, "a")
