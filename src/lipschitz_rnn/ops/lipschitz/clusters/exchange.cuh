// Who owns what, the state that all blocks of a cluster share, and the matrices that each warp keeps.

// A product gives a thread one unit, g, of two samples, 2q and 2q + 1. Threads work on two neighbouring units of one
// sample instead, which lie side by side in memory: those of even g take sample 2q, those of odd g the other.
struct Place {
    u32 q, g, row, unit, sample;  // row: the sample, of 8
    i64 network;
    bool inside[GROUPS], first, second;  // whether its samples, and its two units, exist

    __device__ __forceinline__ Place(u32 tiles, u32 B, u32 N) {
        u32 lane = threadIdx.x & 31;
        q = lane & 3, g = lane >> 2, row = 2 * q + (g & 1);
        network = blockIdx.y / tiles;
        sample = (blockIdx.y % tiles) * SAMPLES + row;
        unit = (blockIdx.x * WARPS + (threadIdx.x >> 5)) * 8 + (g & 6);
        first = unit < N, second = unit + 1 < N;
#pragma unroll
        for (int j = 0; j < GROUPS; j++) inside[j] = sample + 8 * j < B;
    }

    __device__ __forceinline__ u32 first_unit() const { return unit - (g & 6); }  // of the warp

    // From a product's layout to this thread's: (unit g; samples 2q, 2q + 1) to (sample; units).
    __device__ __forceinline__ void own(float (&value)[2], float even, float odd) const {
        u32 second_sample = g & 1;
        float given = __shfl_xor_sync(ALL, select(second_sample, even, odd), 4);
        value[0] = select(second_sample, given, even), value[1] = select(second_sample, odd, given);
    }
};

typedef float Values[GROUPS][2];  // of a thread: two units of its samples

// The state, or what else is multiplied, in two buffers of (PARTS, SAMPLES, COLUMNS); rows are 16 bytes longer, so that
// eight of them start in different banks.
template <int COLUMNS>
struct Exchange {
    static constexpr u32 row_bytes = 2 * COLUMNS + 16, part_bytes = SAMPLES * row_bytes, bytes = PARTS * part_bytes;
    static constexpr u32 rounds = (CLUSTER + 3) / 4;  // four lanes send to different blocks at once
    u32 shared, remote[rounds], source, target;
    bool sends;

    __device__ __forceinline__ Exchange(const Place& at, const void* memory) {
        shared = (u32)__cvta_generic_to_shared(memory);
        if (threadIdx.x == 0) {
            for (int b = 0; b < 2; b++)
                asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" :: "r"(shared + 8 * b) : "memory");
            asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
            expect_all(0), expect_all(1);
        }
        u32 lane = threadIdx.x & 31, part = at.g >> 1;
        sends = part < CLUSTER;
#pragma unroll
        for (u32 i = 0; i < rounds; i++) remote[i] = address_in(shared, (4 * i + part) % CLUSTER);
        target = BARRIERS + at.row * row_bytes + 2 * at.first_unit();
        source = shared + BARRIERS + (lane & 7) * row_bytes + (lane >> 3) * 16;
        meet_cluster();
    }

    __device__ __forceinline__ void expect_all(u32 phase) {
        expect(shared + 8 * (phase & 1), PARTS * SAMPLES * COLUMNS * 2);
    }

    // The values of this thread, to columns that begin `column` after the state's own.
    __device__ __forceinline__ void publish(u32 phase, const Values& value, const Place& at, u32 column) {
        u32 buffer = phase & 1;
#pragma unroll
        for (int j = 0; j < GROUPS; j++) {
            float low = value[j][0], high = value[j][1];
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
                u32 place = target + buffer * bytes + part * part_bytes + 8 * j * row_bytes + 2 * column;
#pragma unroll
                for (int i = 0; i < rounds; i++)
                    if (sends) send(remote[i] + place, remote[i] + 8 * buffer, a, b, c, d);
            }
        }
    }

    __device__ __forceinline__ u32 receive(u32 phase) {  // waits; returns where this lane reads
        wait_for(shared + 8 * (phase & 1), (phase >> 1) & 1);
        return source + (phase & 1) * bytes;
    }
};

__device__ __forceinline__ u32 read_word(u32 address) {
    u32 word;
    asm volatile("ld.shared.b32 %0, [%1];" : "=r"(word) : "r"(address) : "memory");
    return word;
}

// A thread's part of what its block writes together: words of two units, GROUPS of them.
struct Share {
    static constexpr u32 words = 4 * WARPS;  // of a row
    u32 row[GROUPS], word[GROUPS];
    bool exists[GROUPS];
    i64 cell[GROUPS];  // in a (B, N) matrix

    __device__ __forceinline__ Share(u32 tiles, u32 B, u32 N) {
#pragma unroll
        for (int j = 0; j < GROUPS; j++) {
            u32 item = threadIdx.x + j * 32 * WARPS;
            row[j] = item / words, word[j] = blockIdx.x * words + item % words;
            u32 sample = (blockIdx.y % tiles) * SAMPLES + row[j];
            exists[j] = sample < B && 2 * word[j] < N;
            cell[j] = (i64)sample * N + 2 * word[j];
        }
    }
};

// What a warp multiplies by, 16 × PADDED: rows g and g + 8 of the products, from (parts, rows, pitch) in memory.
struct Matrix {
    u32 a[PARTS][TILES][4];

    __device__ __forceinline__ void load(const u16* upper, const u16* lower, u32 pitch) {  // row 0 of each half
        u32 lane = threadIdx.x & 31;
        i64 place = (i64)(lane >> 2) * pitch + 2 * (lane & 3);
#pragma unroll
        for (int part = 0; part < PARTS; part++)
#pragma unroll
            for (int k = 0; k < TILES; k++) {
                i64 here = place + (i64)part * 2 * PADDED * PADDED + k * 16;
                a[part][k][0] = *(const u32*)(upper + here), a[part][k][1] = *(const u32*)(lower + here);
                a[part][k][2] = *(const u32*)(upper + here + 8), a[part][k][3] = *(const u32*)(lower + here + 8);
            }
    }

    // sum[j] = this times the columns at `source`; with `part_bytes` and `row_bytes` of their buffer.
    __device__ __forceinline__ void times(float (&sum)[GROUPS][4], u32 source, u32 part_bytes, u32 row_bytes) const {
        float large[GROUPS][CHAINS][4], small[GROUPS][4];
#pragma unroll
        for (int j = 0; j < GROUPS; j++)
#pragma unroll
            for (int e = 0; e < 4; e++) {
                small[j][e] = 0.0f;
#pragma unroll
                for (int c = 0; c < CHAINS; c++) large[j][c][e] = 0.0f;
            }
#pragma unroll
        for (int k = 0; k < TILES; k += 2)
#pragma unroll
            for (int j = 0; j < GROUPS; j++) {
                u32 b[PARTS][4];
#pragma unroll
                for (int part = 0; part < PARTS; part++)
                    load_right(b[part], source + part * part_bytes + j * 8 * row_bytes + k * 32);
#pragma unroll
                for (int tile = 0; tile < 2; tile++) {
#pragma unroll
                    for (int part = PARTS - 1; part > 0; part--)  // small terms first
#pragma unroll
                        for (int i = 0; i <= part; i++)
                            multiply(small[j], a[part - i][k + tile], b[i][2 * tile], b[i][2 * tile + 1]);
                    multiply(large[j][(k + tile) % CHAINS], a[0][k + tile], b[0][2 * tile], b[0][2 * tile + 1]);
                }
            }
#pragma unroll
        for (int j = 0; j < GROUPS; j++)
#pragma unroll
            for (int e = 0; e < 4; e++) {
                float total = large[j][0][e] + large[j][1][e];
                if (CHAINS == 4) total += large[j][2 % CHAINS][e] + large[j][3 % CHAINS][e];
                // The tensor cores cut off what they add, which shrinks a long sum by about 2e-8 for 16 terms.
                if (PARTS == 3) total += total * ((TILES / CHAINS) * 2e-8f);
                sum[j][e] = PARTS > 1 ? total + small[j][e] : total;
            }
    }
};
