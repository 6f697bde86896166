// The adjoint of all steps, from the last to the first.

struct BackwardArguments {
    const u16* weights;  // (S, PARTS, PADDED, 2·PADDED): rows of αAᵀ and Wᵀ side by side
    const float* spans;
    const element* tape;  // (S, T, 2·STAGES, B, N)
    const element* grad_states;  // or null
    const element* grad_last;  // (S, B, N), or null
    const element* x;  // inputs of one feature, or null
    element* kappa_d;  // (S, STAGES, T, B, 2 width)
    element* grad_h0;  // (S, B, N)
    float* input_sums;  // (S, tiles, 2, N)
    i64 grads_s, grads_t, grads_b, grads_n, spans_s, spans_t, spans_b, x_s, x_t, x_b;
    u32 T, B, N, tiles, width;  // width: from a row of κ to that of d; at least N
    float step_size;
};

extern "C" __global__ void LAUNCHED backward(const __grid_constant__ BackwardArguments p) {
    SHARED_MEMORY(memory);
    const Place at(p.tiles, p.B, p.N);
    const BackwardProduct matrices(p.weights + at.network * PARTS * 2 * PADDED * PADDED, at,
                                   memory + BARRIERS + 2 * Exchange<2 * PADDED>::bytes);
    Exchange<2 * PADDED> exchange(at, memory);

    u32 free = (u32)__cvta_generic_to_shared(memory) + BARRIERS + 2 * exchange.bytes + BackwardProduct::bytes;
    const i64 plane = (i64)p.B * p.N, cell = (i64)at.sample * p.N + at.unit;
    const i64 end = p.T - 1, double_plane = (i64)p.B * 2 * p.width, double_cell = (i64)at.sample * 2 * p.width + at.unit;
    element* kappa_d = p.kappa_d + (at.network * STAGES * p.T + end) * double_plane;
    // Stages run backwards, too: stage 0 of the supply is the last one.
    Supply<Entries, element, UNITS_RING, STAGES> sigmas(
        p.tape + (at.network * p.T + end) * 2 * STAGES * plane + STAGES * plane + cell, -2 * STAGES * plane, -plane,
        p.N, 1, p.T, free);
    Entries s;
#if GRADS
    Supply<Entries, element, UNITS_RING> grads(
        p.grad_states + at.network * p.grads_s + end * p.grads_t + (i64)at.sample * p.grads_b + (i64)at.unit * p.grads_n,
        -p.grads_t, 0, p.grads_b, p.grads_n, p.T, free);
#endif
    Entries grad;
#if FUSED_INPUT
    Supply<Inputs, element, INPUTS_RING> inputs(
        p.x + at.network * p.x_s + end * p.x_t + (i64)at.sample * p.x_b, -p.x_t, 0, p.x_b, 1, p.T, free);
    Inputs x;
    float grad_U[HEIGHT][2] = {}, grad_b[HEIGHT][2] = {};
#endif
    Spans step(p.step_size);
#if HAS_SPANS
    Supply<Spans, float, RING> spans(p.spans + at.network * p.spans_s + end * p.spans_t + (i64)at.sample * p.spans_b,
                                     -p.spans_t, 0, p.spans_b, 1, p.T, free);
#endif
#if TOGETHER
    const Share share(p.tiles, p.B, p.N, p.width);
#endif
    Values adjoint, total, eta, kappa, d;
    Entries last;
    if (p.grad_last) last.load(p.grad_last + at.network * plane + cell, p.N, 1, at);
    EACH(tile, j, e) adjoint[tile][j][e] = last(tile, j, e);

    auto request = [&](u32 now, int stage) {
        sigmas.request(now, stage, at, stage + 1 == STAGES);
        if (stage == 0) {
#if GRADS
            grads.request(now, 0, at);
#endif
#if FUSED_INPUT
            inputs.request(now, 0, at);
#endif
#if HAS_SPANS
            spans.request(now, 0, at);
#endif
        }
        if (RING) end_copies();
    };
    auto take = [&](u32 now, int stage) {
        if (RING) arrived<(FAR - 1) * STAGES - 1>();
        sigmas.take(s, now, stage, at, stage + 1 == STAGES);
        if (stage > 0) return;
#if GRADS
        grads.take(grad, now, 0, at);
#endif
#if FUSED_INPUT
        inputs.take(x, now, 0, at);
#endif
#if HAS_SPANS
        spans.take(step, now, 0, at);
#endif
    };
    // κ and d of the stage that was taken last. A cluster announces each group as soon as it can, so that its way to the
    // other blocks is hidden by the products of the group after it; a block alone waits for all of its warps anyway.
    auto announce = [&](u32 turn, int stage, int group) {
        const int i = STAGES - 1 - stage;
        EACH_OF(group, tile, j, e) {
            if (stage == 0) {
                total[tile][j][e] = 0.0f;
                if (GRADS) adjoint[tile][j][e] += grad(tile, j, e);
            }
            float& own = kappa[tile][j][e];
            own = adjoint[tile][j][e] * stage_weights[i];
            if (stage > 0) own += eta[tile][j][e] * coefficients[(i + 1) % STAGES];
            own *= step.value[j];
            if (!(e ? at.second[tile] : at.first[tile])) own = 0.0f;
            d[tile][j][e] = own * sigma_slope(s(tile, j, e));
        }
        exchange.publish(turn, kappa, at, 0, group);
        exchange.publish(turn, d, at, PADDED, group);
    };
    if (RING)
        for (int ahead = FAR - 1; ahead > 0; ahead--) UNROLLED(stage, STAGES) request((u32)-ahead, stage);
    take(0, 0);
    if (CLUSTER > 1 && p.T > 0) UNROLLED(group, GROUPS) announce(0, 0, group);
    for (u32 first = 0; first < p.T; first += AT_ONCE)
        UNROLLED(more, AT_ONCE) {
            const u32 back = first + more;  // steps from the end
            if (back >= p.T) break;
            UNROLLED(stage, STAGES) {
                const int later = (stage + 1) % STAGES;
                const u32 next = back + (stage + 1) / STAGES;  // the step of the stage after this
                const u32 phase = back * STAGES + stage, turn = (AT_ONCE == 2 ? more : back) * STAGES + stage;
                element* out = kappa_d + (i64)(STAGES - 1 - stage) * p.T * double_plane;
                auto meanwhile = [&]() {  // what is left to write, and what the next stage reads
#if !TOGETHER
                    UNROLLED(group, GROUPS) {
                        store(out + double_cell, 2 * p.width, kappa, at, group);
                        store(out + double_cell + p.width, 2 * p.width, d, at, group);
                    }
#endif
#if FUSED_INPUT
                    EACH(tile, j, e) grad_U[tile][e] += d[tile][j][e] * x(j), grad_b[tile][e] += d[tile][j][e];
#endif
                    request(back, stage);
                    take(next, later);
                };
                if (CLUSTER > 1) meanwhile();  // while the others send
                else announce(turn, stage, 0);
                UNROLLED(group, GROUPS) {
                    u32 source = exchange.receive(phase, turn, group);
#if TOGETHER
                    u32 place = exchange.shared + BARRIERS + (turn & 1) * exchange.bytes;
                    place += (share.row + 8 * group) * exchange.row_bytes + 4 * share.word;
                    u32 written = read_word(place), written_d = read_word(place + 2 * PADDED);
#endif
                    matrices.of(eta, source, exchange, at, turn, group, [&]() {
                        if (CLUSTER == 1) meanwhile();
#if TOGETHER
                        if (share.exists[group]) {
                            element* row = out + share.place + 16 * group * (i64)p.width;
                            *(u32*)row = written, *(u32*)(row + p.width) = written_d;
                        }
#endif
                    });
#if CLUSTER > 1
                    if (threadIdx.x == 0) exchange.expect_all(turn, group);
#endif
                    EACH_OF(group, tile, j, e) {
                        total[tile][j][e] += eta[tile][j][e];
                        if (later == 0) adjoint[tile][j][e] += total[tile][j][e];
                    }
                    if (CLUSTER > 1 && next < p.T) announce(turn + 1, later, group);
                }
            }
            kappa_d -= double_plane;
        }
#if FUSED_INPUT
    UNROLLED(tile, HEIGHT) UNROLLED(e, 2) {
        float& of_U = grad_U[tile][e], &of_b = grad_b[tile][e];
#pragma unroll
        for (int lanes = 1; lanes < (CLUSTER > 1 ? 8 : 4); lanes *= 2)  // over the samples
            of_U += __shfl_xor_sync(ALL, of_U, lanes), of_b += __shfl_xor_sync(ALL, of_b, lanes);
        if (at.speaks() && (e ? at.second[tile] : at.first[tile])) {
            float* place = p.input_sums + (i64)group() * 2 * p.N + at.unit + 16 * tile + e;
            place[0] = of_U, place[p.N] = of_b;
        }
    }
#endif
    UNROLLED(group, GROUPS) store(p.grad_h0 + at.network * plane + cell, p.N, adjoint, at, group);
    meet_cluster();
}
