"""ik_llama.cpp behind our smallest server: its Python package has kernels and batches, but neither server nor batching.

So the loop that batches is ours, and lean: decode rows first, then prompts up to 512 tokens a step; greedy.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from ik_llama_cpp import _ctypes_api as api
from ik_llama_cpp._internals import IkContext, IkModel
from server import Deliver, ThreadedBackend, arguments, serve

CONTEXT = 32768
SEQUENCES = 64
STEP_TOKENS = 512


@dataclass
class Request:
    ids: list[int]
    left: int
    deliver: Deliver
    sequence: int
    #: Tokens that are in the cache.
    done: int = 0
    out: list[int] = field(default_factory=list)

    @property
    def pending(self) -> list[int]:
        return self.ids[self.done :] if self.done < len(self.ids) else self.out[-1:]


class Backend(ThreadedBackend):
    def __init__(self, model: Path, threads: int) -> None:
        super().__init__()
        self._model = IkModel(str(model))
        # The package itself turns flash attention off without AVX-VNNI, as it then fails on long prompts.
        self._context = IkContext(self._model, n_ctx=CONTEXT, n_threads=threads, flash_attn=False, n_seq_max=SEQUENCES)
        self._batch = api.llama_batch_init(STEP_TOKENS, 0, 1)
        self._open: dict[int, Request] = {}
        self._sequences = 0
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        while True:
            while not self.unwanted.empty():
                self._open.pop(self.unwanted.get(), None)
            if not self._open:
                self._context.kv_cache_clear()
                self._sequences = 0
            self._admit()
            self._step()

    def _admit(self) -> None:
        """All that has arrived; waits where nothing is open. Sequence ids are used anew once the cache is clear."""
        idle = not self._open
        while idle or not self.arrived.empty():
            key, ids, output_tokens, deliver = self.arrived.get()
            idle = False
            if self._sequences == SEQUENCES:
                deliver("", 0, f"more than {SEQUENCES} requests without a pause")
                continue
            self._open[key] = Request(ids, output_tokens, deliver, self._sequences)
            self._sequences += 1

    def _step(self) -> None:
        """One batch: a token of every request that decodes, and as much of the prompts as fits beside them."""
        decoding = [entry for entry in self._open.items() if entry[1].done >= len(entry[1].ids)]
        prefilling = [entry for entry in self._open.items() if entry[1].done < len(entry[1].ids)]
        count = 0
        ready: list[tuple[int, Request, int]] = []
        for key, request in decoding + prefilling:
            tokens = request.pending[: STEP_TOKENS - count]
            for token in tokens:
                self._put(count, token, request)
                count += 1
            if tokens and request.done >= len(request.ids):
                self._batch.logits[count - 1] = 1
                ready.append((key, request, count - 1))
        if not count:
            return
        self._batch.n_tokens = count
        if code := self._context.decode(self._batch):
            self._fail(f"llama_decode returned {code}")
            return
        for key, request, row in ready:
            self._deliver(key, request, row)

    def _put(self, at: int, token: int, request: Request) -> None:
        batch = self._batch
        batch.token[at], batch.pos[at], batch.logits[at] = token, request.done, 0
        batch.n_seq_id[at], batch.seq_id[at][0] = 1, request.sequence
        request.done += 1

    def _deliver(self, key: int, request: Request, row: int) -> None:
        logits = np.ctypeslib.as_array(self._context.get_logits(row), shape=(self._model.n_vocab,))
        token = int(logits.argmax())
        request.out.append(token)
        request.left -= 1
        if not request.left:
            del self._open[key]
        request.deliver(self._model.detokenize([token], special=True) or "�", 1, "")

    def _fail(self, error: str) -> None:
        for request in self._open.values():
            request.deliver("", 0, error)
        self._open.clear()


if __name__ == "__main__":
    options = arguments(__doc__)
    serve(Backend(options.model, options.threads), options.port)
