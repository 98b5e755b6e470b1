"""Worked occupancies."""

from __future__ import annotations

import pytest

from course_kernels.occupancy import MULTIPROCESSORS, resident

KIB = 1024


@pytest.mark.parametrize(
    "target, registers, shared, warps, blocks, limit",
    [
        ("sm_90", 32, 0, 2, 32, "warps"),  # 64 of 64 warps
        ("sm_90", 32, 0, 1, 32, "blocks"),
        ("sm_90", 64, 0, 8, 4, "registers"),  # 65,536 / (64 * 256)
        ("sm_90", 65, 0, 8, 3, "registers"),  # 72 per lane: 7 warps in each partition
        ("sm_90", 96, 0, 4, 5, "registers"),  # 5 warps in each partition, not 65,536 / (96 * 32) = 21 in all
        ("sm_90", 255, 0, 4, 2, "registers"),
        ("sm_90", 255, 0, 16, 0, "registers"),
        ("sm_80", 32, 40 * KIB, 4, 4, "shared memory"),  # 41 KB each of 164
        ("sm_80", 32, 40 * KIB + 1, 4, 3, "shared memory"),
        ("sm_90", 32, 227 * KIB, 4, 1, "shared memory"),
        ("sm_90", 32, 227 * KIB + 1, 4, 0, "shared memory"),
        ("gfx942", 128, 0, 4, 4, "registers"),  # 4 waves per SIMD
        ("gfx942", 64, 0, 4, 8, "warps"),
        ("gfx942", 64, 32 * KIB, 4, 2, "shared memory"),
        ("gfx942", 0, 0, 1, 32, "warps"),
    ],
)
def test_by_hand(target, registers, shared, warps, blocks, limit):
    fits = resident(target, registers, shared, warps)
    assert (fits.blocks, fits.warps, fits.limit) == (blocks, blocks * warps, limit)
    assert fits.share == blocks * warps / MULTIPROCESSORS[target].warps
