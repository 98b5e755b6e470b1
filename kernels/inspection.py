"""What launches become on a GPU, for a process that cannot compile: a notebook on a CPU, whose Triton interprets.

    from course_kernels.inspection import Request, compiled

    four, eight = compiled(Request("prefill_attention", num_warps=4), Request("prefill_attention"))
    print(four.registers, four.spilled, eight.registers, eight.spilled)

The work is done by one child process for all requests; to start it takes a few seconds.
"""

from __future__ import annotations

import json
import os
import runpy
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass, field
from pathlib import Path

from course_kernels.occupancy import MULTIPROCESSORS, Resident
from course_lib.errors import CourseError

DTYPES = ("float16", "bfloat16", "float32")


@dataclass(frozen=True)
class Request:
    """What to compile: a launch of `course_kernels.catalogue.LAUNCHES`, or a program of one's own.

    launch: its name there. source: in its place a Python program that launches kernels on tensors of device "meta",
    which have no memory: torch.empty(4096, dtype=torch.float16, device="meta"). target: a key of
    `course_kernels.occupancy.MULTIPROCESSORS`. dtype: of the launch's model, one of DTYPES.
    num_warps, num_stages, constants: in place of the launcher's own, for this compilation only. constants are constexpr
    arguments by name; the grid stays as the launcher computed it.
    """

    launch: str | None = None
    source: str | None = None
    target: str = "sm_90"
    dtype: str = "float16"
    num_warps: int | None = None
    num_stages: int | None = None
    constants: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if (self.launch is None) == (self.source is None):
            raise CourseError("a request names either a launch or a source")
        if self.target not in MULTIPROCESSORS:
            raise CourseError(f"there is no target {self.target}; there are {', '.join(MULTIPROCESSORS)}")
        if self.dtype not in DTYPES:
            raise CourseError(f"the model's dtype is {self.dtype} and must be one of {', '.join(DTYPES)}")

    @property
    def options(self) -> dict[str, int]:
        """What replaces the launcher's own."""
        given = {"num_warps": self.num_warps, "num_stages": self.num_stages}
        return {name: value for name, value in given.items() if value is not None} | self.constants


@dataclass(frozen=True)
class Report:
    """One kernel, compiled.

    grid: programs in each dimension. warps: of a block. stages: iterations of a loop whose loads are on their way at
    once. constants: constexpr arguments. registers: of a thread, 32 bits each. spilled: bytes per thread that found no
    register and lie in DRAM. shared: bytes per block. resident: what one multiprocessor holds at once. dots:
    tensor-core instructions by kind. loads: instructions that load from global memory, by the bits that a thread gets.
    assembly: PTX, or AMDGCN for AMD. sass: NVIDIA's machine code in words, an instruction per line, "" for AMD.
    """

    name: str
    target: str
    grid: tuple[int, ...]
    warps: int
    stages: int
    constants: dict[str, object]
    registers: int
    spilled: int
    shared: int
    resident: Resident
    dots: dict[str, int]
    loads: dict[int, int]
    assembly: str
    sass: str


def compiled(*requests: Request) -> list[Report]:
    """One report per kernel that the requests launch, in order; a launch may be of several kernels.

    Raises CourseError with the compiler's last words where it refuses, and for a launch that there is not.
    """
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "requests.json").write_text(json.dumps([asdict(request) for request in requests]))
        command = [sys.executable, "-c", "from course_kernels.inspection import answer; answer()", folder]
        done = subprocess.run(command, env=environment, capture_output=True, text=True)
        if done.returncode:
            raise CourseError(f"the compiling process ended: {_last_line(done.stderr)}")
        answer = json.loads(Path(folder, "reports.json").read_text())
    if isinstance(answer, str):
        raise CourseError(answer)
    return [_report(record) for record in answer]


def _report(record: dict) -> Report:
    """What asdict and JSON made of a report, put right."""
    loads = {int(bits): count for bits, count in record["loads"].items()}
    restored = {"grid": tuple(record["grid"]), "resident": Resident(**record["resident"]), "loads": loads}
    return Report(**record | restored)


def answer() -> None:
    """The child: requests.json in the folder that is named becomes reports.json, records or one sentence."""
    folder = Path(sys.argv[1])
    requests = [Request(**record) for record in json.loads((folder / "requests.json").read_text())]
    (folder / "reports.json").write_text(json.dumps(_records(requests, folder)))


def _records(requests: list[Request], folder: Path) -> list[dict] | str:
    records = []
    for number, request in enumerate(requests):
        try:
            records += map(asdict, _compile(request, folder / f"source_{number}.py"))
        except CourseError as error:
            return str(error)
        except Exception as error:  # the learner's or the compiler's
            while error.__cause__ is not None:
                error = error.__cause__
            return f"this does not compile for {request.target}: {type(error).__name__}: {_last_line(str(error))}"
    return records


def _compile(request: Request, path: Path) -> list[Report]:
    import torch  # here, as the parent need not wait for torch, and must not import triton

    from course_kernels.catalogue import LAUNCHES
    from course_kernels.offline import LAUNCH_OPTIONS, TARGETS, compiling_for

    if request.source is None and request.launch not in LAUNCHES:
        raise CourseError(f"there is no launch {request.launch!r}; there are {', '.join(LAUNCHES)}")
    with compiling_for(TARGETS[request.target], **request.options) as launches:
        if request.source is None:
            LAUNCHES[request.launch].call(getattr(torch, request.dtype))
        else:
            path.write_text(request.source, encoding="utf-8")  # Triton reads a kernel's source from its file
            runpy.run_path(str(path))
    for name in request.options:
        if name not in LAUNCH_OPTIONS and not any(name in launch.constants for launch in launches):
            raise CourseError(f"none of the kernels has a constexpr {name}")
    return [launch.report() for launch in launches]


def _last_line(text: str) -> str:
    return (text.strip().splitlines() or ["it said nothing"])[-1]
