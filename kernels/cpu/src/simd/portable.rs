//! Scalar code: for machines that have nothing better, and the twin of every other implementation.

use half::{bf16, f16};

use super::{Isa, Kernel, LANES};

/// Arrays of 16, one lane after the other.
#[derive(Clone, Copy, Debug)]
pub struct Portable;

type Floats = [f32; LANES];
type Ints = [i32; LANES];

#[inline]
fn each<A: Copy, B: Copy, R: Copy + Default>(
    a: [A; LANES],
    b: [B; LANES],
    f: impl Fn(A, B) -> R,
) -> [R; LANES] {
    std::array::from_fn(|lane| f(a[lane], b[lane]))
}

/// Subnormal numbers count as zero of the same sign.
fn flushed(value: f32) -> f32 {
    if value.is_subnormal() {
        0.0_f32.copysign(value)
    } else {
        value
    }
}

#[inline]
fn fold<T: Copy>(lanes: [T; LANES], f: impl Fn(T, T) -> T) -> T {
    let mut folded = lanes;
    let mut half = LANES / 2;
    while half > 0 {
        for lane in 0..half {
            folded[lane] = f(folded[lane], folded[lane + half]);
        }
        half /= 2;
    }
    folded[0]
}

impl Isa for Portable {
    type F = Floats;
    type I = Ints;
    type P = [u32; LANES];
    type B = [u32; LANES];
    type O = [u32; LANES];
    type S = Ints;
    type M = [bool; LANES];

    const NAME: &'static str = "portable";
    const REGISTERS: usize = 1;
    const HAS_BF16_DOT: bool = false;
    const SMALL_LIMIT: usize = i32::MAX as usize;

    #[inline]
    fn vectorize<K: Kernel>(self, kernel: K) -> K::Output {
        kernel.run(self)
    }

    #[inline]
    fn splat(self, value: f32) -> Floats {
        [value; LANES]
    }
    #[inline]
    unsafe fn load(self, from: *const f32) -> Floats {
        from.cast::<Floats>().read_unaligned()
    }
    #[inline]
    unsafe fn store(self, to: *mut f32, value: Floats) {
        to.cast::<Floats>().write_unaligned(value);
    }
    #[inline]
    fn add(self, a: Floats, b: Floats) -> Floats {
        each(a, b, |a, b| a + b)
    }
    #[inline]
    fn sub(self, a: Floats, b: Floats) -> Floats {
        each(a, b, |a, b| a - b)
    }
    #[inline]
    fn mul(self, a: Floats, b: Floats) -> Floats {
        each(a, b, |a, b| a * b)
    }
    #[inline]
    fn div(self, a: Floats, b: Floats) -> Floats {
        each(a, b, |a, b| a / b)
    }
    #[inline]
    fn fma(self, a: Floats, b: Floats, c: Floats) -> Floats {
        std::array::from_fn(|lane| a[lane].mul_add(b[lane], c[lane]))
    }
    #[inline]
    fn max(self, a: Floats, b: Floats) -> Floats {
        each(a, b, |a, b| if a > b { a } else { b })
    }
    #[inline]
    fn min(self, a: Floats, b: Floats) -> Floats {
        each(a, b, |a, b| if a < b { a } else { b })
    }
    #[inline]
    fn sqrt(self, a: Floats) -> Floats {
        a.map(f32::sqrt)
    }
    #[inline]
    fn abs(self, a: Floats) -> Floats {
        a.map(f32::abs)
    }
    #[inline]
    fn reduce_add(self, a: Floats) -> f32 {
        fold(a, |a, b| a + b)
    }
    #[inline]
    fn reduce_max(self, a: Floats) -> f32 {
        fold(a, |a, b| if a > b { a } else { b })
    }

    #[inline]
    unsafe fn load_bf16(self, from: *const u16) -> Floats {
        from.cast::<[u16; LANES]>()
            .read_unaligned()
            .map(|bits| f32::from_bits(u32::from(bits) << 16))
    }
    #[inline]
    unsafe fn store_bf16(self, to: *mut u16, value: Floats) {
        to.cast::<[u16; LANES]>()
            .write_unaligned(value.map(|value| bf16::from_f32(value).to_bits()));
    }
    #[inline]
    unsafe fn load_f16(self, from: *const u16) -> Floats {
        from.cast::<[u16; LANES]>()
            .read_unaligned()
            .map(|bits| f16::from_bits(bits).to_f32())
    }
    #[inline]
    unsafe fn store_f16(self, to: *mut u16, value: Floats) {
        to.cast::<[u16; LANES]>()
            .write_unaligned(value.map(|value| f16::from_f32(value).to_bits()));
    }

    #[inline]
    unsafe fn load_pairs(self, from: *const u16) -> [u32; LANES] {
        from.cast::<[u32; LANES]>().read_unaligned()
    }
    #[inline]
    fn splat_pair(self, pair: u32) -> [u32; LANES] {
        [pair; LANES]
    }
    #[inline]
    fn low(self, pairs: [u32; LANES]) -> Floats {
        pairs.map(|pair| f32::from_bits(pair << 16))
    }
    #[inline]
    fn high(self, pairs: [u32; LANES]) -> Floats {
        pairs.map(|pair| f32::from_bits(pair & 0xffff_0000))
    }
    #[inline]
    fn pack_pairs(self, low: Floats, high: Floats) -> [u32; LANES] {
        each(low, high, |low, high| {
            u32::from(bf16::from_f32(low).to_bits())
                | (u32::from(bf16::from_f32(high).to_bits()) << 16)
        })
    }
    #[inline]
    fn join_pairs(self, low: Floats, high: Floats) -> [u32; LANES] {
        each(low, high, |low, high| {
            (low.to_bits() >> 16) | high.to_bits()
        })
    }
    #[inline]
    unsafe fn store_pairs(self, to: *mut u16, value: [u32; LANES]) {
        to.cast::<[u32; LANES]>().write_unaligned(value);
    }
    #[inline]
    fn dot_bf16(self, sum: Floats, a: [u32; LANES], b: [u32; LANES]) -> Floats {
        std::array::from_fn(|lane| {
            let half =
                |pair: u32, shift: u32| flushed(bf16::from_bits((pair >> shift) as u16).to_f32());
            let add =
                |sum: f32, shift| flushed(half(a[lane], shift).mul_add(half(b[lane], shift), sum));
            add(add(flushed(sum[lane]), 16), 0)
        })
    }

    #[inline]
    fn splat_int(self, value: i32) -> Ints {
        [value; LANES]
    }
    #[inline]
    unsafe fn load_int(self, from: *const i32) -> Ints {
        from.cast::<Ints>().read_unaligned()
    }
    #[inline]
    unsafe fn store_int(self, to: *mut i32, value: Ints) {
        to.cast::<Ints>().write_unaligned(value);
    }
    #[inline]
    fn add_int(self, a: Ints, b: Ints) -> Ints {
        each(a, b, i32::wrapping_add)
    }
    #[inline]
    fn shift_left<const BITS: u32>(self, a: Ints) -> Ints {
        a.map(|a| a << BITS)
    }
    #[inline]
    fn as_float(self, a: Ints) -> Floats {
        a.map(|a| f32::from_bits(a as u32))
    }
    #[inline]
    fn as_int(self, a: Floats) -> Ints {
        a.map(|a| a.to_bits() as i32)
    }
    #[inline]
    fn to_float(self, a: Ints) -> Floats {
        a.map(|a| a as f32)
    }
    #[inline]
    fn to_int(self, a: Floats) -> Ints {
        a.map(|a| a.round_ties_even() as i32)
    }
    #[inline]
    unsafe fn store_i8(self, to: *mut i8, value: Ints) {
        to.cast::<[i8; LANES]>()
            .write_unaligned(value.map(|value| value as i8));
    }
    #[inline]
    unsafe fn load_i8(self, from: *const i8) -> Ints {
        from.cast::<[i8; LANES]>().read_unaligned().map(i32::from)
    }

    #[inline]
    unsafe fn load_bytes(self, from: *const u8) -> [u32; LANES] {
        from.cast::<[u32; LANES]>().read_unaligned()
    }
    #[inline]
    fn splat_bytes(self, four: u32) -> [u32; LANES] {
        [four; LANES]
    }
    #[inline]
    fn low_nibbles(self, bytes: [u32; LANES]) -> [u32; LANES] {
        bytes.map(|four| four & 0x0f0f_0f0f)
    }
    #[inline]
    fn high_nibbles(self, bytes: [u32; LANES]) -> [u32; LANES] {
        bytes.map(|four| (four >> 4) & 0x0f0f_0f0f)
    }
    #[inline]
    fn add_where(self, bytes: [u32; LANES], bits: u64, value: u8) -> [u32; LANES] {
        std::array::from_fn(|lane| {
            let four = bytes[lane].to_le_bytes();
            let chosen = |byte: usize| (bits >> (4 * lane + byte)) & 1 == 1;
            u32::from_le_bytes(std::array::from_fn(|byte| {
                four[byte].wrapping_add(if chosen(byte) { value } else { 0 })
            }))
        })
    }
    #[inline]
    fn dot_bytes(self, sum: Ints, a: [u32; LANES], b: [u32; LANES]) -> Ints {
        std::array::from_fn(|lane| {
            let (a, b) = (a[lane].to_le_bytes(), b[lane].to_le_bytes());
            let products = (0..4).map(|byte| i32::from(a[byte]) * i32::from(b[byte] as i8));
            sum[lane].wrapping_add(products.sum())
        })
    }

    #[inline]
    unsafe fn store_bytes(self, to: *mut u8, bytes: [u32; LANES]) {
        to.cast::<[u32; LANES]>().write_unaligned(bytes);
    }
    #[inline]
    fn offset_bytes(self, bytes: [u32; LANES]) -> [u32; LANES] {
        bytes
    }
    #[inline]
    fn offset_start(self, minus_sum: Ints) -> Ints {
        minus_sum.map(|sum| sum << 7)
    }
    #[inline]
    fn dot_offset(self, sum: Ints, a: [u32; LANES], b: [u32; LANES]) -> Ints {
        self.dot_bytes(sum, a, b)
    }
    #[inline]
    fn small_start(self, start: Ints) -> Ints {
        start
    }
    #[inline]
    fn dot_small(self, sum: Ints, a: [u32; LANES], b: [u32; LANES]) -> Ints {
        self.dot_bytes(sum, a, b)
    }
    #[inline]
    fn widen(self, _start: Ints, small: Ints) -> Ints {
        small
    }

    #[inline]
    fn first(self, count: usize) -> [bool; LANES] {
        std::array::from_fn(|lane| lane < count)
    }
    #[inline]
    fn greater(self, a: Floats, b: Floats) -> [bool; LANES] {
        std::array::from_fn(|lane| a[lane] > b[lane])
    }
    #[inline]
    fn is_nan(self, a: Floats) -> [bool; LANES] {
        a.map(f32::is_nan)
    }
    #[inline]
    fn any(self, mask: [bool; LANES]) -> bool {
        mask.contains(&true)
    }
    #[inline]
    fn select(self, mask: [bool; LANES], a: Floats, b: Floats) -> Floats {
        std::array::from_fn(|lane| if mask[lane] { a[lane] } else { b[lane] })
    }
    #[inline]
    fn select_int(self, mask: [bool; LANES], a: Ints, b: Ints) -> Ints {
        std::array::from_fn(|lane| if mask[lane] { a[lane] } else { b[lane] })
    }
    #[inline]
    fn prefetch(self, _address: *const u8) {}
    #[inline]
    fn prefetch_second(self, _address: *const u8) {}
}
