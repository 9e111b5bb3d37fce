"""A worker process: `python -P -m diptych.worker`, started by the host with the control socket as standard input."""

import logging
import os
import signal
import sys


def main() -> int:
    """Runs the worker that the host asks for. 0: left when told to, or the host is gone; 1: could not start."""
    # A Ctrl-C or a service manager signals the whole group: only the host decides when a worker ends.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    # Threads that wait for each other spin a moment, then sleep. A tenth of libgomp's default: on two quiet cores a
    # decode step takes 46 ms (57 ms with 1,500, and the default gains nothing), beside competing work a long spin
    # doubles it.
    os.environ.setdefault("GOMP_SPINCOUNT", "30000")
    logging.basicConfig(
        stream=sys.stderr, level=logging.INFO, format=f"diptych worker {os.getpid()}: %(levelname)s %(message)s"
    )
    from diptych_core import worker

    try:
        return _work()
    except worker.WorkerConnectionError as error:
        # A host that is stopped while its worker starts; later ones are noticed between steps.
        logging.info("the host is gone: %s", error)
        return 0


def _work() -> int:
    from diptych.worker.init import decode_init
    from diptych.worker.loop import run
    from diptych_core import worker

    port = worker.Port.from_stdin()
    message = port.init()
    if decode_init(message).kind == "scripted":
        # All in Rust: torch is never imported.
        worker.run_scripted(port)
        return 0
    return 0 if run(port, message) else 1


if __name__ == "__main__":
    sys.exit(main())
