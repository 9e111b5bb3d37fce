"""The prompts of the parity run: short ones as people write them, block edges, and long ones of exact lengths."""

import random

QUESTIONS = [
    "What is the capital of France?",
    "Write a haiku about rain.",
    "Explain in one paragraph how a bicycle stays upright.",
    "Translate to German: The library closes at eight o'clock.",
    "List three uses of baking soda.",
    "def fibonacci(n):\n    ",
    "Once upon a time, in a village by the sea,",
    "The three laws of thermodynamics are",
    "Q: If a train leaves at 3 pm and travels for 90 minutes, when does it arrive?\nA:",
    "Dear Sir or Madam,\n\nI am writing to complain about",
    '{"name": "Ada", "born": 1815, "known_for": "',
    "SELECT name, COUNT(*) FROM orders",
    "The quick brown fox jumps over the lazy dog. The quick brown fox",
    "1, 1, 2, 3, 5, 8, 13,",
    "Příliš žluťoučký kůň úpěl",
    "東京は日本の",
    "🙂 is an emoji that means",
    "A",
]
# Token lengths around the edges of 16-token blocks.
EDGES = (1, 15, 16, 17, 31, 32, 33, 48, 64, 100, 255, 256, 257)
MEDIUM = (1024, 2048)
LONG = (4096, 8128)

_SUBJECTS = (
    "The river",
    "A gardener",
    "My neighbour",
    "The old clock",
    "An engineer",
    "Every teacher",
    "The ship's cook",
)
_VERBS = ("remembers", "repairs", "describes", "follows", "counts", "paints", "forgets")
_OBJECTS = (
    "the northern road",
    "a broken lantern",
    "seven letters",
    "the price of salt",
    "an early winter",
    "the harbour",
)


def prose(seed: int, sentences: int) -> str:
    """Numbered sentences that never repeat exactly."""
    generator = random.Random(seed)
    return " ".join(
        f"{number}. {generator.choice(_SUBJECTS)} {generator.choice(_VERBS)} {generator.choice(_OBJECTS)}, "
        f"and in the year {generator.randrange(1400, 2000)} nobody was surprised."
        for number in range(1, sentences + 1)
    )
