// The instructions that C++ has no words for: numbers of 16 bits, the tensor cores, shared memory, the barriers of a
// cluster, and what a warp's lanes do together. All assembly is in this file and in access.cuh.

#define SHARED_MEMORY(name) extern __shared__ __align__(128) unsigned char name[]

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

__device__ __forceinline__ float quick_tanh(float z) {  // to 11 bits
    float s;
    asm("tanh.approx.f32 %0, %1;" : "=f"(s) : "f"(z));
    return s;
}

__device__ __forceinline__ void load_right(u32 (&b)[4], u32 address) {  // two tiles of 16 units by 8 samples
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(b[0]), "=r"(b[1]), "=r"(b[2]), "=r"(b[3]) : "r"(address) : "memory");
}

__device__ __forceinline__ void multiply(float (&c)[4], const u32 (&a)[4], u32 b0, u32 b1) {
#if OPERAND == 0
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
#else
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
#endif
        "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// Keeps an address in its register: the compiler would compute it again in every step.
__device__ __forceinline__ void keep(u32& address) { asm volatile("" : "+r"(address)); }

__device__ __forceinline__ void write_word(u32 address, u32 word) {  // to shared memory
    asm volatile("st.shared.b32 [%0], %1;" :: "r"(address), "r"(word) : "memory");
}

__device__ __forceinline__ u32 read_word(u32 address) {
    u32 word;
    asm volatile("ld.shared.b32 %0, [%1];" : "=r"(word) : "r"(address) : "memory");
    return word;
}

#if CLUSTER > 1
__device__ __forceinline__ u32 address_in(u32 address, u32 rank) {  // the same place in another block of the cluster
    u32 there;
    asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(address), "r"(rank));
    return there;
}

__device__ __forceinline__ void meet_cluster() {
    asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::: "memory");
}

// A barrier of this block, for one arrival and the bytes that it expects.
__device__ __forceinline__ void start_barrier(u32 barrier) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" :: "r"(barrier) : "memory");
}

__device__ __forceinline__ void barriers_started() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }

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
    asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.b32 [%0], {%1, %2, %3, %4}, [%5];"
                 :: "r"(place), "r"(a), "r"(b), "r"(c), "r"(d), "r"(barrier) : "memory");
}

__device__ __forceinline__ void meet_pair(u32 pair) {  // of warps
    asm volatile("bar.sync %0, 64;" :: "r"(1 + pair) : "memory");
}
#else
__device__ __forceinline__ void meet_cluster() {}
#endif

__device__ __forceinline__ void fetch(const void* address) {
    asm volatile("prefetch.global.L2 [%0];" :: "l"(address));
}

// A copy to shared memory of 4 or 8 bytes that nobody waits for before `arrived`; zeros where nothing exists.
template <int BYTES>
__device__ __forceinline__ void copy(u32 shared, const void* global, bool exists) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;"
                 :: "r"(shared), "l"(global), "n"(BYTES), "r"(exists ? BYTES : 0) : "memory");
}

__device__ __forceinline__ void end_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }

template <int LATER>
__device__ __forceinline__ void arrived() {  // all but the last LATER groups of copies
    asm volatile("cp.async.wait_group %0;" :: "n"(LATER) : "memory");
}

// One of two values by a lane's number. In C++ the compiler makes two branches of it, and a warp that exchanges values
// among its lanes goes through both of them slowly.
__device__ __forceinline__ u32 select(u32 condition, u32 yes, u32 no) {
    u32 value;
    asm("{.reg .pred p; setp.ne.u32 p, %1, 0; selp.b32 %0, %2, %3, p;}"
        : "=r"(value) : "r"(condition), "r"(yes), "r"(no));
    return value;
}

__device__ __forceinline__ float select(u32 condition, float yes, float no) {
    float value;
    asm("{.reg .pred p; setp.ne.u32 p, %1, 0; selp.f32 %0, %2, %3, p;}"
        : "=f"(value) : "r"(condition), "f"(yes), "f"(no));
    return value;
}
