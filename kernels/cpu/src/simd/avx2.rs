//! Two registers of 256 bits for 16 lanes.

// Not `expect`: in test builds the lint does not look.
#[allow(clippy::wildcard_imports, reason = "intrinsics carry their prefix")]
use std::arch::x86_64::*;

use super::{Isa, Kernel};

/// AVX2 with FMA and F16C, which this machine has.
#[derive(Clone, Copy, Debug)]
pub struct Avx2(());

impl Avx2 {
    /// The instruction set, if this machine has it.
    #[must_use]
    #[inline]
    pub fn detect() -> Option<Self> {
        let found = is_x86_feature_detected!("avx2")
            && is_x86_feature_detected!("fma")
            && is_x86_feature_detected!("f16c")
            && is_x86_feature_detected!("bmi2");
        found.then_some(Self(()))
    }
}

#[target_feature(enable = "avx2,fma,f16c,bmi2")]
unsafe fn enabled<K: Kernel>(isa: Avx2, kernel: K) -> K::Output {
    kernel.run(isa)
}

/// 16 f32: lanes 0..8 and 8..16.
type Floats = [__m256; 2];
/// 16 i32, 16 pairs or 64 bytes.
type Ints = [__m256i; 2];

/// Operations done alike on both halves: their instructions are there, because an `Avx2` exists.
macro_rules! operations {
    ($($name:ident($($argument:ident: $kind:ty),+) -> $result:ty { $value:expr })*) => {
        $(#[inline(always)]
        fn $name(self, $($argument: $kind),+) -> $result {
            // SAFETY: `self` proves that the machine has these instructions.
            unsafe {
                [
                    { $(let $argument = $argument[0];)+ $value },
                    { $(let $argument = $argument[1];)+ $value },
                ]
            }
        })*
    };
}

/// The same for operations that look at the whole.
macro_rules! whole_operations {
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

/// Eight lanes folded to one.
macro_rules! folded_256 {
    ($value:expr, $f128:ident, $f1:ident) => {{
        let value = $value;
        let four = $f128(
            _mm256_castps256_ps128(value),
            _mm256_extractf128_ps::<1>(value),
        );
        let two = $f128(four, _mm_movehl_ps(four, four));
        _mm_cvtss_f32($f1(two, _mm_shuffle_ps::<1>(two, two)))
    }};
}
pub(super) use folded_256;

/// Bits of the nearest bfloat16 in the low half of each lane; NaN stays NaN.
#[inline(always)]
unsafe fn bf16_bits(value: __m256) -> __m256i {
    // SAFETY: called by operations of `Avx2` only.
    unsafe {
        let bits = _mm256_castps_si256(value);
        let odd = _mm256_and_si256(_mm256_srli_epi32::<16>(bits), _mm256_set1_epi32(1));
        let rounded = _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
        let quiet = _mm256_or_si256(bits, _mm256_set1_epi32(0x0040_0000));
        let nan = _mm256_castps_si256(_mm256_cmp_ps::<_CMP_UNORD_Q>(value, value));
        _mm256_srli_epi32::<16>(_mm256_blendv_epi8(rounded, quiet, nan))
    }
}

/// Zero, with the sign kept, where the magnitude is subnormal.
#[inline(always)]
unsafe fn flushed(value: __m256) -> __m256 {
    // SAFETY: called by operations of `Avx2` only.
    unsafe {
        let sign = _mm256_and_ps(value, _mm256_set1_ps(-0.0));
        let magnitude = _mm256_andnot_ps(_mm256_set1_ps(-0.0), value);
        let small = _mm256_cmp_ps::<_CMP_LT_OQ>(magnitude, _mm256_set1_ps(f32::MIN_POSITIVE));
        _mm256_blendv_ps(value, sign, small)
    }
}

/// Low (`shift` 16) or high halves of pairs, exact.
#[inline(always)]
unsafe fn halves<const HIGH: bool>(pairs: __m256i) -> __m256 {
    // SAFETY: called by operations of `Avx2` only.
    unsafe {
        if HIGH {
            let mask = _mm256_set1_epi32(0xffff_0000_u32 as i32);
            _mm256_castsi256_ps(_mm256_and_si256(pairs, mask))
        } else {
            _mm256_castsi256_ps(_mm256_slli_epi32::<16>(pairs))
        }
    }
}

#[inline(always)]
unsafe fn add_product<const HIGH: bool>(sum: __m256, a: __m256i, b: __m256i) -> __m256 {
    // SAFETY: called by operations of `Avx2` only.
    unsafe {
        let (a, b) = (flushed(halves::<HIGH>(a)), flushed(halves::<HIGH>(b)));
        flushed(_mm256_fmadd_ps(a, b, sum))
    }
}

#[inline(always)]
unsafe fn load_bf16(from: *const u16) -> __m256 {
    // SAFETY: called by operations of `Avx2` only, with 8 values to read.
    unsafe {
        let bits = _mm256_cvtepu16_epi32(_mm_loadu_si128(from.cast()));
        _mm256_castsi256_ps(_mm256_slli_epi32::<16>(bits))
    }
}

/// The four products of each lane are added in pairs of 16-bit products, which cannot overflow.
#[inline(always)]
unsafe fn dot_bytes(sum: __m256i, a: __m256i, b: __m256i) -> __m256i {
    // SAFETY: called by operations of `Avx2` only.
    unsafe {
        let even = _mm256_and_si256(a, _mm256_set1_epi16(0xff));
        let odd = _mm256_srli_epi16::<8>(a);
        let signed_even = _mm256_srai_epi16::<8>(_mm256_slli_epi16::<8>(b));
        let signed_odd = _mm256_srai_epi16::<8>(b);
        let products = _mm256_add_epi32(
            _mm256_madd_epi16(even, signed_even),
            _mm256_madd_epi16(odd, signed_odd),
        );
        _mm256_add_epi32(sum, products)
    }
}

/// Products of magnitudes with signs moved over: 2 × 128 × 127 at most, which 16 bits hold.
#[inline(always)]
unsafe fn dot_signed(sum: __m256i, a: __m256i, b: __m256i) -> __m256i {
    // SAFETY: called by operations of `Avx2` only.
    unsafe {
        let pairs = _mm256_maddubs_epi16(_mm256_abs_epi8(a), _mm256_sign_epi8(b, a));
        _mm256_add_epi32(sum, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)))
    }
}

/// All bits of each byte set whose bit is set in the 32 of `bits`.
#[inline(always)]
unsafe fn byte_mask(bits: u32) -> __m256i {
    // SAFETY: called by operations of `Avx2` only.
    unsafe {
        let spread = _mm256_setr_epi64x(
            0,
            0x0101_0101_0101_0101,
            0x0202_0202_0202_0202,
            0x0303_0303_0303_0303,
        );
        let bytes = _mm256_shuffle_epi8(_mm256_set1_epi32(bits as i32), spread);
        let places = _mm256_set1_epi64x(0x8040_2010_0804_0201_u64 as i64);
        _mm256_cmpeq_epi8(_mm256_and_si256(bytes, places), places)
    }
}

impl Isa for Avx2 {
    type F = Floats;
    type I = Ints;
    type P = Ints;
    type B = Ints;
    type O = Ints;
    type S = Ints;
    type M = Floats;

    const NAME: &'static str = "avx2";
    const REGISTERS: usize = 8;
    const HAS_BF16_DOT: bool = false;
    const SMALL_LIMIT: usize = i16::MAX as usize;

    #[inline]
    fn vectorize<K: Kernel>(self, kernel: K) -> K::Output {
        // SAFETY: `self` proves that the machine has these instructions.
        unsafe { enabled(self, kernel) }
    }

    operations! {
        add(a: Floats, b: Floats) -> Floats { _mm256_add_ps(a, b) }
        sub(a: Floats, b: Floats) -> Floats { _mm256_sub_ps(a, b) }
        mul(a: Floats, b: Floats) -> Floats { _mm256_mul_ps(a, b) }
        div(a: Floats, b: Floats) -> Floats { _mm256_div_ps(a, b) }
        fma(a: Floats, b: Floats, c: Floats) -> Floats { _mm256_fmadd_ps(a, b, c) }
        max(a: Floats, b: Floats) -> Floats { _mm256_max_ps(a, b) }
        min(a: Floats, b: Floats) -> Floats { _mm256_min_ps(a, b) }
        sqrt(a: Floats) -> Floats { _mm256_sqrt_ps(a) }
        abs(a: Floats) -> Floats { _mm256_andnot_ps(_mm256_set1_ps(-0.0), a) }
        low(pairs: Ints) -> Floats { halves::<false>(pairs) }
        high(pairs: Ints) -> Floats { halves::<true>(pairs) }
        pack_pairs(low: Floats, high: Floats) -> Ints {
            _mm256_or_si256(bf16_bits(low), _mm256_slli_epi32::<16>(bf16_bits(high)))
        }
        join_pairs(low: Floats, high: Floats) -> Ints {
            _mm256_or_si256(_mm256_srli_epi32::<16>(_mm256_castps_si256(low)), _mm256_castps_si256(high))
        }
        dot_bf16(sum: Floats, a: Ints, b: Ints) -> Floats {
            add_product::<false>(add_product::<true>(flushed(sum), a, b), a, b)
        }
        add_int(a: Ints, b: Ints) -> Ints { _mm256_add_epi32(a, b) }
        as_float(a: Ints) -> Floats { _mm256_castsi256_ps(a) }
        as_int(a: Floats) -> Ints { _mm256_castps_si256(a) }
        to_float(a: Ints) -> Floats { _mm256_cvtepi32_ps(a) }
        to_int(a: Floats) -> Ints { _mm256_cvtps_epi32(a) }
        low_nibbles(bytes: Ints) -> Ints { _mm256_and_si256(bytes, _mm256_set1_epi8(15)) }
        high_nibbles(bytes: Ints) -> Ints {
            _mm256_and_si256(_mm256_srli_epi16::<4>(bytes), _mm256_set1_epi8(15))
        }
        dot_bytes(sum: Ints, a: Ints, b: Ints) -> Ints { dot_bytes(sum, a, b) }
        offset_bytes(bytes: Ints) -> Ints { _mm256_xor_si256(bytes, _mm256_set1_epi8(-128)) }
        offset_start(minus_sum: Ints) -> Ints { _mm256_xor_si256(minus_sum, minus_sum) }
        dot_offset(sum: Ints, a: Ints, b: Ints) -> Ints { dot_signed(sum, a, b) }
        dot_small(sum: Ints, a: Ints, b: Ints) -> Ints {
            _mm256_add_epi16(sum, _mm256_maddubs_epi16(a, b))
        }
        widen(start: Ints, small: Ints) -> Ints {
            _mm256_add_epi32(start, _mm256_madd_epi16(small, _mm256_set1_epi16(1)))
        }
        greater(a: Floats, b: Floats) -> Floats { _mm256_cmp_ps::<_CMP_GT_OQ>(a, b) }
        is_nan(a: Floats) -> Floats { _mm256_cmp_ps::<_CMP_UNORD_Q>(a, a) }
        select(mask: Floats, a: Floats, b: Floats) -> Floats { _mm256_blendv_ps(b, a, mask) }
        select_int(mask: Floats, a: Ints, b: Ints) -> Ints {
            _mm256_blendv_epi8(b, a, _mm256_castps_si256(mask))
        }
    }

    whole_operations! {
        splat(value: f32) -> Floats { [_mm256_set1_ps(value); 2] }
        small_start(_start: Ints) -> Ints { [_mm256_setzero_si256(); 2] }
        splat_pair(pair: u32) -> Ints { [_mm256_set1_epi32(pair as i32); 2] }
        splat_int(value: i32) -> Ints { [_mm256_set1_epi32(value); 2] }
        splat_bytes(four: u32) -> Ints { [_mm256_set1_epi32(four as i32); 2] }
        reduce_add(a: Floats) -> f32 { folded_256!(_mm256_add_ps(a[0], a[1]), _mm_add_ps, _mm_add_ss) }
        reduce_max(a: Floats) -> f32 { folded_256!(_mm256_max_ps(a[0], a[1]), _mm_max_ps, _mm_max_ss) }
        add_where(bytes: Ints, bits: u64, value: u8) -> Ints {{
            let value = _mm256_set1_epi8(value as i8);
            let low = _mm256_and_si256(byte_mask(bits as u32), value);
            let high = _mm256_and_si256(byte_mask((bits >> 32) as u32), value);
            [_mm256_add_epi8(bytes[0], low), _mm256_add_epi8(bytes[1], high)]
        }}
        first(count: usize) -> Floats {{
            let count = _mm256_set1_epi32(count as i32);
            let low = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
            let high = _mm256_setr_epi32(8, 9, 10, 11, 12, 13, 14, 15);
            [
                _mm256_castsi256_ps(_mm256_cmpgt_epi32(count, low)),
                _mm256_castsi256_ps(_mm256_cmpgt_epi32(count, high)),
            ]
        }}
        any(mask: Floats) -> bool { _mm256_movemask_ps(_mm256_or_ps(mask[0], mask[1])) != 0 }
        prefetch(address: *const u8) -> () { _mm_prefetch::<_MM_HINT_T0>(address.cast()) }
        prefetch_second(address: *const u8) -> () { _mm_prefetch::<_MM_HINT_T1>(address.cast()) }
    }

    memory_operations! {
        load(from: *const f32) -> Floats { [_mm256_loadu_ps(from), _mm256_loadu_ps(from.add(8))] }
        store(to: *mut f32, value: Floats) {{
            _mm256_storeu_ps(to, value[0]);
            _mm256_storeu_ps(to.add(8), value[1]);
        }}
        load_bf16(from: *const u16) -> Floats {
            [load_bf16(from), load_bf16(from.add(8))]
        }
        store_bf16(to: *mut u16, value: Floats) {{
            let packed = _mm256_packus_epi32(bf16_bits(value[0]), bf16_bits(value[1]));
            _mm256_storeu_si256(to.cast(), _mm256_permute4x64_epi64::<0b11_01_10_00>(packed));
        }}
        load_f16(from: *const u16) -> Floats {
            [
                _mm256_cvtph_ps(_mm_loadu_si128(from.cast())),
                _mm256_cvtph_ps(_mm_loadu_si128(from.add(8).cast())),
            ]
        }
        store_f16(to: *mut u16, value: Floats) {{
            _mm_storeu_si128(to.cast(), _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(value[0]));
            _mm_storeu_si128(to.add(8).cast(), _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(value[1]));
        }}
        load_pairs(from: *const u16) -> Ints {
            [_mm256_loadu_si256(from.cast()), _mm256_loadu_si256(from.add(16).cast())]
        }
        store_pairs(to: *mut u16, value: Ints) {{
            _mm256_storeu_si256(to.cast(), value[0]);
            _mm256_storeu_si256(to.add(16).cast(), value[1]);
        }}
        load_int(from: *const i32) -> Ints {
            [_mm256_loadu_si256(from.cast()), _mm256_loadu_si256(from.add(8).cast())]
        }
        store_int(to: *mut i32, value: Ints) {{
            _mm256_storeu_si256(to.cast(), value[0]);
            _mm256_storeu_si256(to.add(8).cast(), value[1]);
        }}
        store_i8(to: *mut i8, value: Ints) {{
            let words = _mm256_permute4x64_epi64::<0b11_01_10_00>(_mm256_packs_epi32(value[0], value[1]));
            let bytes = _mm_packs_epi16(_mm256_castsi256_si128(words), _mm256_extracti128_si256::<1>(words));
            _mm_storeu_si128(to.cast(), bytes);
        }}
        load_i8(from: *const i8) -> Ints {
            [
                _mm256_cvtepi8_epi32(_mm_loadl_epi64(from.cast())),
                _mm256_cvtepi8_epi32(_mm_loadl_epi64(from.add(8).cast())),
            ]
        }
        load_bytes(from: *const u8) -> Ints {
            [_mm256_loadu_si256(from.cast()), _mm256_loadu_si256(from.add(32).cast())]
        }
        store_bytes(to: *mut u8, bytes: Ints) {{
            _mm256_storeu_si256(to.cast(), bytes[0]);
            _mm256_storeu_si256(to.add(32).cast(), bytes[1]);
        }}
    }

    #[inline(always)]
    fn shift_left<const BITS: u32>(self, a: Ints) -> Ints {
        // SAFETY: `self` proves that the machine has these instructions.
        unsafe {
            let count = _mm_cvtsi32_si128(BITS as i32);
            [_mm256_sll_epi32(a[0], count), _mm256_sll_epi32(a[1], count)]
        }
    }
}
