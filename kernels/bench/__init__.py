"""The GPU benchmark: `python -m course_kernels.bench --json FILE`, in one go under six minutes.

It checks every kernel against float64 on the device, measures the device's two ceilings (copying memory, multiplying
bfloat16 matrices), each kernel as a share of the ceiling that binds it and beside PyTorch, and a whole model.

What is fair, and how it is kept:

- Bytes and FLOPs are those that an operation must move and do, as the kernel's docstring counts them. A share is the
  time that the device needs for them at its measured ceilings over the time that the kernel takes. 8-bit products are
  held against the bfloat16 rate too, though tensor cores do twice as many of them.
- No result of an earlier call may lie in the L2 cache. Calls go round over sets of tensors that together are several
  times the cache, as the layers of a model do, and each call writes an output of its own.
- The host must not be timed with the device. All calls of a sample are one CUDA graph, whose replay starts kernel after
  kernel without Python; a sample is longer than a millisecond, so that the clock's own microseconds are lost in it.
  What every launch costs the device, about a microsecond, is in, as it is in a model.
- PyTorch gets the same tensors, the same rotation and the same graph. What its operation needs first (keys gathered
  from their pages, weights dequantised) is done beforehand and not timed.
- Data is random. Zeros take less power, and so let a GPU run faster.
- Results are medians; the JSON holds every sample.

Everything is measured in a child process. One that crashes, hangs or loses the GPU costs the entry that it was at.
"""
