// The scan for hidden sizes whose matrices need several multiprocessors: a cluster of them for a few samples.
//
// Each warp owns 8 hidden units and keeps what they need of both matrices in registers, as left operands of the tensor
// cores, for all of the sequence. The state of the samples lies in the shared memory of every block of the cluster, as
// the right operand. After each stage a warp sends its part of the new state to all blocks; the stores count the bytes
// that arrived on a barrier of the receiver, so a block goes on as soon as it has the whole state, and nothing else
// waits. Two buffers take turns: whoever sends into a buffer has received what followed it from all warps of the
// cluster, so none of them reads it any more.
//
// Compiled at run time for one shape. Macros:
//   CLUSTER, WARPS   blocks of a cluster, warps of a block (even); PADDED = 8 · CLUSTER · WARPS hidden units
//   SAMPLES          of a cluster: 8 or 16
//   LEAST_BLOCKS     of a multiprocessor at once: what limits the registers
//   PARTS            matrices of 16 bits that add up to one: 1; 2 (three products) or 3 (six)
//   OPERAND          0: bfloat16, 1: float16
//   MEMORY           dtype of tensors: 0: bfloat16, 1: float16, 2: float32
//   PAIRS            whether two neighbouring units are read and written in one access
//   STAGES, COEFFICIENTS, WEIGHTS   the integrator; NONLINEARITY 0: tanh, 1: sigmoid, 2: relu, 3: identity
//   FUSED_INPUT      inputs of one feature, multiplied by U here; HAS_SPANS: a step size for each step and sample

typedef unsigned int u32;
typedef unsigned short u16;
typedef long long i64;

#define PADDED (8 * CLUSTER * WARPS)
#define TILES (PADDED / 16)  // of 16 columns; even
#define GROUPS (SAMPLES / 8)  // of 8 samples, as the tensor cores take them
#define CHAINS (4 / GROUPS)  // of sums, so that the tensor cores need not wait for the previous result
#define FAR 8  // steps by which memory is fetched into the cache ahead of its use
#define BARRIERS 128  // bytes at the start of shared memory
// A warp's 8 units are 16 bytes of a row in half precision, and memory wants more at a time: the backward pass writes
// its block's own units of a row together then, from shared memory, where all warps have sent them.
#define TOGETHER (PAIRS && MEMORY != 2)
#define ALL 0xffffffffu

#if MEMORY == 2
typedef float element;
#else
typedef u16 element;
#endif

// ---------------------------------------------------------------------------------------------------- numbers

__device__ __forceinline__ u32 pack(float low, float high) {
    u32 both;
#if OPERAND == 0
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(high), "f"(low));
#else
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(high), "f"(low));
#endif
    return both;
}

__device__ __forceinline__ float low_of(u32 both) {
#if OPERAND == 0
    return __uint_as_float(both << 16);
#else
    float value;
    asm("{.reg .b16 a, b; mov.b32 {a, b}, %1; cvt.f32.f16 %0, a;}" : "=f"(value) : "r"(both));
    return value;
#endif
}

__device__ __forceinline__ float high_of(u32 both) {
#if OPERAND == 0
    return __uint_as_float(both & 0xffff0000u);
#else
    float value;
    asm("{.reg .b16 a, b; mov.b32 {a, b}, %1; cvt.f32.f16 %0, b;}" : "=f"(value) : "r"(both));
    return value;
#endif
}

__device__ __forceinline__ float to_float(element value) {
#if MEMORY == 2
    return value;
#else
    return low_of(value);
#endif
}

__device__ __forceinline__ element to_element(float value) {
#if MEMORY == 2
    return value;
#else
    return (element)pack(value, 0.0f);
#endif
}

__device__ __forceinline__ float tanh_of(float z) {
#if PARTS == 1 && OPERAND == 0
    float s;
    asm("tanh.approx.f32 %0, %1;" : "=f"(s) : "f"(z));
    return s;
#elif PARTS == 2
    return 1.0f - 2.0f / (1.0f + __expf(2.0f * z));
#else
    // An odd minimax fit near zero, where the quotient below cancels.
    float q = z * z;
    float series = 2.10716722e-02f - 6.27423064e-03f * q;
    series = -5.38523081e-02f + series * q;
    series = 1.33325861e-01f + series * q;
    series = -3.33333176e-01f + series * q;
    float decay = __expf(-2.0f * fabsf(z));
    float large = copysignf(__fdividef(1.0f - decay, 1.0f + decay), z);
    return fabsf(z) < 0.55f ? z + z * q * series : large;
#endif
}

__device__ __forceinline__ float sigma(float z) {
#if NONLINEARITY == 0
    return tanh_of(z);
#elif NONLINEARITY == 1
    float decay = __expf(-fabsf(z));
    return (z < 0.0f ? decay : 1.0f) / (1.0f + decay);
#elif NONLINEARITY == 2
    return z > 0.0f ? z : (z == z ? 0.0f : z);  // NaN stays NaN
#else
    return z;
#endif
}

__device__ __forceinline__ float sigma_slope(float s) {  // σ′(z) from s = σ(z)
#if NONLINEARITY == 0
    return 1.0f - s * s;
#elif NONLINEARITY == 1
    return s * (1.0f - s);
#elif NONLINEARITY == 2
    return s > 0.0f ? 1.0f : 0.0f;
#else
    return 1.0f;
#endif
}

// ------------------------------------------------------------------------------------------- products and barriers

__device__ __forceinline__ void load_right(u32 (&b)[4], u32 address) {  // two tiles of 16 units by 8 samples
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(b[0]), "=r"(b[1]), "=r"(b[2]), "=r"(b[3]) : "r"(address) : "memory");
}

__device__ __forceinline__ void multiply(float (&c)[4], const u32 (&a)[4], u32 b0, u32 b1) {
#if OPERAND == 0
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
#else
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
#endif
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

__device__ __forceinline__ u32 address_in(u32 address, u32 rank) {  // the same place in another block of the cluster
    u32 there;
    asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(address), "r"(rank));
    return there;
}

__device__ __forceinline__ void meet_cluster() {
    if (CLUSTER == 1) return __syncthreads();
    asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::: "memory");
}

__device__ __forceinline__ void expect(u32 barrier, u32 bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" :: "r"(barrier), "r"(bytes) : "memory");
}

__device__ __forceinline__ void wait_for(u32 barrier, u32 parity) {
    u32 done;
    do {
        asm volatile("{.reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2; selp.u32 %0, 1, 0, p;}"
                     : "=r"(done) : "r"(barrier), "r"(parity) : "memory");
    } while (!done);
}

__device__ __forceinline__ void send(u32 place, u32 barrier, u32 a, u32 b, u32 c, u32 d) {
#if CLUSTER == 1
    asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" :: "r"(place), "r"(a), "r"(b), "r"(c), "r"(d) : "memory");
#else
    asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.b32 [%0], {%1, %2, %3, %4}, [%5];"
                 :: "r"(place), "r"(a), "r"(b), "r"(c), "r"(d), "r"(barrier) : "memory");
#endif
}

__device__ __forceinline__ void fetch(const void* address) {
    asm volatile("prefetch.global.L2 [%0];" :: "l"(address));
}

// One of two values by a lane's number. In C++ the compiler makes two branches of it, and a warp that exchanges values
// among its lanes goes through both of them slowly.
__device__ __forceinline__ u32 select(u32 condition, u32 yes, u32 no) {
    u32 value;
    asm("{.reg .pred p; setp.ne.u32 p, %1, 0; selp.b32 %0, %2, %3, p;}" : "=r"(value) : "r"(condition), "r"(yes), "r"(no));
    return value;
}

__device__ __forceinline__ float select(u32 condition, float yes, float no) {
    float value;
    asm("{.reg .pred p; setp.ne.u32 p, %1, 0; selp.f32 %0, %2, %3, p;}" : "=f"(value) : "r"(condition), "f"(yes), "f"(no));
    return value;
}

// ------------------------------------------------------------------------------------------------ who owns what

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
        for (u32 i = 0; i < rounds; i++) remote[i] = CLUSTER == 1 ? shared : address_in(shared, (4 * i + part) % CLUSTER);
        target = BARRIERS + at.row * row_bytes + 2 * at.first_unit();
        source = shared + BARRIERS + (lane & 7) * row_bytes + (lane >> 3) * 16;
        meet_cluster();
    }

    __device__ __forceinline__ void expect_all(u32 phase) {
        if (CLUSTER > 1) expect(shared + 8 * (phase & 1), PARTS * SAMPLES * COLUMNS * 2);
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
        if (CLUSTER == 1)
            __syncthreads();
        else
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
                float total = CHAINS == 4 ? (large[j][0][e] + large[j][1][e]) + (large[j][2 % CHAINS][e] + large[j][3 % CHAINS][e])
                                          : large[j][0][e] + large[j][1][e];
                // The tensor cores cut off what they add, which shrinks a long sum by about 2e-8 for 16 terms.
                if (PARTS == 3) total += total * ((TILES / CHAINS) * 2e-8f);
                sum[j][e] = PARTS > 1 ? total + small[j][e] : total;
            }
    }
};

// ------------------------------------------------------------------------------------------------------- memory

// Loads that leave a register as it is where nothing exists, and whose result nobody looks at before it is used: a
// selection or a conversion right here would wait for the memory.
__device__ __forceinline__ void load_if(bool exists, u32& value, const u16* place) {
    asm volatile("{.reg .pred p; setp.ne.u32 p, %2, 0; @p ld.global.u16 %0, [%1];}"
                 : "+r"(value) : "l"(place), "r"((u32)exists));
}

__device__ __forceinline__ void load_if(bool exists, float& value, const float* place) {
    asm volatile("{.reg .pred p; setp.ne.u32 p, %2, 0; @p ld.global.f32 %0, [%1];}"
                 : "+f"(value) : "l"(place), "r"((u32)exists));
}

__device__ __forceinline__ void load_pair_if(bool exists, u32& both, const u16* place) {
    asm volatile("{.reg .pred p; setp.ne.u32 p, %2, 0; @p ld.global.b32 %0, [%1];}"
                 : "+r"(both) : "l"(place), "r"((u32)exists));
}

__device__ __forceinline__ void load_pair_if(bool exists, float& low, float& high, const float* place) {
    asm volatile("{.reg .pred p; setp.ne.u32 p, %3, 0; @p ld.global.v2.f32 {%0, %1}, [%2];}"
                 : "+f"(low), "+f"(high) : "l"(place), "r"((u32)exists));
}

#if MEMORY == 2
typedef float loaded;
__device__ __forceinline__ float value_of(loaded raw) { return raw; }
#else
typedef u32 loaded;
__device__ __forceinline__ float value_of(loaded raw) { return low_of(raw); }
#endif

// A thread's entries of a tensor, as they lie in memory; zero where nothing exists.
struct Entries {
#if PAIRS && MEMORY != 2
    u32 raw[GROUPS];
#else
    loaded raw[GROUPS][2];
#endif

    __device__ __forceinline__ Entries() {
#pragma unroll
        for (int j = 0; j < GROUPS; j++) {
#if PAIRS && MEMORY != 2
            raw[j] = 0;
#else
            raw[j][0] = raw[j][1] = 0;
#endif
        }
    }

    // `place`: of the first sample and unit; `row` and `column`: strides of samples and units.
    __device__ __forceinline__ void load(const element* place, i64 row, i64 column, const Place& at) {
#pragma unroll
        for (int j = 0; j < GROUPS; j++) {
            const element* here = place + 8 * j * row;
#if PAIRS && MEMORY == 2
            load_pair_if(at.inside[j] && at.first, raw[j][0], raw[j][1], here);
#elif PAIRS
            load_pair_if(at.inside[j] && at.first, raw[j], here);
#else
            load_if(at.inside[j] && at.first, raw[j][0], here);
            load_if(at.inside[j] && at.second, raw[j][1], here + column);
#endif
        }
    }

    __device__ __forceinline__ float operator()(int j, int e) const {
#if PAIRS && MEMORY != 2
        return e ? high_of(raw[j]) : low_of(raw[j]);
#else
        return value_of(raw[j][e]);
#endif
    }
};

// The block's units of its samples, from the place of the block's first; one thread for a line of the cache.
__device__ __forceinline__ void fetch_rows(const element* place, i64 row, u32 samples) {
    constexpr u32 line = 128 / sizeof(element), lines = (8 * WARPS + line - 1) / line;
    static_assert(SAMPLES * lines <= 32 * WARPS, "there are more lines than threads");
    u32 sample = threadIdx.x / lines;
    if (sample < SAMPLES && sample < samples) fetch(place + sample * row + threadIdx.x % lines * line);
}

__device__ __forceinline__ void store(element* place, i64 row, const Values& value, const Place& at) {
#pragma unroll
    for (int j = 0; j < GROUPS; j++) {
        element* here = place + 8 * j * row;
#if PAIRS && MEMORY == 2
        if (at.inside[j] && at.first) *(float2*)here = make_float2(value[j][0], value[j][1]);
#elif PAIRS
        if (at.inside[j] && at.first) *(u32*)here = pack(value[j][0], value[j][1]);
#else
        if (at.inside[j] && at.first) here[0] = to_element(value[j][0]);
        if (at.inside[j] && at.second) here[1] = to_element(value[j][1]);
#endif
    }
}

// Inputs of one feature, for each of a thread's samples.
struct Inputs {
    loaded raw[GROUPS];

    __device__ __forceinline__ Inputs() {
#pragma unroll
        for (int j = 0; j < GROUPS; j++) raw[j] = 0;
    }

    __device__ __forceinline__ void load(const element* place, i64 row, const Place& at) {
#pragma unroll
        for (int j = 0; j < GROUPS; j++) load_if(at.inside[j], raw[j], place + 8 * j * row);
    }

    __device__ __forceinline__ float operator()(int j) const { return value_of(raw[j]); }
};

// Lengths of a step.
struct Spans {
    float value[GROUPS];

    __device__ __forceinline__ Spans(float length) {
#pragma unroll
        for (int j = 0; j < GROUPS; j++) value[j] = length;
    }

    __device__ __forceinline__ void load(const float* place, i64 row, const Place& at) {
#pragma unroll
        for (int j = 0; j < GROUPS; j++) load_if(at.inside[j], value[j], place + 8 * j * row);
    }
};

template <typename Number>
__device__ __forceinline__ void fetch_samples(const Number* place, i64 row, const Place& at) {
#pragma unroll
    for (int j = 0; j < GROUPS; j++)
        if (threadIdx.x < 8 && at.inside[j]) fetch(place + 8 * j * row);
}

// ------------------------------------------------------------------------------------------------------ forward

struct ForwardArguments {
    const element* drive;
    const u16* weights;  // (S, PARTS, 2·PADDED, PADDED): rows of αA, then of W
    const element* h0;  // (S, B, N), or null
    const element* U;  // (S, N)
    const element* bias;  // (S, N), or null
    const float* spans;
    element* tape;  // (S, T, slots, B, N): state, values of σ, states of later stages
    element* last;  // (S, B, N)
    i64 drive_s, drive_t, drive_b, drive_n, spans_s, spans_t, spans_b;
    u32 T, B, N, tiles, keep, save;
    float step_size;
};

constexpr float coefficients[STAGES] = COEFFICIENTS;
constexpr float stage_weights[STAGES] = WEIGHTS;

extern "C" __global__ void __cluster_dims__(CLUSTER, 1, 1) __launch_bounds__(32 * WARPS, LEAST_BLOCKS)
forward(const __grid_constant__ ForwardArguments p) {
    extern __shared__ __align__(128) unsigned char memory[];
    const Place at(p.tiles, p.B, p.N);
    Matrix both;  // row g of a product: αA of unit g; row g + 8: W of the same unit
    const u16* rows = p.weights + at.network * PARTS * 2 * PADDED * PADDED + (i64)at.first_unit() * PADDED;
    both.load(rows, rows + (i64)PADDED * PADDED, PADDED);
    Exchange<PADDED> exchange(at, memory);

    const i64 plane = (i64)p.B * p.N, step_plane = (p.save ? 2 * STAGES : 1) * plane;
    const i64 cell = (i64)at.sample * p.N + at.unit;
    const u32 block_sample = at.sample - at.row, block_unit = blockIdx.x * 8 * WARPS;
    const element* drive = p.drive + at.network * p.drive_s + (i64)at.sample * p.drive_b;
    element* tape = p.tape + at.network * p.T * step_plane + cell;
    Entries u, next_u;
    Inputs x, next_x;
    Spans step(p.step_size), next_step(p.step_size);
    float input[2] = {0.0f, 0.0f}, offset[2] = {0.0f, 0.0f};
    Values h, stage, total, s;
    if (p.h0) u.load(p.h0 + at.network * plane + cell, p.N, 1, at);
#pragma unroll
    for (int j = 0; j < GROUPS; j++)
#pragma unroll
        for (int e = 0; e < 2; e++) stage[j][e] = h[j][e] = u(j, e);
    exchange.publish(0, stage, at, 0);
#if FUSED_INPUT
#pragma unroll
    for (int e = 0; e < 2; e++)
        if (e ? at.second : at.first) {
            input[e] = to_float(p.U[at.network * p.N + at.unit + e]);
            offset[e] = p.bias ? to_float(p.bias[at.network * p.N + at.unit + e]) : 0.0f;
        }
    x.load(drive, p.drive_b, at);
#else
    drive += (i64)at.unit * p.drive_n;
    u.load(drive, p.drive_b, p.drive_n, at);
#endif
#if HAS_SPANS
    const float* spans = p.spans + at.network * p.spans_s + (i64)at.sample * p.spans_b;
    step.load(spans, p.spans_b, at);
#endif
    u32 phase = 0;
    for (u32 t = 0; t < p.T; t++) {
        drive += p.drive_t;
#if HAS_SPANS
        spans += p.spans_t;
#endif
        if (t + 1 < p.T) {  // what the next step reads
#if FUSED_INPUT
            next_x.load(drive, p.drive_b, at);
#else
            next_u.load(drive, p.drive_b, p.drive_n, at);
#endif
#if HAS_SPANS
            next_step.load(spans, p.spans_b, at);
#endif
        }
        if (t + FAR < p.T) {
#if FUSED_INPUT
            fetch_samples(drive + (FAR - 1) * p.drive_t, p.drive_b, at);
#else
            const element* ahead = drive - (i64)at.row * p.drive_b - (at.unit - block_unit) + (FAR - 1) * p.drive_t;
            if (p.drive_n == 1) fetch_rows(ahead, p.drive_b, p.B - block_sample);
#endif
#if HAS_SPANS
            fetch_samples(spans + (FAR - 1) * p.spans_t, p.spans_b, at);
#endif
        }
#pragma unroll
        for (int i = 0; i < STAGES; i++, phase++) {
            u32 source = exchange.receive(phase);
            float product[GROUPS][4];
            both.times(product, source, exchange.part_bytes, exchange.row_bytes);
#pragma unroll
            for (int j = 0; j < GROUPS; j++) {
                float linear[2], z[2];
                at.own(linear, product[j][0], product[j][1]);
                at.own(z, product[j][2], product[j][3]);
#pragma unroll
                for (int e = 0; e < 2; e++) {
#if FUSED_INPUT
                    s[j][e] = sigma(z[e] + (input[e] * x(j) + offset[e]));
#else
                    s[j][e] = sigma(z[e] + u(j, e));
#endif
                    float slope = linear[e] + s[j][e];
                    total[j][e] = i == 0 ? slope * stage_weights[0] : total[j][e] + slope * stage_weights[i];
                    if (i + 1 < STAGES)
                        stage[j][e] = h[j][e] + step.value[j] * coefficients[(i + 1) % STAGES] * slope;
                    else
                        stage[j][e] = h[j][e] = h[j][e] + step.value[j] * total[j][e];
                    if (!(e ? at.second : at.first)) stage[j][e] = 0.0f;  // what does not exist stays finite
                }
            }
            if (i + 1 < STAGES || t + 1 < p.T) exchange.publish(phase + 1, stage, at, 0);
            // What follows may take as long as the others.
            if (threadIdx.x == 0) exchange.expect_all(phase);
            if (p.save) store(tape + (i + 1) * plane, p.N, s, at);
            if (p.save && i + 1 < STAGES) store(tape + (STAGES + i + 1) * plane, p.N, stage, at);
            if (p.keep && i + 1 == STAGES) store(tape, p.N, h, at);
        }
        tape += step_plane, u = next_u, x = next_x, step = next_step;
    }
    store(p.last + at.network * plane + cell, p.N, h, at);
    meet_cluster();  // nobody leaves while somebody may still write to it
}

// ----------------------------------------------------------------------------------------------------- backward

struct BackwardArguments {
    const u16* weights;  // (S, PARTS, PADDED, 2·PADDED): rows of αAᵀ and Wᵀ side by side
    const float* spans;
    const element* tape;  // (S, T, 2·STAGES, B, N)
    const element* grad_states;  // or null
    const element* grad_last;  // (S, B, N), or null
    const element* x;  // inputs of one feature, or null
    element* kappa_d;  // (S, STAGES, T, B, 2N)
    element* grad_h0;  // (S, B, N)
    float* input_sums;  // (S, tiles, 2, N)
    i64 grads_s, grads_t, grads_b, grads_n, spans_s, spans_t, spans_b, x_s, x_t, x_b;
    u32 T, B, N, tiles;
    float step_size;
};

// Two warps share 16 units: one multiplies αAᵀ by κ, the other Wᵀ by d, and each completes the sums of its own 8 units.
struct Partner {
    float2* memory;

    __device__ __forceinline__ void add(float (&own)[GROUPS][2], const float (&sum)[GROUPS][4], u32 phase) {
        u32 warp = threadIdx.x >> 5, lane = threadIdx.x & 31, half = warp & 1;
        float2* here = memory + (phase & 1) * (WARPS * 32 * GROUPS) + lane;
#pragma unroll
        for (int j = 0; j < GROUPS; j++)
            here[(warp * GROUPS + j) * 32] = make_float2(select(half, sum[j][0], sum[j][2]), select(half, sum[j][1], sum[j][3]));
        asm volatile("bar.sync %0, 64;" :: "r"(1 + (warp >> 1)) : "memory");
#pragma unroll
        for (int j = 0; j < GROUPS; j++) {
            float2 given = here[((warp ^ 1) * GROUPS + j) * 32];
            own[j][0] = select(half, sum[j][2], sum[j][0]) + given.x, own[j][1] = select(half, sum[j][3], sum[j][1]) + given.y;
        }
    }
};

extern "C" __global__ void __cluster_dims__(CLUSTER, 1, 1) __launch_bounds__(32 * WARPS, LEAST_BLOCKS)
backward(const __grid_constant__ BackwardArguments p) {
    extern __shared__ __align__(128) unsigned char memory[];
    const Place at(p.tiles, p.B, p.N);
    Matrix matrix;
    const u32 half = (threadIdx.x >> 5) & 1;
    const u16* rows = p.weights + at.network * PARTS * 2 * PADDED * PADDED + half * PADDED
                      + (i64)(at.first_unit() - 8 * half) * 2 * PADDED;
    matrix.load(rows, rows + 8 * 2 * PADDED, 2 * PADDED);
    Exchange<2 * PADDED> exchange(at, memory);
    Partner partner = {(float2*)(memory + BARRIERS + 2 * exchange.bytes)};

    const i64 plane = (i64)p.B * p.N, cell = (i64)at.sample * p.N + at.unit;
    i64 t = p.T - 1;
    const element* tape = p.tape + (at.network * p.T + t) * 2 * STAGES * plane + cell;
    const element* grads = p.grad_states + at.network * p.grads_s + t * p.grads_t + (i64)at.sample * p.grads_b + (i64)at.unit * p.grads_n;
    const element* inputs = p.x + at.network * p.x_s + t * p.x_t + (i64)at.sample * p.x_b;
    element* kappa_d = p.kappa_d + (at.network * STAGES * p.T + t) * 2 * plane;
    const u32 block_sample = at.sample - at.row, block_unit = blockIdx.x * 8 * WARPS;
    const i64 double_cell = (i64)at.sample * 2 * p.N + at.unit;
#if TOGETHER
    const Share share(p.tiles, p.B, p.N);
#endif
    Entries s, grad;
    Inputs x;
    Spans step(p.step_size);
    Values adjoint, total, eta;
    float grad_U[2] = {0.0f, 0.0f}, grad_b[2] = {0.0f, 0.0f};
    Entries last;
    if (p.grad_last) last.load(p.grad_last + at.network * plane + cell, p.N, 1, at);
#pragma unroll
    for (int j = 0; j < GROUPS; j++)
#pragma unroll
        for (int e = 0; e < 2; e++) adjoint[j][e] = last(j, e);
    s.load(tape + STAGES * plane, p.N, 1, at);
    if (p.grad_states) grad.load(grads, p.grads_b, p.grads_n, at);
    if (p.x) x.load(inputs, p.x_b, at);
#if HAS_SPANS
    const float* spans = p.spans + at.network * p.spans_s + t * p.spans_t + (i64)at.sample * p.spans_b;
    step.load(spans, p.spans_b, at);
#endif
    u32 phase = 0;
    for (; t >= 0; t--) {
#pragma unroll
        for (int i = STAGES - 1; i >= 0; i--, phase++) {
            Values kappa, d;
#pragma unroll
            for (int j = 0; j < GROUPS; j++)
#pragma unroll
                for (int e = 0; e < 2; e++) {
                    if (i == STAGES - 1) adjoint[j][e] += grad(j, e), total[j][e] = 0.0f;
                    kappa[j][e] = adjoint[j][e] * stage_weights[i];
                    if (i + 1 < STAGES) kappa[j][e] += eta[j][e] * coefficients[(i + 1) % STAGES];
                    kappa[j][e] *= step.value[j];
                    if (!(e ? at.second : at.first)) kappa[j][e] = 0.0f;
                    d[j][e] = kappa[j][e] * sigma_slope(s(j, e));
                }
            exchange.publish(phase, kappa, at, 0);
            exchange.publish(phase, d, at, PADDED);
            // While the others send: what is left to write, and what the next stage reads.
            element* out = kappa_d + (i64)i * p.T * 2 * plane;
#if !TOGETHER
            store(out + double_cell, 2 * p.N, kappa, at);
            store(out + double_cell + p.N, 2 * p.N, d, at);
#endif
            if (p.x) {
#pragma unroll
                for (int j = 0; j < GROUPS; j++)
#pragma unroll
                    for (int e = 0; e < 2; e++)
                        grad_U[e] += d[j][e] * x(j), grad_b[e] += d[j][e];
            }
            if (i > 0) {
                s.load(tape + i * plane, p.N, 1, at);
            } else if (t > 0) {
                s.load(tape - STAGES * plane, p.N, 1, at);  // the last stage of the step before
                if (p.grad_states) grad.load(grads - p.grads_t, p.grads_b, p.grads_n, at);
                if (p.x) x.load(inputs - p.x_t, p.x_b, at);
#if HAS_SPANS
                step.load(spans - p.spans_t, p.spans_b, at);
#endif
            }
            if (t >= FAR) {
                const element* ahead = tape - cell + (i64)block_sample * p.N + block_unit;
                fetch_rows(ahead + ((i > 0 ? i : STAGES) - FAR * 2 * STAGES) * plane, p.N, p.B - block_sample);
            }
            if (i == 0 && t >= FAR) {
                if (p.grad_states && p.grads_n == 1) {
                    const element* ahead = grads - (i64)at.row * p.grads_b - (at.unit - block_unit);
                    fetch_rows(ahead - FAR * p.grads_t, p.grads_b, p.B - block_sample);
                }
                if (p.x) fetch_samples(inputs - FAR * p.x_t, p.x_b, at);
#if HAS_SPANS
                fetch_samples(spans - FAR * p.spans_t, p.spans_b, at);
#endif
            }
            u32 source = exchange.receive(phase) + half * 2 * PADDED;
            float product[GROUPS][4], sum[GROUPS][2];
#if TOGETHER
            u32 written[GROUPS], written_d[GROUPS];
#pragma unroll
            for (int j = 0; j < GROUPS; j++) {
                u32 place = exchange.shared + BARRIERS + (phase & 1) * exchange.bytes + share.row[j] * exchange.row_bytes;
                written[j] = read_word(place + 4 * share.word[j]);
                written_d[j] = read_word(place + 4 * share.word[j] + 2 * PADDED);
            }
#endif
            matrix.times(product, source, exchange.part_bytes, exchange.row_bytes);
#if TOGETHER
#pragma unroll
            for (int j = 0; j < GROUPS; j++)
                if (share.exists[j]) {
                    i64 place = 2 * share.cell[j] - 2 * share.word[j];  // rows are twice as long
                    *(u32*)(out + place) = written[j], *(u32*)(out + place + p.N) = written_d[j];
                }
#endif
            partner.add(sum, product, phase);
            if (threadIdx.x == 0) exchange.expect_all(phase);
#pragma unroll
            for (int j = 0; j < GROUPS; j++) {
                at.own(eta[j], sum[j][0], sum[j][1]);
#pragma unroll
                for (int e = 0; e < 2; e++) total[j][e] += eta[j][e];
            }
        }
#pragma unroll
        for (int j = 0; j < GROUPS; j++)
#pragma unroll
            for (int e = 0; e < 2; e++) adjoint[j][e] += total[j][e];
        tape -= 2 * STAGES * plane, kappa_d -= 2 * plane, grads -= p.grads_t, inputs -= p.x_t;
#if HAS_SPANS
        spans -= p.spans_t;
#endif
    }
    if (p.x) {
#pragma unroll
        for (int e = 0; e < 2; e++) {
#pragma unroll
            for (int lanes = 1; lanes < 8; lanes *= 2) {  // over the samples
                grad_U[e] += __shfl_xor_sync(ALL, grad_U[e], lanes);
                grad_b[e] += __shfl_xor_sync(ALL, grad_b[e], lanes);
            }
            if (at.q == 0 && !(at.g & 1) && (e ? at.second : at.first)) {
                float* place = p.input_sums + (i64)blockIdx.y * 2 * p.N + at.unit + e;
                place[0] = grad_U[e], place[p.N] = grad_b[e];
            }
        }
    }
    store(p.grad_h0 + at.network * plane + cell, p.N, adjoint, at);
    meet_cluster();
}
