// The matrices that a warp keeps in registers, and its products.

// ROWS tiles of 16 rows, DEEP tiles of 16 columns; multiplied by 8 samples at once.
template <int ROWS, int DEEP>
struct Matrix {
    // Sums that are independent of each other, so that the tensor cores need not wait for the previous result.
    static constexpr int chains = ROWS == 1 ? 4 : 2;
    static constexpr int small_chains = PARTS > 1 && CLUSTER == 1 ? 2 : 1;  // sums of the smaller parts are longer
    u32 a[PARTS][ROWS][DEEP][4];

    // From (parts, rows, pitch) in memory, where `upper` and `lower` are this lane's rows of the tile's two halves.
    __device__ __forceinline__ void load(int row, const u16* upper, const u16* lower) {
        u32 column = 2 * (threadIdx.x & 3);
#pragma unroll
        for (int part = 0; part < PARTS; part++)
#pragma unroll
            for (int k = 0; k < DEEP; k++) {
                i64 here = column + (i64)part * 2 * PADDED * PADDED + k * 16;
                u32(&tile)[4] = a[part][row][k];
                tile[0] = *(const u32*)(upper + here), tile[1] = *(const u32*)(lower + here);
                tile[2] = *(const u32*)(upper + here + 8), tile[3] = *(const u32*)(lower + here + 8);
            }
    }

    // sum = this times the columns at `source`, with `part_bytes` of their buffer. `work` is done while the tensor cores
    // are busy.
    template <typename Work>
    __device__ __forceinline__ void times(
        float (&sum)[ROWS][4], u32 source, u32 part_bytes, Work work) const {
        float large[ROWS][chains][4] = {}, small[ROWS][small_chains][4] = {};
#pragma unroll
        for (int k = 0; k < DEEP; k += 2) {
            u32 b[PARTS][4];
#pragma unroll
            for (int part = 0; part < PARTS; part++) load_right(b[part], source + part * part_bytes + k * 32);
#pragma unroll
            for (int tile = 0; tile < 2; tile++)
#pragma unroll
                for (int row = 0; row < ROWS; row++) {
#pragma unroll
                    for (int part = PARTS - 1; part > 0; part--)  // small terms first
#pragma unroll
                        for (int i = 0; i <= part; i++)
                            multiply(small[row][(tile + i) % small_chains], a[part - i][row][k + tile],
                                     b[i][2 * tile], b[i][2 * tile + 1]);
                    multiply(large[row][(k + tile) % chains], a[0][row][k + tile], b[0][2 * tile], b[0][2 * tile + 1]);
                }
        }
        work();
#pragma unroll
        for (int row = 0; row < ROWS; row++)
#pragma unroll
            for (int e = 0; e < 4; e++) {
                float total = large[row][0][e] + large[row][1][e];
                if (chains == 4) total += large[row][2 % chains][e] + large[row][3 % chains][e];
                // The tensor cores cut off what they add, which shrinks a long sum by about 2e-8 for 16 terms.
                if (PARTS == 3) total += total * ((DEEP / chains) * 2e-8f);
                float rest = small[row][0][e];
                if (small_chains == 2) rest += small[row][1 % small_chains][e];
                sum[row][e] = PARTS > 1 ? total + rest : total;
            }
    }
};
