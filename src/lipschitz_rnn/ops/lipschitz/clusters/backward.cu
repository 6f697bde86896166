// The adjoint of all steps, from the last to the first.

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
            here[(warp * GROUPS + j) * 32] =
                make_float2(select(half, sum[j][0], sum[j][2]), select(half, sum[j][1], sum[j][3]));
        asm volatile("bar.sync %0, 64;" :: "r"(1 + (warp >> 1)) : "memory");
#pragma unroll
        for (int j = 0; j < GROUPS; j++) {
            float2 given = here[((warp ^ 1) * GROUPS + j) * 32];
            own[j][0] = select(half, sum[j][2], sum[j][0]) + given.x;
            own[j][1] = select(half, sum[j][3], sum[j][1]) + given.y;
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
    const element* grads = p.grad_states + at.network * p.grads_s + t * p.grads_t + (i64)at.sample * p.grads_b
                           + (i64)at.unit * p.grads_n;
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
                u32 place = exchange.shared + BARRIERS + (phase & 1) * exchange.bytes;
                place += share.row[j] * exchange.row_bytes;
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
