// The scan for hidden sizes whose matrices need several multiprocessors: a cluster of them for a few samples.
//
// Each warp owns 8 hidden units and keeps what they need of both matrices in registers, as left operands of the tensor
// cores, for all of the sequence. The state of the samples lies in the shared memory of every block of the cluster, as
// the right operand. After each stage a warp sends its part of the new state to all blocks; the stores count the bytes
// that arrived on a barrier of the receiver, so a block goes on as soon as it has the whole state, and nothing else
// waits. Two buffers take turns: whoever sends into a buffer has received what followed it from all warps of the
// cluster, so none of them reads it any more.
//
// Compiled at run time for one shape. Macros:
//   CLUSTER, WARPS   blocks of a cluster, warps of a block (even); PADDED = 8 · CLUSTER · WARPS hidden units
//   SAMPLES          of a cluster: 8 or 16
//   LEAST_BLOCKS     of a multiprocessor at once: what limits the registers
//   PARTS            matrices of 16 bits that add up to one: 1; 2 (three products) or 3 (six)
//   OPERAND          0: bfloat16, 1: float16
//   MEMORY           dtype of tensors: 0: bfloat16, 1: float16, 2: float32
//   PAIRS            whether two neighbouring units are read and written in one access
//   STAGES, COEFFICIENTS, WEIGHTS   the integrator; NONLINEARITY 0: tanh, 1: sigmoid, 2: relu, 3: identity
//   FUSED_INPUT      inputs of one feature, multiplied by U here; HAS_SPANS: a step size for each step and sample

typedef unsigned int u32;
typedef unsigned short u16;
typedef long long i64;

#define PADDED (8 * CLUSTER * WARPS)
#define TILES (PADDED / 16)  // of 16 columns; even
#define GROUPS (SAMPLES / 8)  // of 8 samples, as the tensor cores take them
#define CHAINS (4 / GROUPS)  // of sums, so that the tensor cores need not wait for the previous result
#define FAR 8  // steps by which memory is fetched into the cache ahead of its use
#define BARRIERS 128  // bytes at the start of shared memory
// A warp's 8 units are 16 bytes of a row in half precision, and memory wants more at a time: the backward pass writes
// its block's own units of a row together then, from shared memory, where all warps have sent them.
#define TOGETHER (PAIRS && MEMORY != 2)
#define ALL 0xffffffffu

#if MEMORY == 2
typedef float element;
#else
typedef u16 element;
#endif

constexpr float coefficients[STAGES] = COEFFICIENTS;
constexpr float stage_weights[STAGES] = WEIGHTS;
