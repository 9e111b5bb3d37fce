"""What a thousand tokens of emoji, or of Chinese, Japanese and Korean, cost to encode, beside a thousand of ASCII.

    bench/encode.py [--folder FOLDER]

Over the tokenizers that `bench/text.py` gathers, in turns within each round, medians of many. Beside it a Python thread
counts while a long text is encoded: with the GIL held it would stand still. The exit code says whether both hold: at
most twice the time of ASCII, and a thread that counts on, at a tenth of its pace or more, whatever else the CPUs do.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from text import LARGE, ROOT, SOURCES, default_folder, gather

from diptych_core.text import Tokenizer

TOKENS = 1_000
ROUNDS = 101
MOST = 2.0
LEAST_PACE = 0.1
# The first article of the Universal Declaration of Human Rights, and the second's beginning.
CJK = (
    "人人生而自由，在尊严和权利上一律平等。他们赋有理性和良心，并应以兄弟关系的精神相对待。人人有资格享受本宣言所载的一切权利和自由，"
    "不分种族、肤色、性别、语言、宗教、政治或其他见解。すべての人間は、生まれながらにして自由であり、かつ、尊厳と権利とについて平等である。"
    "人間は、理性と良心とを授けられており、互いに同胞の精神をもって行動しなければならない。"
    "모든 인간은 태어날 때부터 자유로우며 그 존엄과 권리에 있어 동등하다. "
    "인간은 천부적으로 이성과 양심을 부여받았으며 서로 형제애의 정신으로 행동하여야 한다."
)
EMOJI = "😀 👩‍👩‍👧‍👦 🇨🇿🇺🇦 👍🏽 1️⃣#️⃣ ❤️‍🔥 🏴󠁧󠁢󠁥󠁮󠁧󠁿 🏳️‍🌈 🧑🏽‍🤝‍🧑🏿 ☃️ 🎉🎉🎉 🦊🐻🐼 🍕🍔🍟 ✈️🚀 🥺👉👈 💀 "


class Costs(NamedTuple):
    """Microseconds for a thousand tokens, and the pace of another thread as a part of its own when alone."""

    name: str
    ascii: float
    cjk: float
    emoji: float
    pace: float

    @property
    def holds(self) -> bool:
        return max(self.cjk, self.emoji) <= MOST * self.ascii and self.pace >= LEAST_PACE


def of_tokens(tokenizer: Tokenizer, text: str, count: int) -> str:
    """The beginning of `text` after `text` that has `count` tokens, or the least more."""
    text *= 1 + count // max(1, len(tokenizer.encode(text, add_special_tokens=False)))
    low, high = 0, len(text)
    while low < high:
        middle = (low + high) // 2
        enough = len(tokenizer.encode(text[:middle], add_special_tokens=False)) >= count
        low, high = (low, middle) if enough else (middle + 1, high)
    return text[:low]


def measure(name: str, folder: Path) -> Costs:
    tokenizer = Tokenizer.from_folder(folder)
    english = (ROOT / "ARCHITECTURE.md").read_text().encode("ascii", "ignore").decode()
    texts = [of_tokens(tokenizer, text, TOKENS) for text in (english, CJK, EMOJI)]
    rounds = [[seconds(lambda text=text: tokenizer.encode(text)) for text in texts] for _ in range(ROUNDS)]
    costs = [statistics.median(column) * 1e6 for column in zip(*rounds, strict=True)]
    long = "".join(texts) * 300
    return Costs(name, *costs, pace(lambda: tokenizer.encode(long)))


def seconds(work: Callable[[], object]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def pace(work: Callable[[], object]) -> float:
    """How fast this thread counts while another one works, as a part of how fast it counts alone."""
    working = threading.Thread(target=work)
    started = time.perf_counter()
    working.start()
    # The same calls in each turn of both.
    meanwhile = count_while(lambda: time.perf_counter() > started and working.is_alive())
    ended = time.perf_counter()
    end = ended + (ended - started)
    return meanwhile / count_while(lambda: time.perf_counter() < end and not working.is_alive())


def count_while(holds: Callable[[], bool]) -> int:
    return next(number for number in itertools.count() if not holds())


def table(results: list[Costs]) -> str:
    lines = ["| tokenizer | ASCII, µs | CJK | emoji | a thread beside it |", "|---|--:|--:|--:|--:|"]
    lines += [
        f"| {one.name} | {one.ascii:.0f} | {one.cjk:.0f} ({one.cjk / one.ascii:.2f}) "
        f"| {one.emoji:.0f} ({one.emoji / one.ascii:.2f}) | {one.pace:.2f} |"
        for one in results
    ]
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description="The cost of encoding emoji and CJK beside ASCII.")
    parser.add_argument("--folder", type=Path, default=default_folder(), help="where the tokenizers are kept")
    options = parser.parse_args()
    sources = SOURCES | LARGE
    gather(sources, options.folder)
    results = [measure(name, options.folder / name) for name in sources]
    print(table(results))
    return 0 if all(one.holds for one in results) else 1


if __name__ == "__main__":
    sys.exit(main())
