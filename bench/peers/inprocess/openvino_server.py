"""OpenVINO GenAI's continuous batching behind our smallest server: in process, as it has no server of its own here."""

from __future__ import annotations

import queue
import threading
from pathlib import Path

import numpy as np
import openvino
import openvino_genai
from server import Deliver, ThreadedBackend, arguments, serve

#: GB for the paged KV cache; the rest of the scheduler's settings are the library's defaults, but for prefix caching.
CACHE_GB = 2


class Backend(ThreadedBackend):
    """The pipeline, stepped by one thread for as long as requests are open."""

    def __init__(self, model: Path, threads: int) -> None:
        super().__init__()
        scheduler = openvino_genai.SchedulerConfig()
        scheduler.cache_size = CACHE_GB
        scheduler.enable_prefix_caching = True
        self._pipeline = openvino_genai.ContinuousBatchingPipeline(
            str(model), scheduler, "CPU", {"INFERENCE_NUM_THREADS": threads}
        )
        self._tokenizer = self._pipeline.get_tokenizer()
        self._texts: dict[int, str] = {}
        self._open: dict[int, tuple[openvino_genai.GenerationHandle, Deliver]] = {}
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        while True:
            self._admit()
            while not self.unwanted.empty():
                opened = self._open.pop(self.unwanted.get(), None)
                if opened is not None:
                    opened[0].cancel()
            if self._pipeline.has_non_finished_requests():
                self._pipeline.step()
            self._read()

    def _admit(self) -> None:
        """All that has arrived; waits for something only where nothing else is to do."""
        idle = not self._pipeline.has_non_finished_requests() and self.unwanted.empty()
        while idle or not self.arrived.empty():
            try:
                key, ids, output_tokens, deliver = self.arrived.get(timeout=0.05 if idle else None)
            except queue.Empty:
                return
            idle = False
            config = openvino_genai.GenerationConfig()
            config.max_new_tokens = output_tokens
            config.ignore_eos = True
            config.do_sample = False
            prompt = openvino.Tensor(np.array([ids], dtype=np.int64))
            self._open[key] = (self._pipeline.add_request(key, prompt, config), deliver)

    def _read(self) -> None:
        for key, (handle, deliver) in list(self._open.items()):
            ended = handle.get_status() != openvino_genai.GenerationStatus.RUNNING
            while handle.can_read():
                for output in handle.read().values():
                    ids = output.generated_ids
                    deliver("".join(map(self._text, ids)), len(ids), "")
            if ended:
                del self._open[key]

    def _text(self, token: int) -> str:
        """Of one token alone, as nobody reads the text of a stream that is measured."""
        if token not in self._texts:
            self._texts[token] = self._tokenizer.decode([token]) or "�"
        return self._texts[token]


if __name__ == "__main__":
    options = arguments(__doc__)
    serve(Backend(options.model, options.threads), options.port)
