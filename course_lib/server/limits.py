"""What a request may cost before it is understood."""

from __future__ import annotations

from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

MAX_BODY_BYTES = 2**20  # a prompt of 131,072 tokens fits, as English text and as token ids


class BodyLimit:
    """ASGI middleware: answers 413 to a body of more than MAX_BODY_BYTES, and keeps no more of it."""

    def __init__(self, app: ASGIApp):
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        size = 0

        async def counted() -> Message:
            nonlocal size
            message = await receive()
            size += len(message.get("body", b""))
            if size > MAX_BODY_BYTES:
                raise HTTPException(
                    413, f"the body has more than {MAX_BODY_BYTES} bytes; send fewer or shorter prompts"
                )
            return message

        await self._app(scope, counted, send)
