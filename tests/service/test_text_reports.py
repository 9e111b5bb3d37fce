"""Reports of other servers' streaming text, class A: what must hold here, seen by a client of both endpoints.

Cases on single tokens and their order are in Rust, `rust/text/tests`; A24 and A25 in `test_answer_shapes` and
`test_refusals`.
"""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hard_texts import TEXTS
from raw_client import RawClient, events
from service_rig import CLIENT, ServiceThread
from spoken_folder import ADDED, WRITERS
from tiny_folder import HashOracle, write_folder
from tokenizers import Tokenizer

PATHS = ["/v1/completions", "/v1/chat/completions"]


class Speaker:
    """A service whose model says given ids, and what they mean to the tokenizer's own library."""

    def __init__(self, folder: Path, scripts: list[list[int]], **engine: Any) -> None:
        self.tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        self.service = ServiceThread(folder, script=scripts, **engine)

    def __enter__(self) -> "Speaker":
        self.service.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self.service.__exit__(*error)

    def _body(self, path: str, fields: dict[str, Any]) -> dict[str, Any]:
        asked = {"messages": [{"role": "user", "content": "x"}]} if "chat" in path else {"prompt": [5]}
        return {**asked, "max_tokens": 1900, **fields}

    def streamed(self, path: str = PATHS[0], **fields: Any) -> tuple[list[str], dict[str, Any]]:
        """The texts of all chunks but empty ones at either end, and the last choice."""
        with RawClient(self.service.port) as client:
            status, content = client.post(path, self._body(path, {"stream": True, **fields})).read_response()
        assert status == 200, content
        chunks = events(content)
        assert chunks[-1] == "[DONE]"
        choices = [choice for chunk in chunks[:-1] for choice in chunk["choices"]]
        deltas = [choice["text"] if "text" in choice else choice["delta"].get("content", "") for choice in choices]
        frame = 1 if "chat" in path else 0
        assert all(deltas[frame:-1]), "a chunk within the stream has no text"
        return [delta for delta in deltas if delta], choices[-1]

    def whole(self, path: str = PATHS[0], **fields: Any) -> tuple[str, dict[str, Any], dict[str, Any]]:
        """Text, choice and usage."""
        response = CLIENT.post(self.service.url + path, json=self._body(path, fields))
        assert response.status_code == 200, response.text
        answer = response.json()
        choice = answer["choices"][0]
        text = choice["text"] if "text" in choice else choice["message"]["content"]
        return text, choice, answer["usage"]

    def says(self, **fields: Any) -> str:
        """The text, the same for both endpoints where the folder has a chat template, streamed and whole."""
        deltas, last = self.streamed(**fields)
        text, choice, _ = self.whole(**fields)
        assert "".join(deltas) == text
        assert (last["finish_reason"], last["stop_reason"]) == (choice["finish_reason"], choice["stop_reason"])
        return text


Say = Callable[..., Speaker]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    base = tmp_path_factory.mktemp("spoken")
    kinds = {name: write(base / name) for name, write in WRITERS.items()}
    return {**kinds, "byte_level": write_folder(base / "byte_level")}


@pytest.fixture(scope="module")
def sentence(folders: dict[str, Path]) -> Iterator[tuple[Speaker, str]]:
    """A service that always says the same, in tokens of several letters."""
    text = "the quick brown fox, 你好"
    folder = folders["byte_level"]
    ids = Tokenizer.from_file(str(folder / "tokenizer.json")).encode(text, add_special_tokens=False).ids
    assert len(ids) < len(text)
    with Speaker(folder, [ids]) as speaker:
        yield speaker, text


def ids_of(folder: Path, text: str) -> list[int]:
    ids: list[int] = Tokenizer.from_file(str(folder / "tokenizer.json")).encode(text, add_special_tokens=False).ids
    return ids


@pytest.mark.parametrize("kind", ["byte_level", "byte_fallback"])
def test_characters_of_many_tokens_are_the_same_streamed_whole_and_decoded(folders: dict[str, Path], kind: str) -> None:
    """Letters, signs and joiners of two and more tokens each, none lost, added or changed."""
    scripts = [ids_of(folders[kind], text) for text in TEXTS.values()]
    with Speaker(folders[kind], scripts) as speaker:
        streamed = ["".join(speaker.streamed()[0]) for _ in TEXTS]
        whole = [speaker.whole()[0] for _ in TEXTS]
    prompt = [5]
    for text, ids, one, other in zip(TEXTS.values(), scripts, streamed, whole, strict=True):
        begun = speaker.tokenizer.decode(prompt)
        assert one == other == speaker.tokenizer.decode(prompt + ids)[len(begun) :]
        assert list(one.lstrip(" ")) == list(text)


def test_no_stream_ends_early_or_breaks_json_over_bytes_that_are_no_text(folders: dict[str, Path]) -> None:
    """Random ids, most of them no UTF-8: every answer is whole, and the engine serves on."""
    folder = folders["byte_level"]
    oracle = HashOracle(folder)
    with ServiceThread(folder) as service:
        for number in range(100):
            prompt = [256 + number, 0x80, 0xC0][number % 3 :]
            answer = service.complete(prompt, max_tokens=200, ignore_eos=True)
            ids = oracle.continuation(prompt, 200)
            assert answer["choices"][0]["token_ids"] == ids
            begun = oracle.tokenizer.decode(prompt)
            text = answer["choices"][0]["text"]
            if not begun.endswith("\ufffd"):
                assert text == oracle.tokenizer.decode(prompt + ids)[len(begun) :]
            assert "\ufffd" in text
        service.wait_idle()


def test_a_token_that_is_no_text_for_ever_is_sent_for_ever(folders: dict[str, Path]) -> None:
    """Each gives its U+FFFD at once. That a step costs the same at the end is counted in Rust."""
    folder = folders["byte_level"]
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    lone = next(token for token in range(600) if tokenizer.id_to_token(token) == "ł")  # the byte A0
    with Speaker(folder, [[lone] * 2000]) as speaker:
        assert speaker.says(max_tokens=2000) == "\ufffd" * 2000 == tokenizer.decode([lone] * 2000)


@pytest.mark.parametrize("path", PATHS)
def test_every_substring_as_a_stop_ends_the_text_before_it(sentence: tuple[Speaker, str], path: str) -> None:
    """Over the edges of tokens and inside them, and nothing of it is sent."""
    speaker, text = sentence
    for start in range(len(text)):
        for end in range(start + 2, min(start + 12, len(text)) + 1):
            stop = text[start:end]
            deltas, last = speaker.streamed(path, stop=stop)
            assert "".join(deltas) == text[: text.find(stop)], stop
            assert (last["finish_reason"], last["stop_reason"]) == ("stop", stop)


def test_a_special_stop_id_removes_no_visible_text(folders: dict[str, Path]) -> None:
    folder = folders["byte_fallback"]
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    stop = tokenizer.token_to_id("<s>")
    ids = ids_of(folder, "the end")
    with Speaker(folder, [[*ids, stop, *ids]]) as speaker:
        said = speaker.says(stop_token_ids=[stop])
        text, choice, usage = speaker.whole(stop_token_ids=[stop])
    assert said == text == " the end"
    assert (choice["finish_reason"], choice["stop_reason"]) == ("stop", stop)
    assert usage["completion_tokens"] == len(ids) + 1


def test_a_stop_that_never_comes_delays_nothing(sentence: tuple[Speaker, str]) -> None:
    """With it the same text, and every chunk within the stream has some (checked in `streamed`)."""
    speaker, text = sentence
    assert speaker.says(stop=["x" * 30]) == text


def test_what_was_held_back_for_a_stop_is_sent_at_the_end(sentence: tuple[Speaker, str]) -> None:
    """At the end of the sequence, and at the limit of tokens."""
    speaker, text = sentence
    assert speaker.says(stop=[text[-3:] + "x"]) == text
    for limit in range(1, 8):
        said = speaker.says(max_tokens=limit)
        assert speaker.says(max_tokens=limit, stop=[said[-2:] + "~", said[-1:] + "~", said + "~"]) == said != ""


def test_an_answer_of_one_character_is_sent_though_a_stop_begins_with_it(folders: dict[str, Path]) -> None:
    folder = folders["byte_level"]
    with Speaker(folder, [ids_of(folder, "<")]) as speaker:
        for stop in (["</end>"], ["<<", "<x"]):
            assert speaker.says(stop=stop) == "<"


def test_text_without_spaces_comes_letter_by_letter(folders: dict[str, Path]) -> None:
    """What gathers while this client is kept from reading comes as one delta, so there may be a tenth as many."""
    folder = folders["byte_level"]
    letter = Tokenizer.from_file(str(folder / "tokenizer.json")).token_to_id("a")
    with Speaker(folder, [[letter] * 300], script_step_ms=3.0) as speaker:
        deltas, _ = speaker.streamed()
    assert "".join(deltas) == "a" * 300
    assert len(deltas) > 30


def test_a_stop_completed_by_the_last_token_allowed_is_a_stop(sentence: tuple[Speaker, str]) -> None:
    speaker, text = sentence
    for limit in range(2, 8):
        said, _, usage = speaker.whole(max_tokens=limit)
        stop = said[-2:]
        if text.find(stop) != len(said) - 2:
            continue
        short, choice, used = speaker.whole(max_tokens=limit, stop=[stop])
        assert (short, choice["finish_reason"], choice["stop_reason"]) == (said[:-2], "stop", stop)
        assert used == usage


@pytest.mark.parametrize("kind", ["byte_fallback", "metaspace", "word_piece"])
@pytest.mark.parametrize(
    "words",
    [["▁the", "▁end"], ["▁", "▁the"], ["the", "▁", "▁", "end"], ["<0x0A>", "▁", "▁", "in"], ["##ing", "end", "."]],
)
def test_the_first_pieces_space_is_as_in_the_decode_of_prompt_and_answer(
    folders: dict[str, Path], kind: str, words: list[str]
) -> None:
    tokenizer = Tokenizer.from_file(str(folders[kind] / "tokenizer.json"))
    ids = [token for word in words if (token := tokenizer.token_to_id(word)) is not None]
    with Speaker(folders[kind], [ids]) as speaker:
        for prompt in ["a", "▁", "</s>", "<s>"]:
            prompt_ids = [tokenizer.token_to_id(prompt) or 1]
            begun = tokenizer.decode(prompt_ids)
            assert begun + speaker.says(prompt=prompt_ids) == tokenizer.decode(prompt_ids + ids)


@pytest.mark.parametrize("kind", ["byte_fallback", "metaspace", "word_piece"])
def test_added_tokens_that_are_not_special_get_no_spaces_of_their_own(folders: dict[str, Path], kind: str) -> None:
    """Under all flags the tokenizer's own decode; a space that it puts between two special tokens can go."""
    tokenizer = Tokenizer.from_file(str(folders[kind] / "tokenizer.json"))
    words = ["<s>", "<s>", ADDED[0], "the", ADDED[1], "end", "<s>"]
    ids = [tokenizer.token_to_id(word) for word in words]
    prompt = [tokenizer.token_to_id("a")]
    with Speaker(folders[kind], [ids]) as speaker:
        for skip in (False, True):
            own = tokenizer.decode(prompt + ids, skip_special_tokens=skip)[1:]
            for spaces in (True, False):
                flags = {"skip_special_tokens": skip, "spaces_between_special_tokens": spaces}
                expected = own if spaces else own.replace("<s> <s>", "<s><s>")
                assert speaker.says(prompt=prompt, **flags) == expected


@pytest.mark.parametrize("tail", ["\n", "😀"])
def test_byte_tokens_at_the_very_end_are_bytes(folders: dict[str, Path], tail: str) -> None:
    ids = ids_of(folders["byte_fallback"], f"end{tail}")
    with Speaker(folders["byte_fallback"], [ids]) as speaker:
        assert speaker.says() == f" end{tail}"
        assert speaker.says(max_tokens=len(ids)) == f" end{tail}"


@pytest.mark.parametrize("kind", ["byte_level", "byte_fallback"])
def test_no_end_of_sequence_counts_before_min_tokens(folders: dict[str, Path], kind: str) -> None:
    folder = folders[kind]
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    end = tokenizer.token_to_id("<|im_end|>" if kind == "byte_level" else "</s>")
    ids = ids_of(folder, "the end")
    # A script says what it says; a sampling worker could not choose the end so early.
    with Speaker(folder, [[ids[0], end, *ids[1:]]]) as speaker:
        assert speaker.whole()[2]["completion_tokens"] == 2
        for least, expected in [(1, 2), (2, len(ids) + 2)]:
            _, choice, usage = speaker.whole(min_tokens=least)
            assert (choice["finish_reason"], usage["completion_tokens"]) == ("stop", expected)
        assert speaker.says(min_tokens=3, stop=["t"]).startswith(speaker.says(max_tokens=1))
        refused = CLIENT.post(speaker.service.url + PATHS[0], json={"prompt": "a", "max_tokens": 2, "min_tokens": 3})
        assert refused.status_code == 400 and "min_tokens" in refused.json()["error"]["message"]
