"""Framed messages over a socket: an 8-byte length, then one encoded value."""

from __future__ import annotations

import socket
from typing import Any

from course_lib.grading import codec


class ChannelClosed(Exception):
    """The other side is gone."""


class Channel:
    """One end of it. Messages are dicts of at most `limit` bytes. trusted: the other side is the grader."""

    def __init__(self, sock: socket.socket, limit: int, trusted: bool = False):
        self._sock, self._limit, self._trusted = sock, limit, trusted
        self.received = 0  # bytes of all messages so far

    def send(self, message: dict[str, Any]) -> None:
        """Raises ChannelClosed, or CodecError when the message is longer than the limit."""
        data = codec.dump(message)
        if len(data) > self._limit:
            raise codec.CodecError(f"a message of {len(data):,} bytes is over the limit of {self._limit:,}")
        try:
            self._sock.sendall(len(data).to_bytes(8, "big") + data)
        except OSError as error:
            raise ChannelClosed from error

    def receive(self) -> dict[str, Any]:
        """The next message. Raises ChannelClosed, or CodecError when it is too long or malformed."""
        size = int.from_bytes(self._read(8), "big")
        if size > self._limit:
            raise codec.CodecError(f"a message of {size:,} bytes is over the limit of {self._limit:,}")
        self.received += size
        message = codec.load(self._read(size), self._trusted)
        if type(message) is not dict:
            raise codec.CodecError("a message that is not a dict")
        return message

    def _read(self, size: int) -> bytes:
        data = bytearray()
        while len(data) < size:
            try:
                part = self._sock.recv(min(size - len(data), 1 << 20))
            except OSError as error:
                raise ChannelClosed from error
            if not part:
                raise ChannelClosed
            data += part
        return bytes(data)

    def close(self) -> None:
        self._sock.close()

    def interrupt(self) -> None:
        """Wake a thread that waits in `send` or `receive`, even when a stray process still holds the other end."""
        try:
            self._sock.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass  # already closed
