"""The course's own exceptions. Each message is one sentence that names the limit and the way out."""


class CourseError(Exception):
    """Base of every error that a user of the course can cause and mend."""


class ModelError(CourseError):
    """A model cannot be found, read or supported; the message names the file and the tensor or entry."""


class RequestError(CourseError, ValueError):
    """A request that the engine cannot serve: a bad sampling parameter, a prompt that can never fit."""
