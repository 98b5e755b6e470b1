"""An OpenAI-compatible HTTP server on the serving engine: `course serve`."""

from course_lib.server.run import Server, build_engine, listen, serve

__all__ = ["Server", "build_engine", "listen", "serve"]
