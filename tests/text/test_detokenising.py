"""Text as the engine makes it, against the `tokenizers` library's own decode."""

import threading
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tiny_tokenizer import SPECIAL, write_tokenizer
from tokenizers import Tokenizer as Oracle

from diptych_core.text import StopStringError, TextError, TextStream, Tokenizer, TokenizerError

Pair = tuple[Tokenizer, Oracle]


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    folder = write_tokenizer(tmp_path_factory.mktemp("tokenizer"))
    return Tokenizer.from_folder(folder), Oracle.from_file(str(folder / "tokenizer.json"))


ids = st.lists(st.integers(0, 600), max_size=60)
texts = st.text(max_size=200) | st.sampled_from(["", " ", "a" * 500, "👩‍👩‍👧‍👦" * 9, "\x00\x01\ufeff", "<|im_end|> x"])


@given(text=texts, special=st.booleans())
def test_ids_equal_the_librarys(pair: Pair, text: str, special: bool) -> None:
    ours, oracle = pair
    assert ours.encode(text, add_special_tokens=special) == oracle.encode(text, add_special_tokens=special).ids


def test_other_threads_run_while_one_encodes_and_decodes(pair: Pair) -> None:
    """With the GIL held the longest pause of another thread would be all of the time."""
    ours, _ = pair
    text = "The quick brown fox 👩‍👩‍👧‍👦 你好，世界。 " * 20_000
    working = threading.Thread(target=lambda: ours.decode(ours.encode(text)))
    working.start()
    begun = last = time.perf_counter()
    longest = 0.0
    while working.is_alive():
        now = time.perf_counter()
        longest, last = max(longest, now - last), now
    assert longest < (time.perf_counter() - begun) / 3


@given(ids=ids, skip=st.booleans())
def test_decode_of_any_ids_equals_the_librarys(pair: Pair, ids: list[int], skip: bool) -> None:
    ours, oracle = pair
    assert ours.decode(ids, skip_special_tokens=skip) == oracle.decode(ids, skip_special_tokens=skip)


@given(ids=ids, skip=st.booleans())
def test_joined_deltas_equal_the_decode_of_all_ids(pair: Pair, ids: list[int], skip: bool) -> None:
    ours, oracle = pair
    stream = TextStream(ours, skip_special_tokens=skip)
    text = "".join(stream.push(id)[0] for id in ids) + stream.finish()[0]
    assert text == oracle.decode(ids, skip_special_tokens=skip)


@given(text=texts)
def test_a_delta_never_holds_half_a_character(pair: Pair, text: str) -> None:
    """Reports A1: U+FFFD appears only where it is in the text, and each character comes with its last token."""
    ours, _ = pair
    stream = TextStream(ours)
    sent = ""
    for id in ours.encode(text, add_special_tokens=False):
        sent += stream.push(id)[0]
        assert ours.decode(ours.encode(text), skip_special_tokens=True).startswith(sent)


@given(text=st.text(alphabet="abc ", max_size=60), stop=st.lists(st.text(alphabet="abc ", min_size=1), min_size=1))
def test_text_ends_before_the_stop_string_that_completes_first(pair: Pair, text: str, stop: list[str]) -> None:
    ours, _ = pair
    stream = TextStream(ours, stop=stop)
    sent, found = "", None
    for id in ours.encode(text, add_special_tokens=False):
        delta, found = stream.push(id)
        sent += delta
        if found is not None:
            break
    else:
        delta, found = stream.finish()
        sent += delta
    ends = {entry: text.index(entry) + len(entry) for entry in stop if entry in text}
    if not ends:
        assert (sent, found) == (text, None)
    else:
        assert found is not None
        first = min(ends.values())
        assert ends[stop[found]] == first
        assert sent == text[: first - len(stop[found])]


def test_a_character_split_between_prompt_and_output_belongs_to_the_output(pair: Pair) -> None:
    ours, _ = pair
    ids = ours.encode("\N{SNOWMAN}", add_special_tokens=False)
    assert len(ids) > 1
    stream = TextStream(ours, prompt=ids[:1])
    assert "".join(stream.push(id)[0] for id in ids[1:]) == "\N{SNOWMAN}"


def test_what_is_pending_at_the_end_is_flushed(pair: Pair) -> None:
    ours, _ = pair
    stream = TextStream(ours)
    first, *_ = ours.encode("\N{SNOWMAN}", add_special_tokens=False)
    assert stream.push(first) == ("", None)
    assert stream.finish() == ("\N{REPLACEMENT CHARACTER}", None)
    with pytest.raises(ValueError, match="ended"):
        stream.push(first)


def test_special_ids_and_bytes(pair: Pair) -> None:
    ours, oracle = pair
    assert ours.special_ids == [oracle.token_to_id(token) for token in SPECIAL]
    assert ours.vocabulary == oracle.get_vocab_size()
    assert ours.token_bytes(ours.special_ids[0]) == SPECIAL[0].encode()
    assert ours.token_bytes(10**6) is None


@pytest.mark.parametrize(
    ("stop", "kind"), [([""], "empty_stop"), (["x"] * 129, "too_many_stops"), (["x" * 70_000], "stops_too_long")]
)
def test_impossible_stop_strings_are_refused(pair: Pair, stop: list[str], kind: str) -> None:
    with pytest.raises(StopStringError) as caught:
        TextStream(pair[0], stop=stop)
    assert caught.value.kind == kind
    assert isinstance(caught.value, TextError)


def test_unusable_tokenizers_are_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(TextError, match=str(tmp_path)) as caught:
        Tokenizer.from_folder(tmp_path)
    assert caught.value.kind == "read"
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(TokenizerError, match=str(tmp_path)):
        Tokenizer.from_folder(tmp_path)
