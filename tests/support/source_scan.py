"""Sizes of files and functions, read from source text without compiling it."""

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True)
class Function:
    name: str
    line: int
    lines: int
    parameters: int

    def __str__(self) -> str:
        return f"{self.line} {self.name}: {self.lines} lines, {self.parameters} parameters"


def code_lines(source: str, suffix: str) -> int:
    """Lines that hold something else than comments, docstrings and blanks."""
    return len(_python_code_lines(source)) if suffix == ".py" else _count_filled(blank_rust(source))


def _count_filled(source: str) -> int:
    return sum(1 for line in source.splitlines() if line.strip())


def _python_code_lines(source: str) -> set[int]:
    ignored = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}
    lines = {
        line
        for token in tokenize.generate_tokens(io.StringIO(source).readline)
        if token.type not in ignored
        for line in range(token.start[0], token.end[0] + 1)
    }
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and ast.get_docstring(
            node, clean=False
        ):
            text = node.body[0]
            lines -= set(range(text.lineno, (text.end_lineno or text.lineno) + 1))
    return lines


def python_functions(source: str) -> Iterator[Function]:
    """Every function, from its `def` to its end; `self` and `cls` are not parameters."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            arguments = node.args
            named = [a.arg for a in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)]
            count = len(named) - (named[:1] in (["self"], ["cls"]))
            count += (arguments.vararg is not None) + (arguments.kwarg is not None)
            end = node.end_lineno or node.lineno
            yield Function(node.name, node.lineno, end - node.lineno + 1, count)


# A raw string, a string, a character that is no lifetime, a block comment or a line comment.
_RUST_OPAQUE = re.compile(
    r"""r(\#*)".*?"\1 | "(?:\\.|[^"\\])*" | '(?:\\[^']+|[^'\\])' | /\*.*?\*/ | //[^\n]*""", re.DOTALL | re.VERBOSE
)


def blank_rust(source: str) -> str:
    """Rust with comments removed and the contents of literals replaced, line breaks kept."""

    def replace(match: re.Match[str]) -> str:
        filler = "" if match[0].startswith("/") else "_"
        return filler + "\n".join(filler for _ in match[0].split("\n"))

    return _RUST_OPAQUE.sub(replace, source)


def rust_functions(source: str) -> Iterator[Function]:
    """Every function with a body, from its `fn` to its end; receivers are not parameters."""
    text = blank_rust(source)
    for match in re.finditer(r"\bfn\s+(\w+)", text):
        opening = _after_generics(text, match.end())
        if opening is None:
            continue
        closing = _closing(text, opening)
        body = _body_start(text, closing + 1)
        if body is None:
            continue
        end = _closing(text, body)
        line = text.count("\n", 0, match.start()) + 1
        length = text.count("\n", match.start(), end) + 1
        yield Function(match[1], line, length, _count_parameters(text[opening + 1 : closing]))


def _after_generics(text: str, position: int) -> int | None:
    depth = 0
    for index in range(position, len(text)):
        character = text[index]
        if character == "<":
            depth += 1
        elif character == ">" and text[index - 1] not in "-=":
            depth -= 1
        elif character == "(" and depth == 0:
            return index
        elif character in "{;" and depth == 0:
            return None
    return None


def _closing(text: str, opening: int) -> int:
    pair = {"(": ")", "{": "}"}[text[opening]]
    depth = 0
    for index in range(opening, len(text)):
        if text[index] == text[opening]:
            depth += 1
        elif text[index] == pair:
            depth -= 1
            if depth == 0:
                return index
    raise ValueError(f"no closing {pair!r} for the bracket at character {opening}")


def _body_start(text: str, position: int) -> int | None:
    depth = 0
    for index in range(position, len(text)):
        if text[index] in "([":
            depth += 1
        elif text[index] in ")]":
            depth -= 1
        elif text[index] == ";" and depth == 0:
            return None
        elif text[index] == "{" and depth == 0:
            return index
    return None


_RECEIVER = re.compile(r"\s*(&\s*('\w+\s+)?)?(mut\s+)?self(\s*:.*)?\s*", re.DOTALL)


def _count_parameters(inside: str) -> int:
    depth, parameters, current = 0, [], ""
    for index, character in enumerate(inside):
        if character in "([{<":
            depth += 1
        elif character in ")]}" or (character == ">" and inside[index - 1] not in "-="):
            depth -= 1
        if character == "," and depth == 0:
            parameters.append(current)
            current = ""
        else:
            current += character
    parameters.append(current)
    named = [parameter for parameter in parameters if parameter.strip()]
    return sum(
        1 for parameter in named if not re.fullmatch(r"\s*(&\s*('\w+\s+)?)?(mut\s+)?self(\s*:.*)?\s*", parameter)
    )
