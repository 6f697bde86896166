// The scan with both matrices in registers, for all of the sequence: on one multiprocessor where they fit into its
// registers, else on a cluster of them. Either has a few samples of one network.
//
// Each warp owns some hidden units and keeps what they need of both matrices, as left operands of the tensor cores. The
// state of the samples lies in shared memory as the right operand. After each stage a warp hands its part of the new
// state to all others, as block.cuh or cluster.cuh describe. Two buffers take turns: whoever writes into a buffer has
// received what followed it from all warps, so none of them reads it any more.
//
// Compiled at run time for one shape. Macros:
//   CLUSTER, WARPS   blocks of a cluster (1: a block alone), warps of a block
//   DEPTH            units that a product adds up: all that exist, in whole pairs of tiles of 16; at most PADDED
//   HEIGHT           tiles of 16 hidden units of a warp; in a cluster half a tile, and an even number of warps
//   SAMPLES          of a cluster: 8, 16 or 24; of a block: 8
//   LEAST_BLOCKS     of a multiprocessor at once: what limits the registers
//   FAR              steps by which memory is fetched ahead of its use: into the cache, or into rings; a power of two
//   PARTS            matrices of 16 bits that add up to one: 1; 2 (three products) or 3 (six)
//   OPERAND          0: bfloat16, 1: float16
//   MEMORY           dtype of tensors: 0: bfloat16, 1: float16, 2: float32
//   PAIRS            whether two neighbouring units are read and written in one access
//   INPUT_PAIRS      the same for the inputs of two neighbouring samples
//   WHOLE            whether all PADDED units and all samples of every group exist
//   SAVE, KEEP       whether the forward pass writes what the backward pass needs, and its states
//   GRADS            whether the backward pass is given gradients of all states
//   STAGES, COEFFICIENTS, WEIGHTS   the integrator; NONLINEARITY 0: tanh, 1: sigmoid, 2: relu, 3: identity
//   FUSED_INPUT      inputs of one feature, multiplied by U here; HAS_SPANS: a step size for each step and sample

typedef unsigned int u32;
typedef unsigned short u16;
typedef long long i64;

#if CLUSTER == 1
#define PADDED (16 * HEIGHT * WARPS)  // hidden units
#define OWN 2  // samples of a thread
#define APART 1  // from one of them to the next
#else
#define PADDED (8 * CLUSTER * WARPS)
#define OWN (SAMPLES / 8)
#define APART 8
#endif
#define TILES (DEPTH / 16)  // of 16 columns; even
// A cluster takes its samples in groups of 8: while one group is on its way to the other blocks, the tensor cores work
// on another.
#define GROUPS (CLUSTER > 1 ? OWN : 1)
#define OF_GROUP (OWN / GROUPS)  // samples of a thread in one of them
#define BARRIERS 128  // bytes at the start of shared memory
// A warp's 8 units are 16 bytes of a row in half precision, and memory wants more at a time: the backward pass writes
// its block's own units of a row together then, from shared memory, where all warps have sent them.
#define TOGETHER (CLUSTER > 1 && PAIRS && MEMORY != 2)
#define ALL 0xffffffffu
#define AT_ONCE (CLUSTER == 1 ? 2 : 1)  // steps in the text of the loop; with two it is known whose turn a buffer is
#define THREADS (32 * WARPS)
// A block alone is through a step before memory answers. So what it reads waits in shared memory, in a ring of FAR places
// for each thread's own entries: a register that waits would hold up the warp. `UNITS_RING`: for entries of units.
#define RING (CLUSTER == 1)
#define UNITS_RING (RING && PAIRS)
#define INPUTS_RING (RING && (INPUT_PAIRS || MEMORY == 2))
#if CLUSTER == 1
#define LAUNCHED __launch_bounds__(THREADS, LEAST_BLOCKS)
#else
#define LAUNCHED __cluster_dims__(CLUSTER, 1, 1) __launch_bounds__(THREADS, LEAST_BLOCKS)
#endif
// Over all that a thread owns: two neighbouring units in each tile, for each of its samples.
#define UNROLLED(i, end) _Pragma("unroll") for (int i = 0; i < end; i++)
#define EACH_PAIR(tile, j) UNROLLED(tile, HEIGHT) UNROLLED(j, OWN)
#define EACH(tile, j, e) EACH_PAIR(tile, j) UNROLLED(e, 2)
// The same for the samples of one group.
#define EACH_PAIR_OF(group, tile, j) \
    UNROLLED(tile, HEIGHT) _Pragma("unroll") for (int j = group * OF_GROUP; j < (group + 1) * OF_GROUP; j++)
#define EACH_OF(group, tile, j, e) EACH_PAIR_OF(group, tile, j) UNROLLED(e, 2)

#if MEMORY == 2
typedef float element;
#else
typedef u16 element;
#endif

constexpr float coefficients[STAGES] = COEFFICIENTS;
constexpr float stage_weights[STAGES] = WEIGHTS;

typedef float Values[HEIGHT][OWN][2];  // of a thread: two neighbouring units of each tile, for its samples

__device__ __forceinline__ u32 rank() { return blockIdx.x % CLUSTER; }  // of a block in its cluster
__device__ __forceinline__ u32 group() { return blockIdx.x / CLUSTER; }  // of samples of a network
