"""CUDA C++: an operation without Triton, to see what Triton does. Names and signatures are those of `triton`."""
