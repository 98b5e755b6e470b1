"""How much of a kernel fits on one multiprocessor at a time: what its registers and its shared memory leave room for.

A GPU hides the wait for memory with the work of other warps, so it matters how many there are. A block starts only
where all of it fits. Four budgets of the multiprocessor (SM; AMD: compute unit, CU) bound how many blocks do:

    warps          slots / w                            w: warps of a block
    blocks         a fixed number
    registers      4 * floor(512 / ceil8(r)) / w        r: 32-bit registers of a thread
    shared memory  size / ceil(s + reserved)            s: bytes of a block

The smallest, rounded down, is the number of resident blocks. Registers belong to one of four partitions. Each has
16,384 (AMD: 32,768), 512 for each lane of a warp of 32 (64) threads, and a warp gets a multiple of 8 per lane.

Sources, NVIDIA: CUDA C++ Programming Guide, "Technical Specifications per Compute Capability" (slots, blocks, sizes)
and the sections on shared memory of compute capability 8.x, 9.0 and 10.0 (1 KB of a block is the system's);
cuda_occupancy.h of the CUDA Toolkit (granules of 256 registers per warp and 128 bytes, four partitions). AMD: Instinct
MI300 CDNA3 ISA (registers, local data share); LLVM, AMDGPUBaseInfo.cpp, namespace IsaInfo (8 waves per SIMD, granules).
"""

from __future__ import annotations

from dataclasses import dataclass

KIB = 1024
PARTITIONS, LANE_REGISTERS, REGISTER_GRANULE = 4, 512, 8


@dataclass(frozen=True)
class Multiprocessor:
    """Slots for warps and blocks; bytes of shared memory, of which the system takes `reserved` for every block."""

    warps: int
    blocks: int
    shared: int
    reserved: int
    shared_granule: int

    @property
    def shared_limit(self) -> int:
        """The largest shared memory of one block, in bytes."""
        return self.shared - self.reserved


MULTIPROCESSORS = {
    "sm_80": Multiprocessor(64, 32, 164 * KIB, KIB, 128),  # A100
    "sm_90": Multiprocessor(64, 32, 228 * KIB, KIB, 128),  # H100, H200
    "sm_100": Multiprocessor(64, 32, 228 * KIB, KIB, 128),  # B200
    "gfx942": Multiprocessor(32, 32, 64 * KIB, 0, 512),  # MI300X
}


@dataclass(frozen=True)
class Resident:
    """What runs side by side on a multiprocessor: blocks, their warps, and these as a share of its slots, 0 to 1.

    limit: the budget that is used up first, "warps" where every slot is taken.
    """

    blocks: int
    warps: int
    share: float
    limit: str


def resident(target: str, registers: int, shared: int, warps: int) -> Resident:
    """How many blocks of `warps` warps, `registers` per thread and `shared` bytes each run on a multiprocessor at once.

    target: a key of MULTIPROCESSORS. 0 blocks where not even one fits. Tensor memory (sm_100) is not counted.
    """
    unit = MULTIPROCESSORS[target]
    per_partition = LANE_REGISTERS // _ceil(max(registers, 1), REGISTER_GRANULE)
    budgets = {
        "warps": unit.warps // warps,
        "blocks": unit.blocks,
        "registers": PARTITIONS * per_partition // warps,
        "shared memory": unit.shared // max(_ceil(shared + unit.reserved, unit.shared_granule), 1),
    }
    limit = min(budgets, key=budgets.__getitem__)
    blocks = budgets[limit]
    return Resident(blocks, blocks * warps, blocks * warps / unit.warps, limit)


def _ceil(number: int, granule: int) -> int:
    return -(-number // granule) * granule
