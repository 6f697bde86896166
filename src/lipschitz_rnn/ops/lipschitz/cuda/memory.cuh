// Reading and writing tensors, a thread's entries at a time.

#if MEMORY == 2
typedef float loaded;
__device__ __forceinline__ float value_of(loaded raw) { return raw; }
#else
typedef u32 loaded;
__device__ __forceinline__ float value_of(loaded raw) { return low_of(raw); }
#endif

// The block's units of its samples, from the place of the block's first; one thread for a line of the cache.
__device__ __forceinline__ void fetch_rows(const element* place, i64 row, u32 samples) {
    constexpr u32 line = 128 / sizeof(element), lines = (PADDED / CLUSTER + line - 1) / line;
    static_assert(SAMPLES * lines <= 32 * WARPS, "there are more lines than threads");
    u32 sample = threadIdx.x / lines;
    if (sample < SAMPLES && sample < samples) fetch(place + sample * row + threadIdx.x % lines * line);
}

template <typename Number>
__device__ __forceinline__ void fetch_samples(const Number* place, i64 row, const Place& at) {
    if (threadIdx.x < 8) UNROLLED(j, OWN) if (at.inside[j]) fetch(place + APART * j * row);
}

// A thread's entries of a tensor, as they lie in memory; zero where nothing exists.
struct Entries {
#if PAIRS && MEMORY != 2
    u32 raw[HEIGHT][OWN] = {};
#else
    loaded raw[HEIGHT][OWN][2] = {};
#endif

    // `place`: of the first sample and unit; `row` and `column`: strides of samples and units.
    __device__ __forceinline__ void load(const element* place, i64 row, i64 column, const Place& at) {
#pragma unroll
        for (int tile = 0; tile < HEIGHT; tile++)
#pragma unroll
            for (int j = 0; j < OWN; j++) {
                const element* here = place + APART * j * row + 16 * tile * column;
#if PAIRS && MEMORY == 2
                load_pair_if(at.inside[j] && at.first[tile], raw[tile][j][0], raw[tile][j][1], here);
#elif PAIRS
                load_pair_if(at.inside[j] && at.first[tile], raw[tile][j], here);
#else
                load_if(at.inside[j] && at.first[tile], raw[tile][j][0], here);
                load_if(at.inside[j] && at.second[tile], raw[tile][j][1], here + column);
#endif
            }
    }

    __device__ __forceinline__ static void prefetch(const element* place, i64 row, i64 column, const Place& at) {
        if (column == 1) fetch_rows(place - (i64)at.row * row - (at.unit - at.block_unit), row, at.samples);
    }

#if UNITS_RING
    static constexpr u32 each = 2 * sizeof(element), bytes = HEIGHT * OWN * each;  // of a thread, in a place of a ring

    __device__ __forceinline__ static void request(
        u32 shared, const element* place, i64 row, i64 column, const Place& at, bool more) {
        EACH_PAIR(tile, j)
            copy<each>(shared + (tile * OWN + j) * each * THREADS, place + APART * j * row + 16 * tile * column,
                       at.inside[j] && at.first[tile] && more);
    }

    __device__ __forceinline__ void take(u32 shared) {
        EACH_PAIR(tile, j) {
            u32 here = shared + (tile * OWN + j) * each * THREADS;
#if MEMORY == 2
            raw[tile][j][0] = __uint_as_float(read_word(here)), raw[tile][j][1] = __uint_as_float(read_word(here + 4));
#else
            raw[tile][j] = read_word(here);
#endif
        }
    }
#endif

    __device__ __forceinline__ float operator()(int tile, int j, int e) const {
#if PAIRS && MEMORY != 2
        return e ? high_of(raw[tile][j]) : low_of(raw[tile][j]);
#else
        return value_of(raw[tile][j][e]);
#endif
    }
};

// Of one group of samples.
__device__ __forceinline__ void store(
    element* place, i64 row, const Values& value, const Place& at, int group, bool exists = true) {
    EACH_PAIR_OF(group, tile, j) {
        element* here = place + APART * j * row + 16 * tile;
        float low = value[tile][j][0], high = value[tile][j][1];
#if PAIRS
        store_pair_if(exists && at.inside[j] && at.first[tile], here, low, high);
#else
        store_if(exists && at.inside[j] && at.first[tile], here, to_element(low));
        store_if(exists && at.inside[j] && at.second[tile], here + 1, to_element(high));
#endif
    }
}

// Inputs of one feature, for each of a thread's samples.
struct Inputs {
#if INPUTS_RING && MEMORY != 2
    u32 both = 0;

    __device__ __forceinline__ float operator()(int j) const { return j ? high_of(both) : low_of(both); }
#else
    loaded raw[OWN] = {};

    __device__ __forceinline__ void load(const element* place, i64 row, i64, const Place& at) {
        UNROLLED(j, OWN) load_if(at.inside[j], raw[j], place + APART * j * row);
    }

    __device__ __forceinline__ float operator()(int j) const { return value_of(raw[j]); }
#endif

    __device__ __forceinline__ static void prefetch(const element* place, i64 row, i64, const Place& at) {
        fetch_samples(place, row, at);
    }

#if INPUTS_RING
    static constexpr u32 each = 4, bytes = OWN * sizeof(element);

    __device__ __forceinline__ static void request(
        u32 shared, const element* place, i64 row, i64, const Place& at, bool more) {
#if MEMORY == 2
        UNROLLED(j, OWN) copy<4>(shared + 4 * THREADS * j, place + APART * j * row, at.inside[j] && more);
#else
        copy<4>(shared, place, at.inside[0] && more);
#endif
    }

    __device__ __forceinline__ void take(u32 shared) {
#if MEMORY == 2
        UNROLLED(j, OWN) raw[j] = __uint_as_float(read_word(shared + 4 * THREADS * j));
#else
        both = read_word(shared);
#endif
    }
#endif
};

// Lengths of a step.
struct Spans {
    float value[OWN];

    __device__ __forceinline__ Spans(float length) { UNROLLED(j, OWN) value[j] = length; }

    __device__ __forceinline__ void load(const float* place, i64 row, i64, const Place& at) {
        UNROLLED(j, OWN) load_if(at.inside[j], value[j], place + APART * j * row);
    }

    __device__ __forceinline__ static void prefetch(const float* place, i64 row, i64, const Place& at) {
        fetch_samples(place, row, at);
    }

#if RING
    static constexpr u32 each = 4, bytes = OWN * 4;

    __device__ __forceinline__ static void request(
        u32 shared, const float* place, i64 row, i64, const Place& at, bool more) {
        UNROLLED(j, OWN) copy<4>(shared + 4 * THREADS * j, place + APART * j * row, at.inside[j] && more);
    }

    __device__ __forceinline__ void take(u32 shared) {
        UNROLLED(j, OWN) value[j] = __uint_as_float(read_word(shared + 4 * THREADS * j));
    }
#endif
};
