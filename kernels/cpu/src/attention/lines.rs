//! Lines of a panel: 16 pairs of stored numbers, and how a pair of factors is multiplied into a sum with one.

use crate::kv::KvFormat;
use crate::simd::{Isa, LANES};

/// How numbers lie in memory, exact as f32.
pub(super) trait Element: 'static {
    const FORMAT: KvFormat;
    /// Bytes of a line.
    const BYTES: usize;

    /// First and second numbers of the 16 pairs.
    ///
    /// # Safety
    /// A line can be read there.
    unsafe fn load<I: Isa>(isa: I, from: *const u8) -> (I::F, I::F);
}

/// See [`KvFormat::F32`], and so on.
pub(super) struct F32;
pub(super) struct F16;
pub(super) struct Bf16;
pub(super) struct Int8;

impl Element for F32 {
    const FORMAT: KvFormat = KvFormat::F32;
    const BYTES: usize = 128;

    #[inline(always)]
    unsafe fn load<I: Isa>(isa: I, from: *const u8) -> (I::F, I::F) {
        let from = from.cast::<f32>();
        (isa.load(from), isa.load(from.add(LANES)))
    }
}

impl Element for F16 {
    const FORMAT: KvFormat = KvFormat::F16;
    const BYTES: usize = 64;

    #[inline(always)]
    unsafe fn load<I: Isa>(isa: I, from: *const u8) -> (I::F, I::F) {
        let from = from.cast::<u16>();
        (isa.load_f16(from), isa.load_f16(from.add(LANES)))
    }
}

impl Element for Bf16 {
    const FORMAT: KvFormat = KvFormat::Bf16;
    const BYTES: usize = 64;

    #[inline(always)]
    unsafe fn load<I: Isa>(isa: I, from: *const u8) -> (I::F, I::F) {
        let pairs = isa.load_pairs(from.cast());
        (isa.low(pairs), isa.high(pairs))
    }
}

impl Element for Int8 {
    const FORMAT: KvFormat = KvFormat::Int8;
    const BYTES: usize = 32;

    #[inline(always)]
    unsafe fn load<I: Isa>(isa: I, from: *const u8) -> (I::F, I::F) {
        let from = from.cast::<i8>();
        (
            isa.to_float(isa.load_i8(from)),
            isa.to_float(isa.load_i8(from.add(LANES))),
        )
    }
}

/// A format in an arithmetic.
pub(super) trait Lines: 'static {
    /// Numbers as they lie.
    type Element: Element;
    /// What panels are widened to where many rows read them: a format of the same arithmetic.
    type Wide: Lines<Wide = Self::Wide>;
    /// A line in registers.
    type Line<I: Isa>: Copy;
    /// A pair of factors in all lanes.
    type Factors<I: Isa>: Copy;
    /// 32-bit words of a pair of factors.
    const WORDS: usize;
    /// `Wide` is this.
    const IS_WIDE: bool;

    /// # Safety
    /// A line can be read there.
    unsafe fn load<I: Isa>(isa: I, from: *const u8) -> Self::Line<I>;
    /// A line whose second numbers count as zero.
    ///
    /// # Safety
    /// A line can be read there.
    unsafe fn load_first<I: Isa>(isa: I, from: *const u8) -> Self::Line<I>;
    /// Writes a line in the format of `Wide`.
    ///
    /// # Safety
    /// A line of it can be written there.
    unsafe fn store_wide<I: Isa>(isa: I, to: *mut u8, line: Self::Line<I>);
    /// # Safety
    /// `WORDS` words can be read there.
    unsafe fn factors<I: Isa>(isa: I, from: *const u32) -> Self::Factors<I>;
    /// sum + the pair's products.
    fn add<I: Isa>(isa: I, sum: I::F, line: Self::Line<I>, factors: Self::Factors<I>) -> I::F;
    /// Rounds 16 factors and writes them, each pair side by side.
    ///
    /// # Safety
    /// 8 × `WORDS` words can be written there.
    unsafe fn store_factors<I: Isa>(isa: I, to: *mut u32, value: I::F);
}

/// float32 sums of float32 products: the first of the pair, then the second.
pub(super) struct Float<E>(E);

/// Sums of products of bfloat16 pairs: [`Isa::dot_bf16`].
pub(super) struct Dot<E>(E);

impl<E: Element> Lines for Float<E> {
    type Element = E;
    type Wide = Float<F32>;
    type Line<I: Isa> = (I::F, I::F);
    type Factors<I: Isa> = (I::F, I::F);
    const WORDS: usize = 2;
    const IS_WIDE: bool = matches!(E::FORMAT, KvFormat::F32);

    #[inline(always)]
    unsafe fn load<I: Isa>(isa: I, from: *const u8) -> Self::Line<I> {
        E::load(isa, from)
    }

    #[inline(always)]
    unsafe fn load_first<I: Isa>(isa: I, from: *const u8) -> Self::Line<I> {
        (E::load(isa, from).0, isa.splat(0.0))
    }

    #[inline(always)]
    unsafe fn store_wide<I: Isa>(isa: I, to: *mut u8, line: Self::Line<I>) {
        isa.store(to.cast(), line.0);
        isa.store(to.cast::<f32>().add(LANES), line.1);
    }

    #[inline(always)]
    unsafe fn factors<I: Isa>(isa: I, from: *const u32) -> Self::Factors<I> {
        let from = from.cast::<f32>();
        (isa.splat(*from), isa.splat(*from.add(1)))
    }

    #[inline(always)]
    fn add<I: Isa>(isa: I, sum: I::F, line: Self::Line<I>, factors: Self::Factors<I>) -> I::F {
        isa.fma(line.1, factors.1, isa.fma(line.0, factors.0, sum))
    }

    #[inline(always)]
    unsafe fn store_factors<I: Isa>(isa: I, to: *mut u32, value: I::F) {
        isa.store(to.cast(), value);
    }
}

impl<E: Element> Lines for Dot<E> {
    type Element = E;
    type Wide = Dot<Bf16>;
    type Line<I: Isa> = I::P;
    type Factors<I: Isa> = I::P;
    const WORDS: usize = 1;
    const IS_WIDE: bool = matches!(E::FORMAT, KvFormat::Bf16);

    #[inline(always)]
    unsafe fn load<I: Isa>(isa: I, from: *const u8) -> Self::Line<I> {
        if matches!(E::FORMAT, KvFormat::Bf16) {
            isa.load_pairs(from.cast())
        } else {
            let (first, second) = E::load(isa, from);
            isa.join_pairs(first, second)
        }
    }

    #[inline(always)]
    unsafe fn load_first<I: Isa>(isa: I, from: *const u8) -> Self::Line<I> {
        isa.join_pairs(E::load(isa, from).0, isa.splat(0.0))
    }

    #[inline(always)]
    unsafe fn store_wide<I: Isa>(isa: I, to: *mut u8, line: Self::Line<I>) {
        isa.store_pairs(to.cast(), line);
    }

    #[inline(always)]
    unsafe fn factors<I: Isa>(isa: I, from: *const u32) -> Self::Factors<I> {
        isa.splat_pair(*from)
    }

    #[inline(always)]
    fn add<I: Isa>(isa: I, sum: I::F, line: Self::Line<I>, factors: Self::Factors<I>) -> I::F {
        isa.dot_bf16(sum, line, factors)
    }

    #[inline(always)]
    unsafe fn store_factors<I: Isa>(isa: I, to: *mut u32, value: I::F) {
        isa.store_bf16(to.cast(), value);
    }
}
