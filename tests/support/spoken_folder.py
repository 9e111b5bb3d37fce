"""Model folders for scripted answers, one for each kind of tokenizer: what a model would say is given as token ids."""

import json
from collections.abc import Iterable
from pathlib import Path

from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers

LETTERS = [chr(code) for code in range(33, 127)]
WORDS = ["the", "he", "ing", "in", "end", "and", "é"]
SPECIAL = ["<unk>", "<s>", "</s>"]
ADDED = ["<think>", "</think>"]


def write_byte_fallback(folder: Path) -> Path:
    """As Llama 2: pieces with a mark for the space, bytes for what has no piece, one space less at the beginning."""
    byte_tokens = [f"<0x{byte:02X}>" for byte in range(256)]
    pieces = ["▁", *LETTERS, *WORDS, *(f"▁{word}" for word in WORDS)]
    vocabulary = _numbered([*SPECIAL, *byte_tokens, *pieces])
    tokenizer = Tokenizer(models.BPE(vocabulary, [], unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    return _write(folder, tokenizer)


def write_metaspace(folder: Path) -> Path:
    """As T5: Unigram pieces, and a decoder that drops the spaces of the first piece."""
    pieces = [*SPECIAL, "▁", *LETTERS, *WORDS, *(f"▁{word}" for word in WORDS)]
    tokenizer = Tokenizer(models.Unigram([(piece, -len(piece) / 10) for piece in pieces], unk_id=0))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    return _write(folder, tokenizer)


def write_word_piece(folder: Path) -> Path:
    """As BERT: words joined by spaces, and cleaned up."""
    pieces = [*SPECIAL, *LETTERS, *WORDS, *(f"##{piece}" for piece in [*LETTERS, *WORDS])]
    tokenizer = Tokenizer(models.WordPiece(_numbered(pieces), unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    return _write(folder, tokenizer)


WRITERS = {"byte_fallback": write_byte_fallback, "metaspace": write_metaspace, "word_piece": write_word_piece}


def _numbered(pieces: Iterable[str]) -> dict[str, int]:
    return {piece: number for number, piece in enumerate(dict.fromkeys(pieces))}


def _write(folder: Path, tokenizer: Tokenizer) -> Path:
    """Adds the same special and added tokens to each; the end of sequence is `</s>`."""
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in SPECIAL])
    tokenizer.add_tokens([AddedToken(token, normalized=False) for token in ADDED])
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": tokenizer.get_vocab_size(),
        "max_position_embeddings": 4096,
        "eos_token_id": tokenizer.token_to_id("</s>"),
    }
    (folder / "config.json").write_text(json.dumps(config))
    return folder
