//! Sixteen lanes, whatever the hardware's width.
//!
//! Kernels are written once, over [`Isa`]. An implementation says how an operation is done, never what it gives: all
//! of them give the same bits, so that the scalar one ([`Portable`]) is the twin against which the others are tested,
//! and results do not depend on the machine's instruction set wherever the arithmetic is the same.
//!
//! A value of an implementation proves that its instructions are there: it can only be made by asking the machine.

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
mod portable;
#[cfg(test)]
mod tests;

#[cfg(target_arch = "x86_64")]
pub use avx2::Avx2;
#[cfg(target_arch = "x86_64")]
pub use avx512::Avx512;
pub use portable::Portable;

/// Lanes of every vector of 32-bit values.
pub const LANES: usize = 16;

/// A computation over any instruction set. Implementations mark `run` `#[inline(always)]`, and so does everything that
/// it calls: [`Isa::vectorize`] compiles the whole with the instruction set switched on.
pub trait Kernel {
    /// What it gives.
    type Output;
    /// Computes.
    fn run<I: Isa>(self, isa: I) -> Self::Output;
}

/// An instruction set: the operations on 16 lanes of which kernels are made.
///
/// Every lane of every operation is rounded to nearest even; only [`Isa::dot_bf16`] flushes subnormal numbers.
pub trait Isa: Copy + Send + Sync + 'static {
    /// 16 f32.
    type F: Copy;
    /// 16 i32.
    type I: Copy;
    /// 16 pairs of bfloat16, the low half first.
    type P: Copy;
    /// 64 bytes: 16 groups of four.
    type B: Copy;
    /// 64 bytes ready for several [`Isa::dot_offset`].
    type O: Copy;
    /// Sums of [`Isa::dot_small`].
    type S: Copy;
    /// A choice for each of 16 lanes.
    type M: Copy;

    /// As it is called in logs.
    const NAME: &'static str;
    /// Vector registers of 16 lanes that a kernel may fill with accumulators and operands.
    const REGISTERS: usize;
    /// [`Isa::dot_bf16`] is an instruction, not an emulation.
    const HAS_BF16_DOT: bool;
    /// What the sums of [`Isa::dot_small`] may reach.
    const SMALL_LIMIT: usize;

    /// Runs `kernel` compiled for this instruction set. Not for a few operations: the call is not inlined.
    fn vectorize<K: Kernel>(self, kernel: K) -> K::Output;

    /// All lanes `value`.
    fn splat(self, value: f32) -> Self::F;
    /// 16 values from `from`.
    ///
    /// # Safety
    /// 16 values can be read there. Any alignment.
    unsafe fn load(self, from: *const f32) -> Self::F;
    /// Writes 16 values.
    ///
    /// # Safety
    /// 16 values can be written there. Any alignment.
    unsafe fn store(self, to: *mut f32, value: Self::F);
    /// a + b.
    fn add(self, a: Self::F, b: Self::F) -> Self::F;
    /// a − b.
    fn sub(self, a: Self::F, b: Self::F) -> Self::F;
    /// a × b.
    fn mul(self, a: Self::F, b: Self::F) -> Self::F;
    /// a ÷ b.
    fn div(self, a: Self::F, b: Self::F) -> Self::F;
    /// a × b + c, rounded once.
    fn fma(self, a: Self::F, b: Self::F, c: Self::F) -> Self::F;
    /// a where a > b, else b (also where one is NaN).
    fn max(self, a: Self::F, b: Self::F) -> Self::F;
    /// a where a < b, else b (also where one is NaN).
    fn min(self, a: Self::F, b: Self::F) -> Self::F;
    /// √a.
    fn sqrt(self, a: Self::F) -> Self::F;
    /// The sign bit cleared.
    fn abs(self, a: Self::F) -> Self::F;
    /// Sum of the lanes, halves folded: lane i + lane i + 8, then 4, 2, 1.
    fn reduce_add(self, a: Self::F) -> f32;
    /// The largest lane, by [`Isa::max`] folded as [`Isa::reduce_add`].
    fn reduce_max(self, a: Self::F) -> f32;

    /// 16 bfloat16, exact.
    ///
    /// # Safety
    /// 16 values can be read there. Any alignment.
    unsafe fn load_bf16(self, from: *const u16) -> Self::F;
    /// 16 bfloat16, the nearest, ties to even; NaN stays NaN.
    ///
    /// # Safety
    /// 16 values can be written there. Any alignment.
    unsafe fn store_bf16(self, to: *mut u16, value: Self::F);
    /// 16 IEEE half floats, exact.
    ///
    /// # Safety
    /// 16 values can be read there. Any alignment.
    unsafe fn load_f16(self, from: *const u16) -> Self::F;
    /// 16 IEEE half floats, the nearest, ties to even.
    ///
    /// # Safety
    /// 16 values can be written there. Any alignment.
    unsafe fn store_f16(self, to: *mut u16, value: Self::F);

    /// 16 pairs of bfloat16.
    ///
    /// # Safety
    /// 32 values can be read there. Any alignment.
    unsafe fn load_pairs(self, from: *const u16) -> Self::P;
    /// One pair in all lanes; its low half in the low bits.
    fn splat_pair(self, pair: u32) -> Self::P;
    /// Low halves, exact.
    fn low(self, pairs: Self::P) -> Self::F;
    /// High halves, exact.
    fn high(self, pairs: Self::P) -> Self::F;
    /// The pairs (low, high) of two vectors, each value rounded to the nearest bfloat16, ties to even.
    fn pack_pairs(self, low: Self::F, high: Self::F) -> Self::P;
    /// The pairs (low, high) of two vectors whose values are bfloat16 already: nothing is rounded.
    fn join_pairs(self, low: Self::F, high: Self::F) -> Self::P;
    /// Writes 16 pairs.
    ///
    /// # Safety
    /// 32 values can be written there. Any alignment.
    unsafe fn store_pairs(self, to: *mut u16, value: Self::P);
    /// (sum + high × high) + low × low, each sum of an exact product rounded once; subnormal operands and results count
    /// as zero.
    fn dot_bf16(self, sum: Self::F, a: Self::P, b: Self::P) -> Self::F;

    /// All lanes `value`.
    fn splat_int(self, value: i32) -> Self::I;
    /// 16 values from `from`.
    ///
    /// # Safety
    /// 16 values can be read there. Any alignment.
    unsafe fn load_int(self, from: *const i32) -> Self::I;
    /// Writes 16 values.
    ///
    /// # Safety
    /// 16 values can be written there. Any alignment.
    unsafe fn store_int(self, to: *mut i32, value: Self::I);
    /// a + b, wrapping.
    fn add_int(self, a: Self::I, b: Self::I) -> Self::I;
    /// a << BITS.
    fn shift_left<const BITS: u32>(self, a: Self::I) -> Self::I;
    /// The bits as f32.
    fn as_float(self, a: Self::I) -> Self::F;
    /// The bits as i32.
    fn as_int(self, a: Self::F) -> Self::I;
    /// The nearest f32.
    fn to_float(self, a: Self::I) -> Self::F;
    /// The nearest integer, ties to even; only for |a| < 2³¹.
    fn to_int(self, a: Self::F) -> Self::I;
    /// The low byte of each lane, 16 bytes; only for values that fit in an i8.
    ///
    /// # Safety
    /// 16 bytes can be written there.
    unsafe fn store_i8(self, to: *mut i8, value: Self::I);
    /// 16 signed bytes.
    ///
    /// # Safety
    /// 16 bytes can be read there.
    unsafe fn load_i8(self, from: *const i8) -> Self::I;

    /// 64 bytes.
    ///
    /// # Safety
    /// 64 bytes can be read there. Any alignment.
    unsafe fn load_bytes(self, from: *const u8) -> Self::B;
    /// Four bytes, the first in the low bits, in all 16 groups.
    fn splat_bytes(self, four: u32) -> Self::B;
    /// The low four bits of each byte.
    fn low_nibbles(self, bytes: Self::B) -> Self::B;
    /// The high four bits of each byte.
    fn high_nibbles(self, bytes: Self::B) -> Self::B;
    /// `bytes` + `value` where bit i of `bits` is set, i the byte's index; wrapping.
    fn add_where(self, bytes: Self::B, bits: u64, value: u8) -> Self::B;
    /// sum + the products of each lane's four unsigned bytes of `a` and signed bytes of `b`. Exact for every value.
    fn dot_bytes(self, sum: Self::I, a: Self::B, b: Self::B) -> Self::I;
    /// Writes 64 bytes.
    ///
    /// # Safety
    /// 64 bytes can be written there. Any alignment.
    unsafe fn store_bytes(self, to: *mut u8, bytes: Self::B);
    /// Prepares unsigned bytes, each of which stands for itself less 128.
    fn offset_bytes(self, bytes: Self::B) -> Self::O;
    /// Where a sum of [`Isa::dot_offset`] begins; each lane of `minus_sum` is −Σ of all the `b` that will meet it.
    fn offset_start(self, minus_sum: Self::I) -> Self::I;
    /// sum + the products of each lane's four bytes of `a`, less 128, and signed bytes of `b`, none of them −128. Exact
    /// once every `b` that [`Isa::offset_start`] counted has been met.
    fn dot_offset(self, sum: Self::I, a: Self::O, b: Self::B) -> Self::I;
    /// Where a sum of [`Isa::dot_small`] begins that [`Isa::widen`] will add to `start`.
    fn small_start(self, start: Self::I) -> Self::S;
    /// sum + the products of each lane's four unsigned bytes of `a` and signed bytes of `b`, for small `a`: twice the
    /// largest `a` × 127, added up over the calls, stays within [`Isa::SMALL_LIMIT`]. No `b` is −128.
    fn dot_small(self, sum: Self::S, a: Self::B, b: Self::B) -> Self::S;
    /// `start` + the products added to `small`, which began with this `start`.
    fn widen(self, start: Self::I, small: Self::S) -> Self::I;

    /// The first `count` lanes.
    fn first(self, count: usize) -> Self::M;
    /// Lanes where a > b; never where one is NaN.
    fn greater(self, a: Self::F, b: Self::F) -> Self::M;
    /// Lanes that are NaN.
    fn is_nan(self, a: Self::F) -> Self::M;
    /// Any lane chosen?
    fn any(self, mask: Self::M) -> bool;
    /// a where chosen, else b.
    fn select(self, mask: Self::M, a: Self::F, b: Self::F) -> Self::F;
    /// a where chosen, else b.
    fn select_int(self, mask: Self::M, a: Self::I, b: Self::I) -> Self::I;
    /// Brings a cache line near.
    fn prefetch(self, address: *const u8);
    /// Brings a cache line as near as the second level: more of these can be under way at once.
    fn prefetch_second(self, address: *const u8);
}

/// Which implementation, as a value: chosen once at start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InstructionSet {
    /// AVX-512 with F, BW, DQ, VL, VNNI and BF16.
    Avx512,
    /// AVX2 with FMA and F16C.
    Avx2,
    /// No more than every machine has.
    Portable,
}

impl InstructionSet {
    /// All, the fastest first.
    pub const ALL: [Self; 3] = [Self::Avx512, Self::Avx2, Self::Portable];

    /// The fastest that this machine has.
    #[must_use]
    pub fn detect() -> Self {
        let found = Self::ALL.into_iter().find(|set| set.is_available());
        found.unwrap_or(Self::Portable)
    }

    /// This machine has it.
    #[must_use]
    pub fn is_available(self) -> bool {
        match self {
            #[cfg(target_arch = "x86_64")]
            Self::Avx512 => Avx512::detect().is_some(),
            #[cfg(target_arch = "x86_64")]
            Self::Avx2 => Avx2::detect().is_some(),
            #[cfg(not(target_arch = "x86_64"))]
            Self::Avx512 | Self::Avx2 => false,
            Self::Portable => true,
        }
    }

    /// As it is called in options and logs.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Avx512 => "avx512",
            Self::Avx2 => "avx2",
            Self::Portable => "portable",
        }
    }

    /// bfloat16 products are an instruction here.
    #[must_use]
    pub fn has_bf16_dot(self) -> bool {
        self == Self::Avx512
    }

    /// Runs `kernel` on this instruction set.
    ///
    /// # Panics
    /// If this machine does not have it: ask [`InstructionSet::is_available`] first.
    #[inline]
    pub fn run<K: Kernel>(self, kernel: K) -> K::Output {
        match self {
            #[cfg(target_arch = "x86_64")]
            Self::Avx512 => Avx512::detect().expect("no AVX-512 here").vectorize(kernel),
            #[cfg(target_arch = "x86_64")]
            Self::Avx2 => Avx2::detect().expect("no AVX2 here").vectorize(kernel),
            #[cfg(not(target_arch = "x86_64"))]
            Self::Avx512 | Self::Avx2 => panic!("{} is not of this architecture", self.name()),
            Self::Portable => Portable.vectorize(kernel),
        }
    }
}

impl std::str::FromStr for InstructionSet {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        let found = Self::ALL.into_iter().find(|set| set.name() == name);
        found.ok_or_else(|| {
            format!("instruction set {name:?} is not known: avx512, avx2 and portable are")
        })
    }
}
