"""The compact inference engine of the course, and everything its notebooks import."""

from course_lib.errors import CourseError, ModelError, RequestError

__all__ = ["CourseError", "ModelError", "RequestError"]
