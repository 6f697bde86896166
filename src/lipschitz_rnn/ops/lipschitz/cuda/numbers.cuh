// Numbers as tensors hold them, and σ.

__device__ __forceinline__ float to_float(element value) {
#if MEMORY == 2
    return value;
#else
    return low_of(value);
#endif
}

__device__ __forceinline__ element to_element(float value) {
#if MEMORY == 2
    return value;
#else
    return (element)pack(value, 0.0f);
#endif
}

__device__ __forceinline__ float tanh_of(float z) {
#if PARTS == 1 && OPERAND == 0
    return quick_tanh(z);
#elif PARTS == 2
    return 1.0f - __fdividef(2.0f, 1.0f + __expf(2.0f * z));
#else
    // An odd minimax fit near zero, where the quotient below cancels.
    float q = z * z;
    float series = 2.10716722e-02f - 6.27423064e-03f * q;
    series = -5.38523081e-02f + series * q;
    series = 1.33325861e-01f + series * q;
    series = -3.33333176e-01f + series * q;
    float decay = __expf(-2.0f * fabsf(z));
    float large = copysignf(__fdividef(1.0f - decay, 1.0f + decay), z);
    return fabsf(z) < 0.55f ? z + z * q * series : large;
#endif
}

__device__ __forceinline__ float sigma(float z) {
#if NONLINEARITY == 0
    return tanh_of(z);
#elif NONLINEARITY == 1
    float decay = __expf(-fabsf(z));
    return (z < 0.0f ? decay : 1.0f) / (1.0f + decay);
#elif NONLINEARITY == 2
    return z > 0.0f ? z : (z == z ? 0.0f : z);  // NaN stays NaN
#else
    return z;
#endif
}

__device__ __forceinline__ float sigma_slope(float s) {  // σ′(z) from s = σ(z)
#if NONLINEARITY == 0
    return 1.0f - s * s;
#elif NONLINEARITY == 1
    return s * (1.0f - s);
#elif NONLINEARITY == 2
    return s > 0.0f ? 1.0f : 0.0f;
#else
    return 1.0f;
#endif
}
