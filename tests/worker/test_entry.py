"""`python -m diptych.worker` as a process, without a host that answers."""

import socket
import subprocess
import sys


def test_a_worker_whose_host_is_gone_before_it_starts_leaves_quietly() -> None:
    host, worker = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    host.close()
    command = [sys.executable, "-P", "-m", "diptych.worker"]
    with worker:
        ended = subprocess.run(command, stdin=worker.fileno(), capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 0 and "Traceback" not in ended.stderr, ended.stderr
    assert "the host is gone" in ended.stderr
