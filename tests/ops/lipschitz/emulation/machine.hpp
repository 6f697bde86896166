// A multiprocessor's threads on a CPU: the blocks of one cluster, as fibers that take turns in a random order.
//
// What a GPU may do late happens late here, and in a random order too: stores to other blocks and copies to shared
// memory. What a GPU does not check is checked: the borders and the alignment of memory, barriers, and threads that wait
// for ever. The first fault ends the launch.

#include <immintrin.h>
#include <setjmp.h>
#include <ucontext.h>

#include <cmath>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <random>
#include <vector>

typedef unsigned int u32;
typedef unsigned short u16;

struct Index {
    unsigned x;
};

struct Barrier {  // of the kind that counts bytes; for one arrival
    bool started = false;
    int missing = 1;
    long bytes = 0;
    unsigned phase = 0;
};

struct Block {
    std::vector<unsigned char> memory;  // shared memory, with room to align it
    unsigned char* start;
    unsigned size;
    std::map<unsigned, Barrier> barriers;
    std::map<int, long> arrived;  // at each of the numbered barriers, ever
};

struct Warp {
    unsigned given[2][32][8];  // what lanes exchange, for two exchanges in turn
    unsigned long turn[32] = {};
};

struct Copy {
    unsigned to;
    const void* from;
    unsigned bytes;
    bool exists;
};

struct Thread {
    ucontext_t context;  // where it begins
    jmp_buf place;       // and where it waits
    bool started = false, done = false;
    std::vector<char> stack;
    Block* block;
    Warp* warp;
    Index thread, group;
    unsigned long turn = 0;
    std::map<int, long> arrived;
    std::deque<std::vector<Copy>> copies = std::deque<std::vector<Copy>>(1);
};

struct Store {
    unsigned to, barrier;
    unsigned words[4];
};

struct Range {  // of memory that a kernel may use
    const char *begin, *end;
};

struct Machine {
    std::vector<std::unique_ptr<Block>> blocks;
    std::vector<std::unique_ptr<Warp>> warps;
    std::vector<std::unique_ptr<Thread>> threads;
    std::vector<Store> stores;  // on their way
    std::vector<Range> ranges;
    std::mt19937 random;
    Thread* current = nullptr;
    jmp_buf scheduler;
    char fault[200] = "";
    long events = 0, met = 0;

    unsigned below(unsigned n) { return random() % n; }
};

static Machine* machine;
static void (*entry)();

// With jumps once a thread runs: to swap contexts takes two calls of the system each time.
static void pause_thread() {
    if (_setjmp(machine->current->place) == 0) _longjmp(machine->scheduler, 1);
}

static void resume(Thread& thread) {
    if (thread.done || _setjmp(machine->scheduler) != 0) return;
    machine->current = &thread;
    if (thread.started) _longjmp(thread.place, 1);
    thread.started = true;
    setcontext(&thread.context);
}

static void fail(const char* format, ...) {
    if (!machine->fault[0]) {
        va_list values;
        va_start(values, format);
        vsnprintf(machine->fault, sizeof machine->fault, format, values);
        va_end(values);
    }
    for (;;) pause_thread();
}

template <typename Condition>
static void wait_until(Condition holds) {
    while (!holds()) pause_thread();
    machine->events++;
}

// All that come to a barrier `number` of a block, `expected` of them in each round.
static void meet(int number, long expected) {
    Thread* self = machine->current;
    long& arrived = self->block->arrived[number];
    long rounds = ++self->arrived[number];
    arrived++;
    wait_until([&] { return arrived >= expected * rounds; });
}

// What every lane of the warp gives; all of them come here, in the same order.
static unsigned (*exchange_among_lanes(const unsigned* values, int count))[8] {
    Warp* warp = machine->current->warp;
    unsigned lane = machine->current->thread.x % 32;
    unsigned long turn = ++machine->current->turn;
    memcpy(warp->given[turn % 2][lane], values, 4 * count);
    warp->turn[lane] = turn;
    wait_until([&] {
        for (unsigned long other : warp->turn)
            if (other < turn) return false;
        return true;
    });
    return warp->given[turn % 2];
}

// Addresses of shared memory: a block of the cluster in the upper byte, and a place in its memory.
static unsigned char* shared(unsigned address, unsigned bytes) {
    unsigned number = address >> 24, place = address & 0xffffff;
    if (number >= machine->blocks.size()) fail("block %u of a smaller cluster", number);
    Block& block = *machine->blocks[number];
    if (place + bytes > block.size || place % bytes) fail("%u bytes at %u of %u bytes of shared memory", bytes, place, block.size);
    return block.start + place;
}

static Barrier& barrier_at(unsigned address) {
    shared(address, 8);
    Barrier& barrier = machine->blocks[address >> 24]->barriers[address & 0xffffff];
    if (!barrier.started) fail("there is no barrier at %u", address & 0xffffff);
    return barrier;
}

static void settle(Barrier& barrier) {
    if (barrier.missing < 0) fail("more arrivals than a barrier expects");
    if (barrier.missing == 0 && barrier.bytes == 0) barrier.phase ^= 1, barrier.missing = 1;
}

static void check_global(const void* place, unsigned bytes) {
    const char* begin = (const char*)place;
    for (const Range& range : machine->ranges)
        if (begin >= range.begin && begin + bytes <= range.end) {
            if ((size_t)place % bytes) fail("%u bytes of a tensor at an address that is not a multiple", bytes);
            return;
        }
    fail("%u bytes outside of all tensors", bytes);
}

static void perform(const Copy& copy) {
    unsigned char* to = shared(copy.to, copy.bytes);
    if (!copy.exists) {
        memset(to, 0, copy.bytes);
        return;
    }
    check_global(copy.from, copy.bytes);
    memcpy(to, copy.from, copy.bytes);
}

static void deliver_one() {
    size_t chosen = machine->below(machine->stores.size());
    Store store = machine->stores[chosen];
    machine->stores[chosen] = machine->stores.back();
    machine->stores.pop_back();
    memcpy(shared(store.to, 16), store.words, 16);
    Barrier& barrier = barrier_at(store.barrier);
    barrier.bytes -= 16;
    settle(barrier);
    machine->events++;
}

static void run_thread() {
    entry();
    machine->current->done = true;
    machine->events++;
    for (;;) pause_thread();
}

// One cluster, until all of its threads are through.
static void run_cluster(unsigned number, unsigned cluster, unsigned threads, unsigned shared_bytes) {
    machine->blocks.clear(), machine->warps.clear(), machine->threads.clear(), machine->stores.clear();
    machine->met = 0;
    for (unsigned b = 0; b < cluster; b++) {
        auto block = std::make_unique<Block>();
        block->memory.assign(shared_bytes + 128, 0xff);  // NaN
        block->start = block->memory.data() + (128 - (size_t)block->memory.data() % 128);
        block->size = shared_bytes;
        for (unsigned t = 0; t < threads; t++) {
            if (t % 32 == 0) machine->warps.push_back(std::make_unique<Warp>());
            auto thread = std::make_unique<Thread>();
            thread->block = block.get(), thread->warp = machine->warps.back().get();
            thread->thread = {t}, thread->group = {number * cluster + b};
            thread->stack.resize(1 << 17);
            getcontext(&thread->context);
            thread->context.uc_stack.ss_sp = thread->stack.data();
            thread->context.uc_stack.ss_size = thread->stack.size();
            makecontext(&thread->context, run_thread, 0);
            machine->threads.push_back(std::move(thread));
        }
        machine->blocks.push_back(std::move(block));
    }
    size_t warps = machine->threads.size() / 32, idle = 0;
    for (bool left = true; left && !machine->fault[0];) {
        long before = machine->events;
        for (unsigned k = machine->below(8 * warps) + 1; k > 0; k--) {
            size_t warp = machine->below(warps);
            for (size_t lane = 0; lane < 32 && !machine->fault[0]; lane++) resume(*machine->threads[32 * warp + lane]);
        }
        for (unsigned k = machine->below(machine->stores.size() + 1); k > 0 && !machine->fault[0]; k--) deliver_one();
        idle = machine->events == before ? idle + 1 : 0;
        if (idle > 1000) snprintf(machine->fault, sizeof machine->fault, "all threads wait for ever");
        left = false;
        for (const auto& thread : machine->threads) left = left || !thread->done;
    }
    if (!machine->fault[0] && !machine->stores.empty())
        snprintf(machine->fault, sizeof machine->fault, "a block has left before what was sent to it arrived");
}

// All clusters of a launch, one after another; the first fault, or nothing.
static const char* run_launch(
    void (*kernel)(), unsigned groups, unsigned cluster, unsigned threads, unsigned shared_bytes, unsigned seed,
    const Range* ranges, unsigned count) {
    static char fault[200];
    machine = new Machine;
    machine->random.seed(seed);
    machine->ranges.assign(ranges, ranges + count);
    entry = kernel;
    for (unsigned g = 0; g < groups && !machine->fault[0]; g++) run_cluster(g, cluster, threads, shared_bytes);
    memcpy(fault, machine->fault, sizeof fault);
    delete machine;
    return fault;
}

// CUDA's words.
#define __device__
#define __forceinline__ inline
#define __global__
#define __grid_constant__
#define __launch_bounds__(...)
#define __cluster_dims__(...)
#define threadIdx (machine->current->thread)
#define blockIdx (machine->current->group)
#define SHARED_MEMORY(name) unsigned char* name = machine->current->block->start
