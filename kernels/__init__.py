"""GPU and CPU kernels of the course engine. Import as `course_kernels` (see pyproject.toml for why)."""
