"""What runs a decoder's operations between its matrix products: PyTorch, or the Triton kernels of `course_kernels`.

A model chooses once, when it is built. Matrix products are PyTorch's under both: of floating-point weights, cuBLAS and
oneDNN have nothing left to gain.
"""

from course_lib.backend.base import Backend, Step
from course_lib.backend.choice import choose_backend
from course_lib.backend.torch_backend import TorchBackend

__all__ = ["Backend", "Step", "TorchBackend", "choose_backend"]
