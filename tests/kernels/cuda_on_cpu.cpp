// A CUDA kernel on the CPU: a block is as many threads of the operating system, blocks run one after another. It is
// enough of CUDA C++ for int4_gemv.cu, which the test includes at KERNEL with BFLOAT16 set: the conversion of float16
// is inline PTX.
#include <algorithm>
#include <barrier>
#include <bit>
#include <cstddef>
#include <memory>
#include <thread>
#include <vector>

struct uint2 { unsigned x, y; };
struct uint4 { unsigned x, y, z, w; };
struct dim3 { unsigned x, y; };
using std::min;

#define __device__
#define __global__
#define __shared__ static
static thread_local dim3 threadIdx, blockIdx;
static dim3 gridDim;

static std::unique_ptr<std::barrier<>> block_barrier;
static std::vector<std::unique_ptr<std::barrier<>>> warp_barriers;
static float exchange[1024];

static float __uint_as_float(unsigned bits) { return std::bit_cast<float>(bits); }
static void __syncthreads() { block_barrier->arrive_and_wait(); }
static float __shfl_xor_sync(unsigned, float value, int distance) {
    auto& warp = *warp_barriers[threadIdx.x / 32];
    exchange[threadIdx.x] = value;
    warp.arrive_and_wait();
    const float other = exchange[threadIdx.x ^ distance];
    warp.arrive_and_wait();
    return other;
}

#include KERNEL

extern "C" void run(unsigned columns, unsigned rows, unsigned threads, const unsigned short* x, const unsigned* qweight,
                    const unsigned short* scales, const unsigned* qzeros, float* partials, int K, int N) {
    gridDim = {columns, rows};
    block_barrier = std::make_unique<std::barrier<>>(threads);
    warp_barriers.clear();
    for (unsigned warp = 0; warp < threads / 32; ++warp)
        warp_barriers.push_back(std::make_unique<std::barrier<>>(32));
    for (unsigned block = 0; block < columns * rows; ++block) {
        std::vector<std::jthread> running;
        for (unsigned thread = 0; thread < threads; ++thread)
            running.emplace_back([=] {
                threadIdx = {thread, 0};
                blockIdx = {block % columns, block / columns};
                int4_gemv(x, qweight, scales, qzeros, partials, K, N);
            });
    }
}
