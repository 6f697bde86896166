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
    u32 T, B, N, tiles;
    float step_size;
};

extern "C" __global__ void LAUNCHED forward(const __grid_constant__ ForwardArguments p) {
    SHARED_MEMORY(memory);
    const Place at(p.tiles, p.B, p.N);
    const ForwardProduct matrices(p.weights + at.network * PARTS * 2 * PADDED * PADDED, at);
    Exchange<PADDED> exchange(at, memory);
    u32 free = (u32)__cvta_generic_to_shared(memory) + BARRIERS + 2 * exchange.bytes;

    const i64 plane = (i64)p.B * p.N, step_plane = (SAVE ? 2 * STAGES : 1) * plane;
    const i64 cell = (i64)at.sample * p.N + at.unit;
    const element* drive = p.drive + at.network * p.drive_s + (i64)at.sample * p.drive_b;
    element* tape = p.tape + at.network * p.T * step_plane + cell;
    if (CLUSTER == 1) tape -= step_plane;  // which is written one step later
#if FUSED_INPUT
    Supply<Inputs, element, INPUTS_RING> drives(drive, p.drive_t, 0, p.drive_b, 1, p.T, free);
    Inputs x;
    float input[HEIGHT][2] = {}, offset[HEIGHT][2] = {};
    UNROLLED(tile, HEIGHT) UNROLLED(e, 2)
        if (e ? at.second[tile] : at.first[tile]) {
            i64 unit = at.network * p.N + at.unit + 16 * tile + e;
            input[tile][e] = to_float(p.U[unit]);
            offset[tile][e] = p.bias ? to_float(p.bias[unit]) : 0.0f;
        }
#else
    Supply<Entries, element, UNITS_RING> drives(
        drive + (i64)at.unit * p.drive_n, p.drive_t, 0, p.drive_b, p.drive_n, p.T, free);
    Entries x;
#endif
    Spans step(p.step_size), next_step(p.step_size);
#if HAS_SPANS
    Supply<Spans, float, RING> spans(p.spans + at.network * p.spans_s + (i64)at.sample * p.spans_b, p.spans_t, 0,
                                     p.spans_b, 1, p.T, free);
#endif
    Values h, stage, total, s, given, next_given;
    Entries start;
    if (p.h0) start.load(p.h0 + at.network * plane + cell, p.N, 1, at);
    EACH(tile, j, e) stage[tile][j][e] = h[tile][j][e] = start(tile, j, e);
    UNROLLED(group, GROUPS) exchange.publish(0, stage, at, 0, group);

    auto request = [&](u32 now) {
        drives.request(now, 0, at);
#if HAS_SPANS
        spans.request(now, 0, at);
#endif
        if (RING) end_copies();
    };
    auto take = [&](u32 now) {  // what step `now` adds inside σ
        if (RING) arrived<FAR - 2>();
        drives.take(x, now, 0, at);
#if HAS_SPANS
        spans.take(next_step, now, 0, at);
#endif
    };
    auto unpack = [&](Values& value) {
#if FUSED_INPUT
        EACH(tile, j, e) value[tile][j][e] = input[tile][e] * x(j) + offset[tile][e];
#else
        EACH(tile, j, e) value[tile][j][e] = x(tile, j, e);
#endif
    };
    auto write_back = [&](int i, int group, bool exists) {  // of the step to whose tape `tape` points
        if (SAVE) store(tape + (i + 1) * plane, p.N, s, at, group, exists);
        if (SAVE && i + 1 < STAGES) store(tape + (STAGES + i + 1) * plane, p.N, stage, at, group, exists);
        if (KEEP && i + 1 == STAGES) store(tape, p.N, h, at, group, exists);
    };
    if (RING)
        for (int ahead = FAR - 1; ahead > 0; ahead--) request((u32)-ahead);
    take(0), unpack(given), step = next_step;
    for (u32 first = 0; first < p.T; first += AT_ONCE)
        UNROLLED(more, AT_ONCE) {
            const u32 t = first + more;
            if (t >= p.T) break;
            if (CLUSTER > 1) request(t), take(t + 1);
            UNROLLED(i, STAGES) UNROLLED(group, GROUPS) {
                const u32 phase = t * STAGES + i, turn = (AT_ONCE == 2 ? more : t) * STAGES + i;
                u32 source = exchange.receive(phase, turn, group);
                Values linear, z;
                matrices.of(linear, z, source, exchange, at, group, [&]() {
                    if (CLUSTER > 1) return;
                    if (i == 0) write_back(STAGES - 1, 0, t > 0), tape += step_plane;
                    else write_back(i - 1, 0, true);
                    if (i == 0) request(t), take(t + 1), unpack(next_given);
                });
                EACH_OF(group, tile, j, e) {
                    float& value = s[tile][j][e];
                    value = sigma(z[tile][j][e] + given[tile][j][e]);
                    float slope = linear[tile][j][e] + value, &sum = total[tile][j][e];
                    sum = i == 0 ? slope * stage_weights[0] : sum + slope * stage_weights[i];
                    float& next = stage[tile][j][e];
                    if (i + 1 < STAGES)
                        next = h[tile][j][e] + step.value[j] * coefficients[(i + 1) % STAGES] * slope;
                    else
                        next = h[tile][j][e] = h[tile][j][e] + step.value[j] * sum;
                    if (!(e ? at.second[tile] : at.first[tile])) next = 0.0f;  // what does not exist stays finite
                }
                if (CLUSTER == 1 || i + 1 < STAGES || t + 1 < p.T) exchange.publish(turn + 1, stage, at, 0, group);
#if CLUSTER > 1  // What follows may take as long as the others.
                if (threadIdx.x == 0) exchange.expect_all(turn, group);
                write_back(i, group, true);
#endif
            }
            if (CLUSTER > 1) tape += step_plane, unpack(next_given);
            EACH(tile, j, e) given[tile][j][e] = next_given[tile][j][e];
            step = next_step;
        }
    if (CLUSTER == 1) write_back(STAGES - 1, 0, p.T > 0);
    UNROLLED(group, GROUPS) store(p.last + at.network * plane + cell, p.N, h, at, group);
    meet_cluster();  // nobody leaves while somebody may still write to it
}
