// Reading and writing tensors, a thread's entries at a time.

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
