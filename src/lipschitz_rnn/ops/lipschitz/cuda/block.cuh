// A block alone: a warp owns HEIGHT tiles of 16 hidden units, and its threads hand over the new state by shared memory.
//
// Row g of a tile is unit 2g and row g + 8 is unit 2g + 1. So a product gives a thread two neighbouring units, which lie
// side by side in memory, of samples 2q and 2q + 1, and nothing has to change hands.

struct Place {
    u32 q, g, row, unit, sample;  // row: the first sample, of 8
    i64 network;
    bool inside[OWN], first[HEIGHT], second[HEIGHT];  // whether its samples, and its units in each tile, exist
    u32 block_unit = 0, samples;  // the block's first unit, and how many of its samples exist

    __device__ __forceinline__ Place(u32 tiles, u32 B, u32 N) {
        u32 lane = threadIdx.x & 31;
        q = lane & 3, g = lane >> 2, row = 2 * q;
        network = group() / tiles;
        sample = (group() % tiles) * SAMPLES + row, samples = B - (sample - row);
        unit = (threadIdx.x >> 5) * 16 * HEIGHT + 2 * g;
#pragma unroll
        for (int tile = 0; tile < HEIGHT; tile++)
            first[tile] = WHOLE || unit + 16 * tile < N, second[tile] = WHOLE || unit + 16 * tile + 1 < N;
#pragma unroll
        for (int j = 0; j < OWN; j++) inside[j] = WHOLE || sample + j < B;
    }

    __device__ __forceinline__ bool speaks() const { return q == 0; }  // for all that have its units
};

// The state, or what else is multiplied, in two buffers of (PARTS, SAMPLES, COLUMNS); rows are 16 bytes longer, so that
// eight of them start in different banks.
template <int COLUMNS>
struct Exchange {
    static constexpr u32 row_bytes = 2 * COLUMNS + 16, part_bytes = SAMPLES * row_bytes, bytes = PARTS * part_bytes;
    u32 source, target;

    __device__ __forceinline__ Exchange(const Place& at, const void* memory) {
        u32 shared = (u32)__cvta_generic_to_shared(memory), lane = threadIdx.x & 31;
        target = shared + BARRIERS + at.row * row_bytes + 2 * at.unit;
        source = shared + BARRIERS + (lane & 7) * row_bytes + (lane >> 3) * 16;
        keep(target), keep(source);
    }

    // The values of this thread, to columns that begin `column` after the state's own. There is only one group.
    __device__ __forceinline__ void publish(u32 turn, const Values& value, const Place& at, u32 column, int) {
        u32 buffer = target + (turn & 1) * bytes + 2 * column;
#pragma unroll
        for (int tile = 0; tile < HEIGHT; tile++)
#pragma unroll
            for (int j = 0; j < OWN; j++) {
                float low = value[tile][j][0], high = value[tile][j][1];
#pragma unroll
                for (int part = 0; part < PARTS; part++) {
                    u32 own = pack(low, high);
                    if (part + 1 < PARTS) low -= low_of(own), high -= high_of(own);
                    write_word(buffer + part * part_bytes + j * row_bytes + 32 * tile, own);
                }
            }
    }

    // Waits for the stage `phase`, whose buffer is that of `turn`; returns where this lane reads.
    __device__ __forceinline__ u32 receive(u32 phase, u32 turn, int) {
        __syncthreads();
        return source + (turn & 1) * bytes;
    }
};

struct ForwardProduct {
    Matrix<2 * HEIGHT, TILES> both;  // αA and W of each tile

    __device__ __forceinline__ ForwardProduct(const u16* weights, const Place& at) {
#pragma unroll
        for (int tile = 0; tile < HEIGHT; tile++)
#pragma unroll
            for (int half = 0; half < 2; half++) {
                const u16* row = weights + (i64)(half * PADDED + at.unit + 16 * tile) * PADDED;
                both.load(2 * tile + half, row, row + PADDED);
            }
    }

    template <typename Work>
    __device__ __forceinline__ void of(
        Values& linear, Values& z, u32 source, const Exchange<PADDED>& exchange, const Place&, int, Work work) const {
        float product[2 * HEIGHT][4];
        both.times(product, source, exchange.part_bytes, work);
#pragma unroll
        for (int tile = 0; tile < HEIGHT; tile++)
#pragma unroll
            for (int j = 0; j < OWN; j++)
#pragma unroll
                for (int e = 0; e < 2; e++) {
                    linear[tile][j][e] = product[2 * tile][2 * e + j];
                    z[tile][j][e] = product[2 * tile + 1][2 * e + j];
                }
    }
};

struct BackwardProduct {
    static constexpr u32 bytes = 0;  // of shared memory
    Matrix<HEIGHT, 2 * TILES> both;  // αAᵀ and Wᵀ side by side, so that their products with κ and d add up

    __device__ __forceinline__ BackwardProduct(const u16* weights, const Place& at, void*) {
#pragma unroll
        for (int tile = 0; tile < HEIGHT; tile++) {
            const u16* row = weights + (i64)(at.unit + 16 * tile) * 2 * PADDED;
            both.load(tile, row, row + 2 * PADDED);
        }
    }

    template <typename Work>
    __device__ __forceinline__ void of(
        Values& eta, u32 source, const Exchange<2 * PADDED>& exchange, const Place&, u32, int, Work work) const {
        float sum[HEIGHT][4];
        both.times(sum, source, exchange.part_bytes, work);
#pragma unroll
        for (int tile = 0; tile < HEIGHT; tile++)
#pragma unroll
            for (int j = 0; j < OWN; j++)
#pragma unroll
                for (int e = 0; e < 2; e++) eta[tile][j][e] = sum[tile][2 * e + j];
    }
};
