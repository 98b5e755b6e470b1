"""An OpenAI-compatible HTTP server on the serving engine: `course serve`."""

from course_lib.server.run import Server, listen, serve

__all__ = ["Server", "listen", "serve"]
