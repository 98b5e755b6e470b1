"""Linux: a process that has torch imported and forks one child for each run, in milliseconds instead of seconds.

    python -m course_lib.grading.zygote FD

Over the control socket: b"F" with two descriptors (socket, output) forks and answers the child's process id;
b"R" + id (8 bytes) waits for a dead child and answers its wait status. It never runs a line of a submission itself.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
import traceback

from course_lib.grading import worker

WORD = 8


def main() -> None:
    control = socket.socket(fileno=int(sys.argv[1]))
    worker.preload()
    while True:
        request, descriptors, _, _ = socket.recv_fds(control, 1 + WORD, 2)
        if not request:
            return
        if request[:1] == b"R":
            status = os.waitpid(int.from_bytes(request[1:], "big"), 0)[1]
            control.sendall(status.to_bytes(WORD, "big"))
            continue
        pid = os.fork()
        if pid == 0:
            control.close()
            _become_worker(*descriptors)
        for descriptor in descriptors:
            os.close(descriptor)
        control.sendall(pid.to_bytes(WORD, "big"))


def _become_worker(sock: int, output: int) -> None:
    """The child's side of the fork; never returns into the zygote's loop."""
    try:
        os.setsid()
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        os.dup2(output, 1)
        os.dup2(output, 2)
        os.close(output)
        worker.serve(socket.socket(fileno=sock))
    except BaseException:
        traceback.print_exc()
        os._exit(1)
    os._exit(0)


if __name__ == "__main__":
    main()
