"""Chat templates with tools, one with tags around JSON and reasoning, one with marks, and answers that call tools."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from service_rig import ServiceThread
from tiny_folder import HashOracle

TAGS = """\
{%- if tools %}
{{- '<|im_start|>system\\nYou may call: ' }}
{%- for tool in tools %}{{ tool | tojson }}{% endfor %}
{{- '\\nCall as <tool_call>{"name": ..., "arguments": ...}</tool_call><|im_end|>\\n' }}
{%- endif %}
{%- for document in documents or [] %}{{ '<doc>' + document.title + ': ' + document.text + '</doc>\\n' }}{% endfor %}
{%- for message in messages %}
{{- '<|im_start|>' + message.role + '\\n' }}
{%- if message.reasoning_content %}{{ '<think>\\n' + message.reasoning_content + '\\n</think>\\n' }}{% endif %}
{{- message.content }}
{%- for call in message.tool_calls or [] %}
{{- '<tool_call>' + call.function.name + ' ' + (call.function.arguments | tojson) + '</tool_call>' }}
{%- endfor %}
{{- '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}
{%- if begin_thinking %}{{ '<think>\\n' }}{% endif %}
{%- endif %}
"""

MARKED = """\
{%- if tools %}{{ '[AVAILABLE_TOOLS]' + (tools | tojson) }}{% endif %}
{%- for message in messages %}
{{- '[' + message.role + ']' + message.content }}
{%- for call in message.tool_calls or [] %}{{ '[TOOL_CALLS]' + call.function.name }}{% endfor %}
{%- endfor %}
"""

TOOLS: list[Any] = [
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "description": "The weather in a city",
            "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
        },
    },
    {"type": "function", "function": {"name": "add"}},
]
ARGUMENTS = ['{"city": "K\u00f6ln \U0001f600 \\"}\\"", "days": [1, 2]}', '{"city": "Paris\u2028"}']
CALLS = [f'<tool_call>\n{{"name": "get_weather", "arguments": {arguments}}}\n</tool_call>' for arguments in ARGUMENTS]
THINKING = "<think>\nTwo cities: two calls.\n</think>\n\n"
ANSWER = THINKING + "Let me look.\n" + "\n".join(CALLS)


@contextmanager
def answering(folder: Path, answer: str, **engine: Any) -> Iterator[ServiceThread]:
    """A service whose every answer is the given one."""
    script = [HashOracle(folder).encode(answer)]
    with ServiceThread(folder, script=script, **engine) as service:
        yield service
