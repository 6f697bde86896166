// All steps of the recurrence.

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
