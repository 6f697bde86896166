// A cluster: a warp owns 8 hidden units, of which one tile of 16 rows has both products. It sends its part of a new state
// to the shared memory of all blocks; the stores count the bytes that arrived on a barrier of the receiver, so a block
// goes on with a group of samples as soon as it has their whole state.

// A product gives a thread one unit, g, of two samples, 2q and 2q + 1. Threads work on two neighbouring units of one
// sample instead, which lie side by side in memory: those of even g take sample 2q, those of odd g the other.
struct Place {
    u32 q, g, row, unit, sample;  // row: the sample, of 8
    i64 network;
    bool inside[OWN], first[1], second[1];  // whether its samples, and its two units, exist
    u32 block_unit, samples;  // the block's first unit, and how many of its samples exist

    __device__ __forceinline__ Place(u32 tiles, u32 B, u32 N) {
        u32 lane = threadIdx.x & 31;
        q = lane & 3, g = lane >> 2, row = 2 * q + (g & 1);
        network = group() / tiles;
        sample = (group() % tiles) * SAMPLES + row, samples = B - (sample - row), block_unit = rank() * 8 * WARPS;
        unit = (rank() * WARPS + (threadIdx.x >> 5)) * 8 + (g & 6);
        first[0] = WHOLE || unit < N, second[0] = WHOLE || unit + 1 < N;
#pragma unroll
        for (int j = 0; j < OWN; j++) inside[j] = WHOLE || sample + 8 * j < B;
    }

    __device__ __forceinline__ bool speaks() const { return q == 0 && !(g & 1); }  // for all that have its units
    __device__ __forceinline__ u32 first_unit() const { return unit - (g & 6); }  // of the warp

    // From a product's layout to this thread's: (unit g; samples 2q, 2q + 1) to (sample; units).
    __device__ __forceinline__ void own(float (&value)[2], float even, float odd) const {
        u32 second_sample = g & 1;
        float given = __shfl_xor_sync(ALL, select(second_sample, even, odd), 4);
        value[0] = select(second_sample, given, even), value[1] = select(second_sample, odd, given);
    }
};

// The state, or what else is multiplied, in two buffers of (PARTS, SAMPLES, COLUMNS); rows are 16 bytes longer, so that
// eight of them start in different banks.
template <int COLUMNS>
struct Exchange {
    static constexpr u32 row_bytes = 2 * COLUMNS + 16, part_bytes = SAMPLES * row_bytes, bytes = PARTS * part_bytes;
    static constexpr u32 rounds = (CLUSTER + 3) / 4;  // four lanes send to different blocks at once
    static_assert(CLUSTER == 2 || CLUSTER % 4 == 0, "some blocks would receive twice");
    u32 shared, remote[rounds], source, target;
    bool sends;

    __device__ __forceinline__ Exchange(const Place& at, const void* memory) {
        shared = (u32)__cvta_generic_to_shared(memory);
        if (threadIdx.x == 0) {
            for (int turn = 0; turn < 2; turn++)
                for (int group = 0; group < GROUPS; group++) start_barrier(barrier(turn, group, shared));
            barriers_started();
            for (int turn = 0; turn < 2; turn++)
                for (int group = 0; group < GROUPS; group++) expect_all(turn, group);
        }
        u32 lane = threadIdx.x & 31, part = at.g >> 1;
        sends = part < CLUSTER;
#pragma unroll
        for (u32 i = 0; i < rounds; i++) remote[i] = address_in(shared, (4 * i + part) % CLUSTER);
        target = BARRIERS + at.row * row_bytes + 2 * at.first_unit();
        source = shared + BARRIERS + (lane & 7) * row_bytes + (lane >> 3) * 16;
        meet_cluster();
    }

    __device__ __forceinline__ u32 barrier(u32 turn, int group, u32 memory) const {
        return memory + 8 * (2 * group + (turn & 1));
    }

    __device__ __forceinline__ void expect_all(u32 turn, int group) {
        expect(barrier(turn, group, shared), PARTS * 8 * COLUMNS * 2);
    }

    // The values of this thread for one group, to columns that begin `column` after the state's own.
    __device__ __forceinline__ void publish(u32 turn, const Values& value, const Place& at, u32 column, int group) {
        float low = value[0][group][0], high = value[0][group][1];
#pragma unroll
        for (int part = 0; part < PARTS; part++) {
            u32 own = pack(low, high);
            if (part + 1 < PARTS) low -= low_of(own), high -= high_of(own);
            // Two units join with two to four, four to eight: then four lanes have the same 16 bytes.
            u32 odd = at.g & 2, upper = at.g & 4;
            u32 given = __shfl_xor_sync(ALL, own, 8);
            u32 first = select(odd, given, own), second = select(odd, own, given);
            u32 other_first = __shfl_xor_sync(ALL, first, 16), other_second = __shfl_xor_sync(ALL, second, 16);
            u32 a = select(upper, other_first, first), b = select(upper, other_second, second);
            u32 c = select(upper, first, other_first), d = select(upper, second, other_second);
            u32 place = target + (turn & 1) * bytes + part * part_bytes + 8 * group * row_bytes + 2 * column;
#pragma unroll
            for (int i = 0; i < rounds; i++)
                if (sends) send(remote[i] + place, barrier(turn, group, remote[i]), a, b, c, d);
        }
    }

    // Waits for the stage `phase` of a group, whose buffer is that of `turn`; returns where this lane reads.
    __device__ __forceinline__ u32 receive(u32 phase, u32 turn, int group) {
        wait_for(barrier(turn, group, shared), (phase >> 1) & 1);
        return source + (turn & 1) * bytes + 8 * group * row_bytes;
    }
};

// A thread's part of what its block writes together: of each group of 8 samples a word of two units.
struct Share {
    static constexpr u32 words = 4 * WARPS;  // of a row
    u32 row, word;
    bool exists[OWN];
    i64 place;  // of the first one in a (B, 2 width) matrix

    __device__ __forceinline__ Share(u32 tiles, u32 B, u32 N, u32 width) {
        row = threadIdx.x / words, word = rank() * words + threadIdx.x % words;
        u32 sample = (group() % tiles) * SAMPLES + row;
        place = (i64)sample * 2 * width + 2 * word;
#pragma unroll
        for (int j = 0; j < OWN; j++) exists[j] = sample + 8 * j < B && 2 * word < N;
    }
};

struct ForwardProduct {
    Matrix<1, TILES> both;  // row g: αA of unit g; row g + 8: W of the same unit

    __device__ __forceinline__ ForwardProduct(const u16* weights, const Place& at) {
        const u16* row = weights + (i64)(at.first_unit() + at.g) * PADDED;
        both.load(0, row, row + (i64)PADDED * PADDED);
    }

    template <typename Work>
    __device__ __forceinline__ void of(
        Values& linear, Values& z, u32 source, const Exchange<PADDED>& exchange, const Place& at, int group,
        Work work) const {
        float product[1][4];
        both.times(product, source, exchange.part_bytes, work);
        at.own(linear[0][group], product[0][0], product[0][1]);
        at.own(z[0][group], product[0][2], product[0][3]);
    }
};

// Two warps share 16 units: one multiplies αAᵀ by κ, the other Wᵀ by d, and each completes the sums of its own 8 units.
struct BackwardProduct {
    static constexpr u32 rows = THREADS * OWN, bytes = 2 * rows * 8;  // of a buffer, of both
    Matrix<1, TILES> matrix;
    float2* given;
    u32 half;

    __device__ __forceinline__ BackwardProduct(const u16* weights, const Place& at, void* memory) {
        half = (threadIdx.x >> 5) & 1;
        given = (float2*)memory;
        const u16* row = weights + half * PADDED + (i64)(at.first_unit() - 8 * half + at.g) * 2 * PADDED;
        matrix.load(0, row, row + 8 * 2 * PADDED);
    }

    template <typename Work>
    __device__ __forceinline__ void of(
        Values& eta, u32 source, const Exchange<2 * PADDED>& exchange, const Place& at, u32 turn, int group,
        Work work) const {
        float sum[1][4];
        matrix.times(sum, source + half * 2 * PADDED, exchange.part_bytes, work);
        u32 warp = threadIdx.x >> 5;
        float2* here = given + (turn & 1) * rows + group * 32 + (threadIdx.x & 31);
        here[warp * GROUPS * 32] = make_float2(select(half, sum[0][0], sum[0][2]), select(half, sum[0][1], sum[0][3]));
        meet_pair(warp >> 1);
        float2 other = here[(warp ^ 1) * GROUPS * 32];
        at.own(eta[0][group], select(half, sum[0][2], sum[0][0]) + other.x,
               select(half, sum[0][3], sum[0][1]) + other.y);
    }
};
