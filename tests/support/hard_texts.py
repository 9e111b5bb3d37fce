"""Texts over which servers and clients stumble, and token ids that say them, each character in several tokens."""

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from tokenizers import Tokenizer

TEXTS = {
    "accents": "Příliš žluťoučký kůň úpěl ďábelské ódy; é is not é",
    "Chinese, Japanese and Korean": "你好，世界。日本語の文章です。안녕하세요 𠮷野家 葛󠄀",
    "families": "👩‍👩‍👧‍👦👨‍👩‍👧 🧑🏽‍🤝‍🧑🏿 👍🏽",
    "flags": "🇨🇿🇺🇦 🏴󠁧󠁢󠁥󠁮󠁧󠁿 🏳️‍🌈",
    "keycaps": "1️⃣#️⃣*️⃣ ☃️ ❤️‍🔥 ©️",
    "Indic conjuncts": "क्षत्रिय र्‍य ന്‍ മലയാളം தமிழ் శ్రీ ක්‍ෂ",
    "scripts without spaces": "ภาษาไทยไม่มีช่องว่าง မြန်မာဘာသာ ភាសាខ្មែរ",
    "right to left": "שָׁלוֹם עולם, مرحبا بالعالم \u200f(\u2067abc\u2069)\u200e نستعلیق‌ها",
    "control characters": "a" + "".join(map(chr, range(32))) + "\x7f" + "".join(map(chr, range(0x80, 0xA0))) + "z",
    "ends of lines": "a\u2028b\u2029c\x85d\ve\ff\r\ng\rh\n\ni\n",
    "as a stream writes": 'data: {"a"}\n\ndata: [DONE]\n\n: comment\r\n\r\nevent: x\rid: \\u2028 \\n \\" "',
    "invisible ones": "\ufeffa\u200bb\u00adc\u2060d\u00a0e\ufffe\uffff\U0010ffff\ue000\ufeff",
    "replacement characters": "\ufffd is written here \ufffd\ufffd",
}
BROKEN = {
    "lone bytes": b"a\x80b\xbf\xbfc\xff\xfed\xc3",
    "characters cut short": b"\xf0\x9f\x98 a \xe4\xbd\xe5\xa5\xbd \xf0\x9f\xf0\x9f\x98\x80 \xf0\x9f\x91",
    "what UTF-8 forbids": b"\xc0\x80 \xe0\x9f\xbf \xf0\x8f\xbf\xbf \xf4\x90\x80\x80 \xf8\x88\x80\x80\x80",
    "surrogates": b"\xed\xa0\xbd\xed\xb8\x80 a \xed\xbf\xbf",
}


class Said(NamedTuple):
    """What a model says, and what a client must read."""

    name: str
    ids: list[int]
    text: str


def sayings(folder: Path, in_pieces: bool) -> list[Said]:
    """All of the above, in the tokens of single bytes, or the sound texts in what the tokenizer makes of them."""
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokens = byte_tokens(tokenizer)
    ids_of = {name: [tokens[byte] for byte in text.encode()] for name, text in TEXTS.items()}
    if in_pieces:
        ids_of = {name: tokenizer.encode(text, add_special_tokens=False).ids for name, text in TEXTS.items()}
    said = [Said(name, ids, own_decode(tokenizer, ids)) for name, ids in ids_of.items()]
    assert [one.text.removeprefix(" ") for one in said] == list(TEXTS.values())
    broken = [(name, content, [tokens[byte] for byte in content]) for name, content in BROKEN.items()]
    return said + [Said(name, ids, content.decode("utf-8", "replace")) for name, content, ids in broken]


def own_decode(tokenizer: Tokenizer, ids: list[int]) -> str:
    """What `ids` add to the tokenizer's own decode of a letter before them."""
    letter = [tokenizer.token_to_id("a")]
    whole: str = tokenizer.decode(letter + ids)
    return whole.removeprefix("a")


def byte_tokens(tokenizer: Tokenizer) -> list[int]:
    """The token of each byte, in byte-level vocabularies and in those with byte fallback."""
    names = [f"<0x{byte:02X}>" for byte in range(256)]
    if tokenizer.token_to_id(names[0]) is None:
        names = list(_alphabet())
    ids = [tokenizer.token_to_id(name) for name in names]
    assert None not in ids, "a byte has no token of its own"
    return ids


def _alphabet() -> Iterator[str]:
    """The character that stands for each byte in byte-level BPE, as GPT-2's `bytes_to_unicode` defines it."""
    shifted = 256
    for byte in range(256):
        if byte in {*range(33, 127), *range(161, 173), *range(174, 256)}:
            yield chr(byte)
        else:
            yield chr(shifted)
            shifted += 1
