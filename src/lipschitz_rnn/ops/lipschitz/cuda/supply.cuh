// What the steps of a scan read, brought in time.

// Items of consecutive steps, STAGES_OF of them in a step, each with strides `row` and `column`. With a ring an item is
// requested FAR − 1 steps before it is taken; without, its memory is fetched into the cache and it is loaded when taken,
// one stage before its use. Both are asked for in the order of their use.
template <typename Item, typename Number, bool RINGED, int STAGES_OF = 1>
struct Supply {
    const Number *next, *later;  // of the step that is taken next, and of the one that is requested
    i64 step, inner, row, column;
    u32 steps, shared;

    __device__ __forceinline__ Supply(
        const Number* place, i64 step, i64 inner, i64 row, i64 column, u32 steps, u32& free)
        : next(place), later(place), step(step), inner(inner), row(row), column(column), steps(steps) {
        if constexpr (RINGED) {
            shared = free + threadIdx.x * Item::each;
            free += FAR * STAGES_OF * Item::bytes * THREADS;
        }
    }

    __device__ __forceinline__ u32 place(u32 step, int stage) const {
        if constexpr (RINGED) return shared + (step % FAR * STAGES_OF + stage) * Item::bytes * THREADS;
        return 0;
    }

    // At step `now`, for a later one; the last stage of a step moves on.
    __device__ __forceinline__ void request(u32 now, int stage, const Place& at, bool last = true) {
        if constexpr (RINGED) {
            Item::request(place(now + FAR - 1, stage), later + stage * inner, row, column, at, now + FAR - 1 < steps);
            if (last) later += step;
        } else if (now + FAR < steps) {
            Item::prefetch(next + (FAR - 1) * step + stage * inner, row, column, at);
        }
    }

    // What stage `stage` of step `now` uses.
    __device__ __forceinline__ void take(Item& item, u32 now, int stage, const Place& at, bool last = true) {
        if constexpr (RINGED) {
            item.take(place(now, stage));
        } else {
            if (now < steps) item.load(next + stage * inner, row, column, at);
            if (last) next += step;
        }
    }
};
