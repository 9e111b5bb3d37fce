//! One register of 512 bits for 16 lanes.

// Not `expect`: in test builds the lint does not look.
#[allow(clippy::wildcard_imports, reason = "intrinsics carry their prefix")]
use std::arch::x86_64::*;

use super::{Isa, Kernel};

/// AVX-512 with F, BW, DQ, VL, VNNI and BF16, which this machine has.
#[derive(Clone, Copy, Debug)]
pub struct Avx512(());

impl Avx512 {
    /// The instruction set, if this machine has it.
    #[must_use]
    #[inline]
    pub fn detect() -> Option<Self> {
        let found = is_x86_feature_detected!("avx512f")
            && is_x86_feature_detected!("avx512bw")
            && is_x86_feature_detected!("avx512dq")
            && is_x86_feature_detected!("avx512vl")
            && is_x86_feature_detected!("avx512vnni")
            && is_x86_feature_detected!("avx512bf16")
            && super::Avx2::detect().is_some();
        found.then_some(Self(()))
    }
}

#[target_feature(
    enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512bf16,avx2,fma,f16c,bmi2"
)]
unsafe fn enabled<K: Kernel>(isa: Avx512, kernel: K) -> K::Output {
    kernel.run(isa)
}

/// Operations that are one expression: its instructions are there, because an `Avx512` exists.
macro_rules! operations {
    ($($name:ident($($argument:ident: $kind:ty),*) -> $result:ty { $value:expr })*) => {
        $(#[inline(always)]
        fn $name(self, $($argument: $kind),*) -> $result {
            // SAFETY: `self` proves that the machine has these instructions.
            unsafe { $value }
        })*
    };
}

/// The same for those that read or write at an address.
macro_rules! memory_operations {
    ($($name:ident($($argument:ident: $kind:ty),*) $(-> $result:ty)? { $value:expr })*) => {
        $(#[inline(always)]
        unsafe fn $name(self, $($argument: $kind),*) $(-> $result)? {
            // SAFETY: as the trait demands of the caller; `self` proves that the instructions are there.
            unsafe { $value }
        })*
    };
}

/// Bits 16..32 after rounding to the nearest bfloat16, in the low half of each lane; NaN stays NaN.
#[inline(always)]
unsafe fn bf16_bits(value: __m512) -> __m512i {
    // SAFETY: called by operations of `Avx512` only.
    unsafe {
        let bits = _mm512_castps_si512(value);
        let odd = _mm512_and_si512(_mm512_srli_epi32::<16>(bits), _mm512_set1_epi32(1));
        let rounded = _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
        let quiet = _mm512_or_si512(bits, _mm512_set1_epi32(0x0040_0000));
        let nan = _mm512_cmp_ps_mask::<_CMP_UNORD_Q>(value, value);
        _mm512_srli_epi32::<16>(_mm512_mask_blend_epi32(nan, rounded, quiet))
    }
}

/// Lanes 0..8 and 8..16 folded into one register by `f`, and so on to one lane.
macro_rules! folded {
    ($value:expr, $f256:ident, $f128:ident, $f1:ident) => {{
        let value = $value;
        let low = _mm512_castps512_ps256(value);
        let high = _mm512_extractf32x8_ps::<1>(value);
        super::avx2::folded_256!($f256(low, high), $f128, $f1)
    }};
}

impl Isa for Avx512 {
    type F = __m512;
    type I = __m512i;
    type P = __m512i;
    type B = __m512i;
    type O = __m512i;
    type S = __m512i;
    type M = __mmask16;

    const NAME: &'static str = "avx512";
    const REGISTERS: usize = 32;
    const HAS_BF16_DOT: bool = true;
    const SMALL_LIMIT: usize = i32::MAX as usize;

    #[inline]
    fn vectorize<K: Kernel>(self, kernel: K) -> K::Output {
        // SAFETY: `self` proves that the machine has these instructions.
        unsafe { enabled(self, kernel) }
    }

    operations! {
        splat(value: f32) -> __m512 { _mm512_set1_ps(value) }
        add(a: __m512, b: __m512) -> __m512 { _mm512_add_ps(a, b) }
        sub(a: __m512, b: __m512) -> __m512 { _mm512_sub_ps(a, b) }
        mul(a: __m512, b: __m512) -> __m512 { _mm512_mul_ps(a, b) }
        div(a: __m512, b: __m512) -> __m512 { _mm512_div_ps(a, b) }
        fma(a: __m512, b: __m512, c: __m512) -> __m512 { _mm512_fmadd_ps(a, b, c) }
        max(a: __m512, b: __m512) -> __m512 { _mm512_max_ps(a, b) }
        min(a: __m512, b: __m512) -> __m512 { _mm512_min_ps(a, b) }
        sqrt(a: __m512) -> __m512 { _mm512_sqrt_ps(a) }
        abs(a: __m512) -> __m512 { _mm512_abs_ps(a) }
        reduce_add(a: __m512) -> f32 { folded!(a, _mm256_add_ps, _mm_add_ps, _mm_add_ss) }
        reduce_max(a: __m512) -> f32 { folded!(a, _mm256_max_ps, _mm_max_ps, _mm_max_ss) }
        splat_pair(pair: u32) -> __m512i { _mm512_set1_epi32(pair as i32) }
        low(pairs: __m512i) -> __m512 { _mm512_castsi512_ps(_mm512_slli_epi32::<16>(pairs)) }
        high(pairs: __m512i) -> __m512 {
            _mm512_castsi512_ps(_mm512_and_si512(pairs, _mm512_set1_epi32(0xffff_0000_u32 as i32)))
        }
        pack_pairs(low: __m512, high: __m512) -> __m512i {
            _mm512_or_si512(bf16_bits(low), _mm512_slli_epi32::<16>(bf16_bits(high)))
        }
        join_pairs(low: __m512, high: __m512) -> __m512i {
            _mm512_or_si512(_mm512_srli_epi32::<16>(_mm512_castps_si512(low)), _mm512_castps_si512(high))
        }
        dot_bf16(sum: __m512, a: __m512i, b: __m512i) -> __m512 {
            // Integers and pairs of bfloat16 are the same 512 bits.
            _mm512_dpbf16_ps(sum, std::mem::transmute::<__m512i, __m512bh>(a), std::mem::transmute::<__m512i, __m512bh>(b))
        }
        splat_int(value: i32) -> __m512i { _mm512_set1_epi32(value) }
        add_int(a: __m512i, b: __m512i) -> __m512i { _mm512_add_epi32(a, b) }
        as_float(a: __m512i) -> __m512 { _mm512_castsi512_ps(a) }
        as_int(a: __m512) -> __m512i { _mm512_castps_si512(a) }
        to_float(a: __m512i) -> __m512 { _mm512_cvtepi32_ps(a) }
        to_int(a: __m512) -> __m512i { _mm512_cvtps_epi32(a) }
        splat_bytes(four: u32) -> __m512i { _mm512_set1_epi32(four as i32) }
        low_nibbles(bytes: __m512i) -> __m512i { _mm512_and_si512(bytes, _mm512_set1_epi8(15)) }
        high_nibbles(bytes: __m512i) -> __m512i {
            _mm512_and_si512(_mm512_srli_epi16::<4>(bytes), _mm512_set1_epi8(15))
        }
        add_where(bytes: __m512i, bits: u64, value: u8) -> __m512i {
            _mm512_mask_add_epi8(bytes, bits, bytes, _mm512_set1_epi8(value as i8))
        }
        dot_bytes(sum: __m512i, a: __m512i, b: __m512i) -> __m512i { _mm512_dpbusd_epi32(sum, a, b) }
        offset_start(minus_sum: __m512i) -> __m512i { _mm512_slli_epi32::<7>(minus_sum) }
        dot_offset(sum: __m512i, a: __m512i, b: __m512i) -> __m512i { _mm512_dpbusd_epi32(sum, a, b) }
        dot_small(sum: __m512i, a: __m512i, b: __m512i) -> __m512i { _mm512_dpbusd_epi32(sum, a, b) }
        greater(a: __m512, b: __m512) -> __mmask16 { _mm512_cmp_ps_mask::<_CMP_GT_OQ>(a, b) }
        is_nan(a: __m512) -> __mmask16 { _mm512_cmp_ps_mask::<_CMP_UNORD_Q>(a, a) }
        select(mask: __mmask16, a: __m512, b: __m512) -> __m512 { _mm512_mask_blend_ps(mask, b, a) }
        select_int(mask: __mmask16, a: __m512i, b: __m512i) -> __m512i { _mm512_mask_blend_epi32(mask, b, a) }
        prefetch(address: *const u8) -> () { _mm_prefetch::<_MM_HINT_T0>(address.cast()) }
        prefetch_second(address: *const u8) -> () { _mm_prefetch::<_MM_HINT_T1>(address.cast()) }
    }

    memory_operations! {
        load(from: *const f32) -> __m512 { _mm512_loadu_ps(from) }
        store(to: *mut f32, value: __m512) { _mm512_storeu_ps(to, value) }
        load_bf16(from: *const u16) -> __m512 {
            _mm512_castsi512_ps(_mm512_slli_epi32::<16>(_mm512_cvtepu16_epi32(_mm256_loadu_si256(from.cast()))))
        }
        store_bf16(to: *mut u16, value: __m512) {
            _mm256_storeu_si256(to.cast(), _mm512_cvtepi32_epi16(bf16_bits(value)))
        }
        load_f16(from: *const u16) -> __m512 { _mm512_cvtph_ps(_mm256_loadu_si256(from.cast())) }
        store_f16(to: *mut u16, value: __m512) {
            _mm256_storeu_si256(to.cast(), _mm512_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(value))
        }
        load_pairs(from: *const u16) -> __m512i { _mm512_loadu_si512(from.cast()) }
        store_pairs(to: *mut u16, value: __m512i) { _mm512_storeu_si512(to.cast(), value) }
        load_int(from: *const i32) -> __m512i { _mm512_loadu_si512(from.cast()) }
        store_int(to: *mut i32, value: __m512i) { _mm512_storeu_si512(to.cast(), value) }
        store_i8(to: *mut i8, value: __m512i) { _mm_storeu_si128(to.cast(), _mm512_cvtepi32_epi8(value)) }
        load_i8(from: *const i8) -> __m512i { _mm512_cvtepi8_epi32(_mm_loadu_si128(from.cast())) }
        load_bytes(from: *const u8) -> __m512i { _mm512_loadu_si512(from.cast()) }
        store_bytes(to: *mut u8, bytes: __m512i) { _mm512_storeu_si512(to.cast(), bytes) }
    }

    #[inline(always)]
    fn shift_left<const BITS: u32>(self, a: __m512i) -> __m512i {
        // SAFETY: `self` proves that the machine has these instructions.
        unsafe { _mm512_slli_epi32::<BITS>(a) }
    }

    #[inline(always)]
    fn offset_bytes(self, bytes: __m512i) -> __m512i {
        bytes
    }

    #[inline(always)]
    fn small_start(self, start: __m512i) -> __m512i {
        start
    }

    #[inline(always)]
    fn widen(self, _start: __m512i, small: __m512i) -> __m512i {
        small
    }

    #[inline(always)]
    fn first(self, count: usize) -> __mmask16 {
        ((1_u32 << count.min(16)) - 1) as __mmask16
    }

    #[inline(always)]
    fn any(self, mask: __mmask16) -> bool {
        mask != 0
    }
}
