// One row of x times an int4 weight: what triton/int4_matmul.py computes for T = 1, with nothing hidden. The layout of
// the weight and the arithmetic on subnormal numbers are explained there. Compiled with NVRTC; GROUP and BFLOAT16 are
// given as macros. Must not be compiled with --use_fast_math, which flushes subnormal numbers to zero.
//
// A block has 8 warps and 32 columns; a warp has 8 lanes side by side and 4 above one another. A lane loads 4 words of a
// row of qweight at once (128 bits), so 8 lanes read a whole line of 128 bytes. All 32 columns are summed three times:
// over a lane's own rows in registers, over the warp's 4 lanes of a column with shuffles, over the warps through shared
// memory. Block (i, s) writes its columns' sums over share s of K to partials[s].

constexpr int WARPS = 8, COLUMNS = 32, ROWS = 4 * WARPS;  // rows of qweight that a block reads at a time
constexpr unsigned ALL_LANES = 0xffffffff;

// A 16-bit number, given by its bits, in float32. (cuda_fp16.h has both conversions; NVRTC comes without it.)
__device__ float widen(unsigned bits) {
#ifdef BFLOAT16
    return __uint_as_float(bits << 16);
#else
    float wide;
    asm("cvt.f32.f16 %0, %1;" : "=f"(wide) : "h"((unsigned short)bits));
    return wide;
#endif
}

extern "C" __global__ void int4_gemv(
    const unsigned short* __restrict__ x,       // [K]
    const unsigned* __restrict__ qweight,       // [K/8, N]
    const unsigned short* __restrict__ scales,  // [K/GROUP, N]
    const unsigned* __restrict__ qzeros,        // [K/GROUP, N/8]
    float* __restrict__ partials,               // [shares, N]
    int K, int N)
{
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int column = blockIdx.x * COLUMNS + lane % 8 * 4;  // the first of this lane's four
    const int rows = K / 8;
    const int share = (rows + gridDim.y - 1) / gridDim.y;
    const int last = column < N ? min((int)(blockIdx.y + 1) * share, rows) : 0;  // nothing to do beyond the last column

    float total[4] = {0, 0, 0, 0};
#pragma unroll 4  // four independent loads of 128 bits on their way
    for (int row = blockIdx.y * share + 4 * warp + lane / 8; row < last; row += ROWS) {
        const uint4 four = *(const uint4*)(qweight + (size_t)row * N + column);
        const uint4 packed_x = *(const uint4*)(x + 8 * row);
        const int group = 8 * row / GROUP;
        const uint2 packed_scales = *(const uint2*)(scales + (size_t)group * N + column);
        const unsigned zeros = qzeros[(size_t)group * (N / 8) + column / 8] >> column % 8 * 4;

        const unsigned pairs[4] = {packed_x.x, packed_x.y, packed_x.z, packed_x.w};
        float scaled_x[8], sum_x = 0;
#pragma unroll
        for (int j = 0; j < 8; ++j) {
            const float value = widen(pairs[j / 2] >> j % 2 * 16 & 0xffff);
            sum_x += value;
            scaled_x[j] = value * (0x1p96f / (1 << j % 6 * 4));  // a constant: the loop is unrolled
        }

        const unsigned words[4] = {four.x, four.y, four.z, four.w};
        const unsigned scale_pairs[2] = {packed_scales.x, packed_scales.y};
#pragma unroll
        for (int c = 0; c < 4; ++c) {
            float sum_qx = 0;
#pragma unroll
            for (int j = 0; j < 8; ++j) {
                const unsigned nibble = (j < 6 ? words[c] : words[c] >> 24) & 15u << j % 6 * 4;
                sum_qx += __uint_as_float(nibble) * scaled_x[j];
            }
            const float zero = zeros >> 4 * c & 15;
            const float scale = widen(scale_pairs[c / 2] >> c % 2 * 16 & 0xffff);
            total[c] += scale * (sum_qx * 0x1p53f - zero * sum_x);
        }
    }

    // Lanes 0, 8, 16 and 24 have the same columns. After adding the lane 8 and then 16 away, each has the sum of all four.
    for (int c = 0; c < 4; ++c)
        for (int distance = 8; distance <= 16; distance *= 2)
            total[c] += __shfl_xor_sync(ALL_LANES, total[c], distance);

    __shared__ float sums[WARPS][COLUMNS];
    if (lane < 8)
        for (int c = 0; c < 4; ++c)
            sums[warp][4 * lane + c] = total[c];
    __syncthreads();

    const int mine = blockIdx.x * COLUMNS + threadIdx.x;
    if (threadIdx.x < COLUMNS && mine < N) {
        float sum = 0;
        for (int w = 0; w < WARPS; ++w)
            sum += sums[w][threadIdx.x];
        partials[(size_t)blockIdx.y * N + mine] = sum;
    }
}
