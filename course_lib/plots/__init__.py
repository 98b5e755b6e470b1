"""Every figure of the course: functions that take data and return a matplotlib Figure, in the house style."""
