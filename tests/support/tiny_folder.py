"""A model folder without weights: enough for the scripted worker, which needs a tokenizer and a few numbers."""

import json
from collections.abc import Sequence
from pathlib import Path

import xxhash
from tiny_tokenizer import CHATML, write_tokenizer
from tokenizers import Tokenizer

MAX_MODEL_LEN = 2048


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

    def __init__(self, folder: Path) -> None:
        self.tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        self.vocabulary = self.tokenizer.get_vocab_size()
        added = json.loads((folder / "tokenizer.json").read_text())["added_tokens"]
        self._never = {token["id"] for token in added if token["special"]}

    def encode(self, text: str) -> list[int]:
        return self.tokenizer.encode(text, add_special_tokens=True).ids

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
