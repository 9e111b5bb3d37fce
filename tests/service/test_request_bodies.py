"""From bytes to a checked request, without an engine."""

import asyncio
import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from diptych_service import body
from diptych_service.body import parse_object, read_request
from diptych_service.errors import MAX_MESSAGE, ApiError, BadRequest
from diptych_service.fields import CHAT_FIELDS, COMPLETION_FIELDS, FieldTable, screen
from diptych_service.messages import template_messages
from diptych_service.prompts import prompts_of
from diptych_service.sampling import sampling_params
from diptych_service.schema import ChatRequest, CompletionRequest

TABLES = [COMPLETION_FIELDS, CHAT_FIELDS]


def encoded(fields: dict[str, Any]) -> dict[str, msgspec.Raw]:
    return {name: msgspec.Raw(json.dumps(value).encode()) for name, value in fields.items()}


def completion(raw: bytes) -> tuple[CompletionRequest, list[str | list[int]]]:
    request, _ = read_request(raw, CompletionRequest, COMPLETION_FIELDS)
    return request, asyncio.run(prompts_of(request.prompt))


def refused(raw: bytes) -> BadRequest:
    with pytest.raises(BadRequest) as error:
        parse_object(raw)
    assert error.value.status == 400
    json.loads(error.value.body())
    return error.value


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"{",
        b"[]",
        b'"x"',
        b"3",
        b"null",
        b"true",
        b'{"a":1}{"b":2}',
        b'{"a":NaN}',
        b'{"a":Infinity}',
        b'{"a":-Infinity}',
        b'{"a":1,"a":2}',
        b'{"a":"\xff"}',
        b"\xef\xbb\xbf{}",
        b'{"a":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
        b"{'a':1}",
        b'{"a":"\x01"}',
    ],
)
def test_a_body_that_is_no_plain_json_object_is_refused(raw: bytes) -> None:
    refused(raw)


@pytest.mark.parametrize("half", ["\\ud83d", "\\uDE00", "\\ud83d\\ud83d", "\\ude00\\ud83d", "x\\uD800y"])
def test_an_unpaired_surrogate_is_refused_and_its_field_named(half: str) -> None:
    assert refused(b'{"stop":["a"],"prompt":"' + half.encode() + b'"}').param == "prompt"
    refused(b'{"messages":[{"role":"user","content":"' + half.encode() + b'"}]}')
    refused(b'{"' + half.encode() + b'":1}')


def test_a_surrogate_pair_is_a_character() -> None:
    assert completion(b'{"prompt":"\\ud83d\\ude00"}')[1] == ["\U0001f600"]


@pytest.mark.parametrize(
    "messages",
    [
        b'{"role":"user","content":"a","role":"system"}',
        b'{"role":"user","content":[{"type":"text","text":"a","text":"b"}]}',
        b'{"role":"user","content":"a","content" :"b"}',
        # What only looks like the end of a name, or hides one, brings the counts no nearer.
        b'{"role":"user","content":": a","content":"b"}',
        b'{"role":"user","content":"a","x\\\\":1,"x\\\\":2}',
    ],
)
def test_a_name_twice_within_a_message_is_refused(messages: bytes) -> None:
    with pytest.raises(BadRequest) as error:
        read_request(b'{"messages":[' + messages + b"]}", ChatRequest, CHAT_FIELDS)
    assert "occurs twice" in error.value.message


@pytest.mark.parametrize("text", [": a", 'say "b": c', "\\", '\\": ', '{"a":1,"a":2}', '"'])
def test_a_text_is_never_taken_for_names(text: str) -> None:
    raw = json.dumps({"messages": [{"role": "user", "content": text}]}).encode()
    assert read_request(raw, ChatRequest, CHAT_FIELDS)[0].messages[0]["content"] == text


def test_the_parts_of_a_body_are_bounded() -> None:
    assert "fields" in refused(b"{" + b",".join(b'"%d":1' % i for i in range(300)) + b"}").message
    many = json.dumps({"messages": [{"a": 1}] * (body.MAX_NAMES + 1)}).encode()
    with pytest.raises(BadRequest, match="names"):
        read_request(many, ChatRequest, CHAT_FIELDS)


MANY_VALUES = [
    ("stop", b'["x"' + b',"x"' * body.MAX_VALUES + b"]"),
    ("stop_token_ids", b"[1" + b",1" * body.MAX_VALUES + b"]"),
    ("chat_template_kwargs", b'{"a":[[]' + b",[]" * body.MAX_VALUES + b"]}"),
    ("chat_template_kwargs", b'{"a":[0' + (b"," + b"[" * 100 + b"1" + b"]" * 100) * (body.MAX_VALUES // 100) + b"]}"),
    ("messages", b'[{"role":"user","content":["x"' + b',"x"' * body.MAX_VALUES + b"]}]"),
    ("tools", b'[{"function":{"parameters":{"enum":[",\\\\\\""' + b',"x"' * body.MAX_VALUES + b"]}}}]"),
]


@pytest.mark.parametrize(("name", "value"), MANY_VALUES)
def test_more_values_than_the_event_loop_has_time_for_are_refused_undecoded(
    name: str, value: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(body, "decode_field", lambda *_: pytest.fail("the values were decoded"))
    rest = b"" if name == "messages" else b',"messages":[]'
    with pytest.raises(BadRequest, match="values") as error:
        read_request(b'{"%b":%b%b}' % (name.encode(), value, rest), ChatRequest, CHAT_FIELDS)
    assert error.value.param == name


@pytest.mark.parametrize("text", [",[{" * body.MAX_VALUES, '\\",[{' * body.MAX_VALUES, '"' * 9 * body.MAX_VALUES])
def test_no_text_is_taken_for_values(text: str) -> None:
    raw = json.dumps({"messages": [{"role": "user", "content": text}]}).encode()
    assert read_request(raw, ChatRequest, CHAT_FIELDS)[0].messages[0]["content"] == text


def test_arguments_of_earlier_calls_are_bounded_together() -> None:
    def answer(arguments: str) -> dict[str, Any]:
        return {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": arguments}}]}

    third = '{"a":[1' + ",1" * (body.MAX_VALUES // 3) + "]}"
    rendered, _ = template_messages([answer(third), answer(json.dumps({"code": third * 9})), answer("no, JSON")])
    assert [call["tool_calls"][0]["function"]["arguments"] for call in rendered][2] == "no, JSON"
    with pytest.raises(BadRequest, match="arguments") as error:
        template_messages([answer(third)] * 3)
    assert error.value.param == "messages"


@pytest.mark.parametrize("kind", [[], {}, ["text"], {"a": 1}, None, 7])
def test_a_part_of_no_known_type_is_refused(kind: Any) -> None:
    with pytest.raises(BadRequest) as error:
        template_messages([{"role": "user", "content": ["a", {"type": kind, "text": "b"}]}])
    assert error.value.param == "messages[0].content[1]"


def test_a_large_body_is_read_by_msgspec_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(body.json, "loads", lambda *_, **__: pytest.fail("the slow parser was used"))
    text = "a line: of text\n" * 100_000
    assert completion(json.dumps({"prompt": text}).encode())[1] == [text]
    ids = list(range(300_000))
    assert completion(json.dumps({"prompt": ids}).encode())[1] == [ids]
    chat = json.dumps({"messages": [{"role": "user", "content": text}] * 3, "metadata": [{"a": 1}] * 100_000}).encode()
    assert len(read_request(chat, ChatRequest, CHAT_FIELDS)[0].messages) == 3


async def test_other_requests_have_their_turn_while_many_prompts_are_decoded() -> None:
    turns = 0

    async def other() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    task = asyncio.create_task(other())
    for prompt in (list(range(1_000_000)), [list(range(2000))] * 1024):
        turns = 0
        got = await prompts_of(msgspec.Raw(json.dumps(prompt).encode()))
        assert got == (prompt if len(prompt) == 1024 else [prompt])
        assert turns >= 10
    task.cancel()


@pytest.mark.parametrize("wrong", ["x", "a,b", [1, 2], 1.5, None])
def test_a_wrong_id_in_a_long_list_is_named(wrong: Any) -> None:
    ids = [1] * 600_000
    ids[400_000] = wrong
    with pytest.raises(BadRequest) as error:
        completion(json.dumps({"prompt": ids}).encode())
    assert error.value.param == "prompt[400000]"


def test_without_effect_means_not_even_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    raw = b'{"messages":[],"metadata":' + b"9" * 5000 + b',"user":1e999}'
    assert sorted(read_request(raw, ChatRequest, CHAT_FIELDS)[1]) == ["metadata", "user"]


@pytest.mark.parametrize("keys", [("5", "05"), ("7", "8", "007")])
def test_two_spellings_of_one_token_are_refused(keys: tuple[str, ...]) -> None:
    raw = json.dumps({"prompt": "a", "logit_bias": dict.fromkeys(keys, 1)}).encode()
    with pytest.raises(BadRequest) as error:
        sampling_params(completion(raw)[0], {}, 1)
    assert error.value.param == "logit_bias"


@given(st.binary(max_size=200))
def test_no_bytes_raise_anything_but_a_400(raw: bytes) -> None:
    try:
        parse_object(raw)
    except BadRequest as error:
        json.loads(error.body())


def test_a_message_never_grows_with_the_body() -> None:
    long = "x" * 100_000
    for raw in (json.dumps({long: 1}).encode(), json.dumps({"model": [long]}).encode()):
        with pytest.raises(BadRequest) as error:
            read_request(raw, CompletionRequest, COMPLETION_FIELDS)
        assert len(error.value.body()) < 2 * MAX_MESSAGE


@pytest.mark.parametrize("table", TABLES)
def test_every_field_is_in_one_list_only(table: FieldTable) -> None:
    names = [*table.honoured, *table.no_effect, *table.refused]
    assert len(names) == len(set(names))


@pytest.mark.parametrize("table", TABLES)
def test_null_and_neutral_values_pass_everywhere(table: FieldTable) -> None:
    for name in [*table.honoured, *table.no_effect, *table.refused]:
        assert screen(encoded({name: None}), table) == ({}, [])
    for name, neutral in table.refused.items():
        for value in neutral:
            assert screen(encoded({name: value}), table) == ({}, [])


@pytest.mark.parametrize("table", TABLES)
def test_other_values_of_refused_fields_are_refused_by_name(table: FieldTable) -> None:
    for name in table.refused:
        with pytest.raises(ApiError) as error:
            screen(encoded({name: "something else"}), table)
        assert error.value.param == name and name in error.value.message


def test_true_is_not_one() -> None:
    with pytest.raises(BadRequest):
        screen(encoded({"stream_interval": True}), COMPLETION_FIELDS)
    with pytest.raises(BadRequest):
        screen(encoded({"return_prompt_text": 0}), COMPLETION_FIELDS)
    assert screen(encoded({"stream_interval": 1.0}), COMPLETION_FIELDS) == ({}, [])


def test_fields_without_effect_are_named() -> None:
    raw = b'{"messages":[],"user":"u","store":false,"seed":1,"stream_options":{"include_obfuscation":false}}'
    request, ignored = read_request(raw, ChatRequest, CHAT_FIELDS)
    assert sorted(ignored) == ["store", "stream_options.include_obfuscation", "user"]
    assert request.seed == 1


@pytest.mark.parametrize(
    ("raw", "param"),
    [
        (b"{}", "prompt"),
        (b'{"prompt":1}', "prompt"),
        (b'{"prompt":"a","max_tokens":"1"}', "max_tokens"),
        (b'{"prompt":"a","max_tokens":1.5}', "max_tokens"),
        (b'{"prompt":"a","temperature":"0.5"}', "temperature"),
        (b'{"prompt":"a","temperature":1e999}', "temperature"),
        (b'{"prompt":"a","seed":' + b"9" * 5000 + b"}", "seed"),
        (b'{"prompt":null}', "prompt"),
        (b'{"prompt":{}}', "prompt"),
        (b'{"prompt":"a","stream_interval":1e999}', "stream_interval"),
        (b'{"prompt":"a","n":1e999}', "n"),
        (b'{"prompt":"a","n":"2"}', "n"),
        (b'{"prompt":"a","logit_bias":{"5":"x"}}', "logit_bias[...]"),
        (b'{"prompt":"a","stream":1}', "stream"),
        (b'{"prompt":"a","stop":[1]}', "stop[0]"),
        (b'{"prompt":"a","stream_options":{"x":1}}', "stream_options"),
        (b'{"prompt":[true]}', "prompt[0]"),
        (b'{"prompt":[1.5]}', "prompt[0]"),
        (b'{"prompt":"a","logprobs":"0"}', "logprobs"),
        (b'{"prompt":"a","max_token":1}', "max_token"),
    ],
)
def test_a_wrong_field_is_named(raw: bytes, param: str) -> None:
    with pytest.raises(BadRequest) as error:
        completion(raw)
    assert error.value.param == param
    assert "int string conversion" not in error.value.message


@pytest.mark.parametrize(
    ("prompt", "prompts"),
    [
        ("a", ["a"]),
        (["a", "b"], ["a", "b"]),
        ([1, 2], [[1, 2]]),
        ([[1], [2, 3]], [[1], [2, 3]]),
        ([[]], [[]]),
        ("", [""]),
    ],
)
def test_prompts_are_texts_or_ids_or_lists_of_either(prompt: Any, prompts: Any) -> None:
    for text in (json.dumps(prompt), json.dumps(prompt, indent=1)):
        assert completion(b'{"prompt":' + text.encode() + b"}")[1] == prompts


@pytest.mark.parametrize("prompt", [[], ["a", 1], [[1], "a"], [1, [2]], ["a"] * 1025, [[1]] * 1025])
def test_empty_mixed_and_too_many_prompts_are_refused(prompt: Any) -> None:
    with pytest.raises(BadRequest) as error:
        completion(json.dumps({"prompt": prompt}).encode())
    assert (error.value.param or "").startswith("prompt")


def test_content_may_be_a_string_or_text_parts() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    call = {"id": "1", "function": {"name": "f", "arguments": '{"a": 1}'}}
    messages, ignored = template_messages(
        [
            {"role": "user", "content": parts, "name": None},
            {"role": "assistant", "content": None, "tool_calls": [call], "refusal": "no", "annotations": []},
        ]
    )
    assert messages == [
        {"role": "user", "content": "a\nb"},
        {
            "role": "assistant",
            "tool_calls": [{"id": "1", "function": {"name": "f", "arguments": {"a": 1}}}],
            "content": "",
        },
    ]
    assert ignored == ["messages.refusal"]


@pytest.mark.parametrize(
    "message",
    [
        {},
        {"role": "user"},
        {"role": 1, "content": "a"},
        {"role": "", "content": "a"},
        {"role": "user", "content": None},
        {"role": "user", "content": 3},
        {"role": "user", "content": [3]},
        {"role": "user", "content": [{"type": "text"}]},
        {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]},
        {"role": "user", "content": "a", "colour": "red"},
    ],
)
def test_other_messages_are_refused_with_their_place(message: dict[str, Any]) -> None:
    with pytest.raises(BadRequest) as error:
        template_messages([{"role": "user", "content": "fine"}, message])
    assert (error.value.param or "").startswith("messages[1].")


def test_no_messages_are_refused() -> None:
    with pytest.raises(BadRequest):
        template_messages([])
