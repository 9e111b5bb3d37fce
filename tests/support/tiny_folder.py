"""A model folder without weights: enough for the scripted worker, which needs a tokenizer and a few numbers."""

import json
import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import xxhash
from tiny_tokenizer import CHATML, write_tokenizer
from tokenizers import Tokenizer

MAX_MODEL_LEN = 2048
MASK = 2**64 - 1
# The letters of byte-level BPE: bytes that can be seen stand for themselves, the others follow after 255.
PLAIN = [*range(33, 127), *range(161, 173), *range(174, 256)]
BYTES_OF = {chr(byte): byte for byte in PLAIN} | {
    chr(256 + index): byte for index, byte in enumerate(byte for byte in range(256) if byte not in PLAIN)
}


def write_folder(folder: Path, chat_template: str | None = CHATML, special: Sequence[str] = ()) -> Path:
    """Writes a tokenizer, with `special` tokens beside its own, and a config.json; the end token is `<|im_end|>`."""
    write_tokenizer(folder, chat_template)
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    if special:
        tokenizer.add_special_tokens(list(special))
        tokenizer.save(str(folder / "tokenizer.json"))
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": tokenizer.get_vocab_size(),
        "max_position_embeddings": MAX_MODEL_LEN,
        "eos_token_id": tokenizer.token_to_id("<|im_end|>"),
    }
    (folder / "config.json").write_text(json.dumps(config))
    return folder


class HashOracle:
    """What the scripted worker answers in hash mode: the next token is a hash of all tokens before it."""

    def __init__(self, folder: Path, *, never: set[int] | None = None) -> None:
        """`never`: ids without a share; by default the special ones."""
        self.tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        self.vocabulary = self.tokenizer.get_vocab_size()
        added = json.loads((folder / "tokenizer.json").read_text())["added_tokens"]
        self._added = {token["id"] for token in added}
        self._never = {token["id"] for token in added if token["special"]} if never is None else never

    def encode(self, text: str) -> list[int]:
        return self.tokenizer.encode(text, add_special_tokens=True).ids

    def logprobs(self, ids: list[int]) -> dict[int, np.float32]:
        """After these ids: every id that may come has a logit, a hash of the ids and of it."""
        digest = xxhash.xxh3_64_intdigest(b"".join(token.to_bytes(4, "little") for token in ids))
        logits = {}
        for token in range(self.vocabulary):
            if token not in self._never:
                mixed = ((digest ^ (token * 0x9E3779B97F4A7C15 & MASK)) * 0xFF51AFD7ED558CCD) & MASK
                logits[token] = float(np.float32(mixed >> 48) / np.float32(8192.0))
        total = math.log(sum(math.exp(logit) for logit in logits.values()))
        return {token: np.float32(logit - total) for token, logit in logits.items()}

    def bytes_of(self, token: int) -> bytes:
        """Of a token that others precede."""
        name = self.tokenizer.id_to_token(token)
        return name.encode() if token in self._added else bytes(BYTES_OF[letter] for letter in name)

    def logprobs_of(self, prompt: list[int], ids: list[int]) -> list[float]:
        """Of each of the ids after those before it."""
        return [float(self.logprobs(prompt + ids[:index])[token]) for index, token in enumerate(ids)]

    def continuation(self, prompt: list[int], length: int, choice: int = 0) -> list[int]:
        """The hash of a further choice has its index behind the tokens."""
        ids, behind = list(prompt), [choice] if choice else []
        for _ in range(length):
            digest = xxhash.xxh3_64_intdigest(b"".join(token.to_bytes(4, "little") for token in ids + behind))
            token = digest % self.vocabulary
            while token in self._never:
                token = (token + 1) % self.vocabulary
            ids.append(token)
        return ids[len(prompt) :]
