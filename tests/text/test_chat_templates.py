"""Chat prompts as the engine renders them, against transformers' apply_chat_template."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tiny_tokenizer import CHATML, write_tokenizer

from diptych_core.text import ChatTemplate, TemplateError

# Written for this test, each with constructs that templates of released models use.
TEMPLATES = {
    "chatml": CHATML,
    "trim_and_alternate": (
        "{{ bos_token }}{%- if messages[0]['role'] == 'system' -%}{%- set system = messages[0]['content'] | trim -%}"
        "{%- set rest = messages[1:] -%}{%- else -%}{%- set system = '' -%}{%- set rest = messages -%}{%- endif -%}"
        "{%- for message in rest -%}{%- if loop.index0 == 0 and system -%}{{ '<<SYS>>' + system + '<</SYS>>\\n' }}"
        "{%- endif -%}{{ '[' + message.role | upper + '] ' + message.content.strip() }}"
        "{%- if message['role'] == 'assistant' -%}{{ eos_token }}{%- endif -%}{%- endfor -%}"
    ),
    "namespace_and_tools": (
        "{%- set ns = namespace(count=0, seen=false) -%}{%- if tools is defined and tools -%}"
        "{{- 'Tools: ' + (tools | tojson) + '\\n' -}}{%- endif -%}{%- for message in messages -%}"
        "{%- set ns.count = ns.count + 1 -%}{%- if message.content is string -%}"
        "{{- '<' ~ message.role ~ ' ' ~ ns.count ~ '>' ~ message.content ~ '\\n' -}}{%- endif -%}"
        "{%- if not loop.last and message.role in ['user', 'system'] -%}{%- set ns.seen = true -%}{%- endif -%}"
        "{%- endfor -%}{%- if ns.seen -%}{{ '...' }}{%- endif -%}"
        "{%- if add_generation_prompt -%}{{ '<assistant>' }}{%- endif -%}"
    ),
    "reasoning_switch": (
        "{%- for message in messages[::-1] if message.role != 'tool' -%}{%- if loop.first -%}"
        "{%- set last = message.content.split('</think>')[-1].lstrip('\\n') -%}{{ last.replace('a', 'b') }}|"
        "{%- endif -%}"
        "{%- endfor -%}{%- for message in messages -%}{{ message.role[:1] | upper }}{{ message.content | length }},"
        "{%- endfor -%}{%- if enable_thinking is defined and enable_thinking is false -%}"
        "{{ '<think></think>' }}{%- endif -%}"
    ),
}

roles = st.sampled_from(["user", "assistant"])
messages = st.lists(st.fixed_dictionaries({"role": roles, "content": st.text(max_size=40)}), min_size=1, max_size=5)
system = st.none() | st.text(max_size=20)


class Pair:
    """One template, by both renderers."""

    def __init__(self, folder: Path, template: str) -> None:
        from transformers import PreTrainedTokenizerFast

        write_tokenizer(folder, template)
        self.oracle = PreTrainedTokenizerFast.from_pretrained(folder)
        ours = ChatTemplate.from_folder(folder)
        assert ours is not None
        self.ours = ours

    def render(self, messages: list[dict[str, Any]], **options: Any) -> str:
        request = {
            "messages": messages,
            "add_generation_prompt": options.pop("add_generation_prompt", True),
            "continue_final_message": options.pop("continue_final_message", False),
            "tools": options.pop("tools", None),
            "chat_template_kwargs": options,
        }
        return self.ours.render(json.dumps(request))

    def expected(self, messages: list[dict[str, Any]], **options: Any) -> str:
        options.setdefault("add_generation_prompt", True)
        rendered = self.oracle.apply_chat_template(messages, tokenize=False, **options)
        assert isinstance(rendered, str)
        return rendered


@pytest.fixture(scope="module", params=TEMPLATES)
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Pair:
    return Pair(tmp_path_factory.mktemp(request.param), TEMPLATES[request.param])


@given(messages=messages, system=system, generate=st.booleans())
def test_rendering_equals_transformers(pair: Pair, messages: list[Any], system: str | None, generate: bool) -> None:
    if system is not None:
        messages = [{"role": "system", "content": system}, *messages]
    options = {"add_generation_prompt": generate}
    assert pair.render(messages, **options) == pair.expected(messages, **options)


@pytest.fixture(scope="module")
def printer(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    return Pair(tmp_path_factory.mktemp("numbers"), "{{ messages[0].content }}{{ numbers }}{{ numbers | tojson }}")


INTEGERS = st.integers() | st.integers(-(2**200), 2**200) | st.integers(-(2**65), 2**65)
# Of many of the last two texts with as few digits are equally near.
FLOATS = st.floats(allow_nan=False, allow_infinity=False) | st.integers(2**50, 2**53).map(lambda number: number / 4)


@given(st.lists(INTEGERS | FLOATS))
def test_numbers_are_printed_as_python_prints_them(printer: Pair, numbers: list[int | float]) -> None:
    messages = [{"role": "user", "content": "x"}]
    assert printer.render(messages, numbers=numbers) == printer.expected(messages, numbers=numbers)


def test_extra_variables_reach_the_template(pair: Pair) -> None:
    messages = [{"role": "user", "content": "banana"}]
    assert pair.render(messages, enable_thinking=False) == pair.expected(messages, enable_thinking=False)


def test_the_final_message_can_be_continued(tmp_path: Path) -> None:
    pair = Pair(tmp_path, CHATML)
    messages = [{"role": "user", "content": "Count."}, {"role": "assistant", "content": "1, 2,"}]
    options = {"add_generation_prompt": False, "continue_final_message": True}
    assert pair.render(messages, **options) == pair.expected(messages, **options)


def test_a_folder_without_a_template_has_none(tmp_path: Path) -> None:
    assert ChatTemplate.from_folder(write_tokenizer(tmp_path, None)) is None


def test_a_template_that_refuses_says_so(tmp_path: Path) -> None:
    template = ChatTemplate.from_folder(write_tokenizer(tmp_path, "{{ raise_exception('roles must alternate') }}"))
    assert template is not None
    with pytest.raises(TemplateError, match="roles must alternate") as caught:
        template.render(json.dumps({"messages": [{"role": "user", "content": "x"}], "add_generation_prompt": True}))
    assert caught.value.kind == "template_refused"


def test_a_template_without_end_is_stopped(tmp_path: Path) -> None:
    endless = "{% for a in range(100000) %}{% for b in range(100000) %}{{ a * b }}{% endfor %}{% endfor %}"
    template = ChatTemplate.from_folder(write_tokenizer(tmp_path, endless))
    assert template is not None
    with pytest.raises(TemplateError):
        template.render(json.dumps({"messages": [{"role": "user", "content": "x"}], "add_generation_prompt": True}))


def test_a_broken_template_is_refused_when_loaded(tmp_path: Path) -> None:
    with pytest.raises(TemplateError) as caught:
        ChatTemplate.from_folder(write_tokenizer(tmp_path, "{% for %}"))
    assert caught.value.kind == "template_syntax"
