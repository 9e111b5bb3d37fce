"""Fill `cases.json` with what transformers renders: `python make_expected.py`, in an environment that has it."""

import json
from pathlib import Path
from typing import Any

import jinja2
from transformers.utils.chat_template_utils import _normalize_chat_messages, render_jinja_template

HERE = Path(__file__).parent


def outcome(case: dict[str, Any]) -> dict[str, str]:
    request = dict(case["request"])
    messages = _normalize_chat_messages(request.pop("messages"))
    variables = {**case["special_tokens"], **request.pop("chat_template_kwargs", {})}
    template = (HERE / f"{case['template']}.jinja").read_text()
    try:
        rendered, _ = render_jinja_template([messages], chat_template=template, **request, **variables)
    except jinja2.TemplateError as error:
        return {"refused": str(error)}
    return {"expected": rendered[0]}


def main() -> None:
    path = HERE / "cases.json"
    cases = json.loads(path.read_text())
    for case in cases:
        for key in ("expected", "refused"):
            case.pop(key, None)
        case.update(outcome(case))
    path.write_text(json.dumps(cases, ensure_ascii=False, indent=1) + "\n")


if __name__ == "__main__":
    main()
