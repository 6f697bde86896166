// Reading and writing global memory, under a condition and without a branch.

// Loads that leave a register as it is where nothing exists, and whose result nobody looks at before it is used: a
// selection or a conversion right here would wait for the memory.
__device__ __forceinline__ void load_if(bool exists, u32& value, const u16* place) {
    asm volatile("{.reg .pred p; setp.ne.u32 p, %2, 0; @p ld.global.u16 %0, [%1];}"
                 : "+r"(value) : "l"(place), "r"((u32)exists));
}

__device__ __forceinline__ void load_if(bool exists, float& value, const float* place) {
    asm volatile("{.reg .pred p; setp.ne.u32 p, %2, 0; @p ld.global.f32 %0, [%1];}"
                 : "+f"(value) : "l"(place), "r"((u32)exists));
}

__device__ __forceinline__ void load_pair_if(bool exists, u32& both, const u16* place) {
    asm volatile("{.reg .pred p; setp.ne.u32 p, %2, 0; @p ld.global.b32 %0, [%1];}"
                 : "+r"(both) : "l"(place), "r"((u32)exists));
}

__device__ __forceinline__ void load_pair_if(bool exists, float& low, float& high, const float* place) {
    asm volatile("{.reg .pred p; setp.ne.u32 p, %3, 0; @p ld.global.v2.f32 {%0, %1}, [%2];}"
                 : "+f"(low), "+f"(high) : "l"(place), "r"((u32)exists));
}

// Stores without a branch, which would part what comes before it from what comes after.
__device__ __forceinline__ void store_if(bool exists, u16* place, u16 value) {
    asm volatile("{.reg .pred p; setp.ne.u32 p, %2, 0; @p st.global.u16 [%0], %1;}"
                 :: "l"(place), "h"(value), "r"((u32)exists) : "memory");
}

__device__ __forceinline__ void store_if(bool exists, float* place, float value) {
    asm volatile("{.reg .pred p; setp.ne.u32 p, %2, 0; @p st.global.f32 [%0], %1;}"
                 :: "l"(place), "f"(value), "r"((u32)exists) : "memory");
}

__device__ __forceinline__ void store_pair_if(bool exists, u16* place, float low, float high) {
    asm volatile("{.reg .pred p; setp.ne.u32 p, %2, 0; @p st.global.b32 [%0], %1;}"
                 :: "l"(place), "r"(pack(low, high)), "r"((u32)exists) : "memory");
}

__device__ __forceinline__ void store_pair_if(bool exists, float* place, float low, float high) {
    asm volatile("{.reg .pred p; setp.ne.u32 p, %3, 0; @p st.global.v2.f32 [%0], {%1, %2};}"
                 :: "l"(place), "f"(low), "f"(high), "r"((u32)exists) : "memory");
}
