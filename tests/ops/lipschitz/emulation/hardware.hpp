// What hardware.cuh and access.cuh say in assembly, on the machine of machine.hpp.

struct float2 {
    float x, y;
};

inline float2 make_float2(float x, float y) { return {x, y}; }

inline float __uint_as_float(u32 bits) {
    float value;
    memcpy(&value, &bits, 4);
    return value;
}

inline u32 bits_of(float value) {
    u32 bits;
    memcpy(&bits, &value, 4);
    return bits;
}

inline float __expf(float x) { return expf(x); }
inline float __fdividef(float x, float y) { return x / y; }
inline float quick_tanh(float z) { return tanhf(z); }

#if OPERAND == 0
inline u32 rounded(float value) {  // to bfloat16
    u32 bits = bits_of(value);
    return value != value ? 0x7fff : (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
}
inline float widened(u32 half) { return __uint_as_float(half << 16); }
#else
inline u32 rounded(float value) { return (u16)_cvtss_sh(value, 0); }
inline float widened(u32 half) { return _cvtsh_ss((u16)half); }
#endif

inline u32 pack(float low, float high) { return rounded(low) | rounded(high) << 16; }
inline float low_of(u32 both) { return widened(both & 0xffff); }
inline float high_of(u32 both) { return widened(both >> 16); }

inline u32 __cvta_generic_to_shared(const void* place) {
    u32 number = 0;
    while (machine->blocks[number].get() != machine->current->block) number++;
    return (number << 24) + (u32)((const unsigned char*)place - machine->current->block->start);
}

inline u32 __shfl_xor_sync(u32, u32 value, int lanes) {
    return exchange_among_lanes(&value, 1)[(threadIdx.x % 32) ^ lanes][0];
}

inline float __shfl_xor_sync(u32 all, float value, int lanes) {
    return __uint_as_float(__shfl_xor_sync(all, bits_of(value), lanes));
}

// Eight lanes give the rows of each of four 8 × 8 matrices; a lane receives two neighbouring numbers of each.
inline void load_right(u32 (&b)[4], u32 address) {
    auto given = exchange_among_lanes(&address, 1);
    u32 lane = threadIdx.x % 32;
    for (int matrix = 0; matrix < 4; matrix++)
        memcpy(&b[matrix], shared(given[8 * matrix + lane / 4][0], 16) + 4 * (lane % 4), 4);
    exchange_among_lanes(&address, 0);  // nobody goes on, and writes there, before all have read
}

// c (16 × 8) += a (16 × 16) b (16 × 8), in the places that PTX gives m16n8k16 for the lanes of a warp.
inline void multiply(float (&c)[4], const u32 (&a)[4], u32 b0, u32 b1) {
    u32 own[6] = {a[0], a[1], a[2], a[3], b0, b1};
    auto given = exchange_among_lanes(own, 6);
    u32 g = threadIdx.x % 32 / 4, q = threadIdx.x % 4;
    for (int lower = 0; lower < 2; lower++)  // rows g and g + 8
        for (int next = 0; next < 2; next++) {  // columns 2q and 2q + 1
            double sum = c[2 * lower + next];
            for (int lane = 0; lane < 4; lane++)
                for (int half = 0; half < 2; half++) {
                    u32 left = given[4 * g + lane][lower + 2 * half], right = given[4 * (2 * q + next) + lane][4 + half];
                    sum += (double)low_of(left) * low_of(right) + (double)high_of(left) * high_of(right);
                }
            c[2 * lower + next] = (float)sum;
        }
}

inline void keep(u32&) {}
inline void write_word(u32 address, u32 word) { memcpy(shared(address, 4), &word, 4); }

inline u32 read_word(u32 address) {
    u32 word;
    memcpy(&word, shared(address, 4), 4);
    return word;
}

inline void __syncthreads() { meet(0, THREADS); }

#if CLUSTER > 1
inline u32 address_in(u32 address, u32 rank) { return (address & 0xffffff) | rank << 24; }

inline void meet_cluster() {
    long rounds = ++machine->current->arrived[-1];
    machine->met++;
    wait_until([&] { return machine->met >= (long)machine->threads.size() * rounds; });
}

inline void start_barrier(u32 address) {
    shared(address, 8);
    Barrier& barrier = machine->blocks[address >> 24]->barriers[address & 0xffffff];
    if (barrier.started) fail("a barrier is started twice");
    barrier.started = true;
}

inline void barriers_started() {}

inline void expect(u32 address, u32 bytes) {
    Barrier& barrier = barrier_at(address);
    barrier.bytes += bytes, barrier.missing--;
    settle(barrier);
}

inline void wait_for(u32 address, u32 parity) {
    wait_until([&] { return barrier_at(address).phase != parity; });
}

inline void send(u32 place, u32 barrier, u32 a, u32 b, u32 c, u32 d) {
    shared(place, 16), barrier_at(barrier);
    if (place >> 24 != barrier >> 24) fail("a store to one block and the barrier of another");
    machine->stores.push_back({place, barrier, {a, b, c, d}});
    if (machine->below(4) == 0) pause_thread();
}

inline void meet_pair(u32 pair) {
    if (pair >= 15) fail("a multiprocessor has sixteen barriers");
    meet(1 + pair, 64);
}
#else
inline void meet_cluster() {}
#endif

inline void fetch(const void* address) {}  // into the cache: any address is allowed

template <int BYTES>
inline void copy(u32 to, const void* from, bool exists) {
    machine->current->copies.back().push_back({to, from, BYTES, exists});
}

inline void end_copies() { machine->current->copies.emplace_back(); }

template <int LATER>
inline void arrived() {  // as late as this allows
    auto& groups = machine->current->copies;
    for (; groups.size() > LATER + 1; groups.pop_front())
        for (const Copy& each : groups.front()) perform(each);
}

inline u32 select(u32 condition, u32 yes, u32 no) { return condition ? yes : no; }
inline float select(u32 condition, float yes, float no) { return condition ? yes : no; }

template <typename Number>
inline void read_global(void* value, const Number* place, int count) {
    check_global(place, count * sizeof(Number));
    memcpy(value, place, count * sizeof(Number));
}

inline void load_if(bool exists, u32& value, const u16* place) {
    if (exists) value = 0, read_global(&value, place, 1);
}

inline void load_if(bool exists, float& value, const float* place) {
    if (exists) read_global(&value, place, 1);
}

inline void load_pair_if(bool exists, u32& both, const u16* place) {
    if (exists) read_global(&both, place, 2);
}

inline void load_pair_if(bool exists, float& low, float& high, const float* place) {
    float both[2];
    if (exists) read_global(both, place, 2), low = both[0], high = both[1];
}

template <typename Number>
inline void write_global(Number* place, const void* value, int count) {
    check_global(place, count * sizeof(Number));
    memcpy(place, value, count * sizeof(Number));
}

inline void store_if(bool exists, u16* place, u16 value) {
    if (exists) write_global(place, &value, 1);
}

inline void store_if(bool exists, float* place, float value) {
    if (exists) write_global(place, &value, 1);
}

inline void store_pair_if(bool exists, u16* place, float low, float high) {
    u32 both = pack(low, high);
    if (exists) write_global(place, &both, 2);
}

inline void store_pair_if(bool exists, float* place, float low, float high) {
    float both[2] = {low, high};
    if (exists) write_global(place, both, 2);
}
