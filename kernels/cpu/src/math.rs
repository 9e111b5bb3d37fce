//! Functions of 16 lanes: the same bits on every instruction set.

use crate::simd::Isa;

/// 1.5 × 2²³: added to a small float it leaves the nearest integer in the low bits.
const ROUND: f32 = 12_582_912.0;

/// Coefficients of x¹…x⁶ of the relative minimax polynomial for eˣ on ±ln 2 / 2, error 2e-9.
const EXP: [f32; 6] = [
    1.0,
    0.499_999_94,
    0.166_664_32,
    0.041_668,
    0.008_374_155_5,
    0.001_384_365_3,
];

/// Coefficients of x¹…x⁵ of the relative minimax polynomial for 2ˣ on ±1/2, error 9e-8.
#[expect(
    clippy::approx_constant,
    reason = "the first coefficient is near ln 2, not ln 2"
)]
const EXP2: [f32; 5] = [
    0.693_147,
    0.240_222_42,
    0.055_507_336,
    0.009_671_513,
    0.001_326_472_4,
];

/// 1 + c₁x + c₂x² + …, by Horner's rule.
#[inline(always)]
fn polynomial<I: Isa, const N: usize>(isa: I, x: I::F, coefficients: [f32; N]) -> I::F {
    let mut value = isa.splat(coefficients[N - 1]);
    let mut place = N - 1;
    while place > 0 {
        place -= 1;
        value = isa.fma(value, x, isa.splat(coefficients[place]));
    }
    isa.fma(value, x, isa.splat(1.0))
}

/// value × 2ⁿ, where `shifted` is n + [`ROUND`], n from −127 (which gives 0) to 128 (infinite).
#[inline(always)]
fn scaled<I: Isa>(isa: I, value: I::F, shifted: I::F) -> I::F {
    let exponent = isa.add_int(
        isa.shift_left::<23>(isa.as_int(shifted)),
        isa.splat_int(0x3f80_0000),
    );
    isa.mul(value, isa.as_float(exponent))
}

/// eˣ, relative error below 2e-7; 0 below −87.7, infinite above 88.4, NaN for NaN.
#[inline(always)]
pub fn exp<I: Isa>(isa: I, x: I::F) -> I::F {
    // In this order of operands NaN survives.
    let x = isa.min(isa.splat(89.0), isa.max(isa.splat(-88.0), x));
    let shifted = isa.fma(x, isa.splat(std::f32::consts::LOG2_E), isa.splat(ROUND));
    let n = isa.sub(shifted, isa.splat(ROUND));
    // ln 2 in two parts: n × the first is exact.
    let rest = isa.fma(n, isa.splat(-0.693_145_75), x);
    let rest = isa.fma(n, isa.splat(-1.428_606_8e-6), rest);
    scaled(isa, polynomial(isa, rest, EXP), shifted)
}

/// 2ˣ for x ≤ 0 and NaN, relative error below 2e-7; 0 below −126.5.
#[inline(always)]
pub fn exp2_negative<I: Isa>(isa: I, x: I::F) -> I::F {
    let x = isa.max(isa.splat(-127.0), x);
    let shifted = isa.add(x, isa.splat(ROUND));
    let rest = isa.sub(x, isa.sub(shifted, isa.splat(ROUND)));
    scaled(isa, polynomial(isa, rest, EXP2), shifted)
}

/// x ÷ (1 + e⁻ˣ), also called swish.
#[inline(always)]
pub fn silu<I: Isa>(isa: I, x: I::F) -> I::F {
    let e = exp(isa, isa.sub(isa.splat(0.0), x));
    isa.div(x, isa.add(isa.splat(1.0), e))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::simd::{InstructionSet, Kernel, LANES};

    struct Functions<'a>(&'a [f32]);

    impl Kernel for Functions<'_> {
        type Output = Vec<[f32; 3]>;

        #[inline(always)]
        fn run<I: Isa>(self, isa: I) -> Self::Output {
            let mut out = Vec::new();
            for chunk in self.0.chunks_exact(LANES) {
                let mut lanes = [[0.0_f32; LANES]; 3];
                // SAFETY: chunks and lanes hold 16 values.
                unsafe {
                    let x = isa.load(chunk.as_ptr());
                    isa.store(lanes[0].as_mut_ptr(), exp(isa, x));
                    isa.store(lanes[1].as_mut_ptr(), exp2_negative(isa, x));
                    isa.store(lanes[2].as_mut_ptr(), silu(isa, x));
                }
                out.extend((0..LANES).map(|lane| lanes.map(|values| values[lane])));
            }
            out
        }
    }

    fn arguments() -> Vec<f32> {
        let mut x: Vec<f32> = (0_u16..40_000)
            .map(|i| (f32::from(i) - 20_000.0) * 0.005)
            .collect();
        x.extend((0_u16..3200).map(|i| -f32::from(i) * 0.001_7));
        x.extend([
            f32::NAN,
            f32::INFINITY,
            f32::NEG_INFINITY,
            0.0,
            -0.0,
            f32::from_bits(0xffff_ffff),
            1e-40,
            -1e-40,
            f32::MAX,
            f32::MIN,
            88.3,
            -87.2,
            88.72,
            -87.7,
            -126.4,
            -126.6,
        ]);
        x
    }

    #[test]
    fn errors_stay_below_two_parts_in_ten_million() {
        let x = arguments();
        let near = |got: f32, want: f64, limit: f64| {
            (f64::from(got) - want).abs() <= limit * want.abs() + 2e-38
        };
        for (x, [exp, exp2, silu]) in x.iter().zip(InstructionSet::detect().run(Functions(&x))) {
            let wide = f64::from(*x);
            if x.is_nan() {
                assert!(exp.is_nan() && exp2.is_nan() && silu.is_nan());
                continue;
            }
            if *x < 88.3 {
                assert!(near(exp, wide.exp(), 2e-7), "exp({x}) = {exp}");
            }
            if *x > 88.8 {
                assert!(exp > f32::MAX, "exp({x}) = {exp}");
            }
            if *x <= 0.0 {
                assert!(near(exp2, wide.exp2(), 2e-7), "2^{x} = {exp2}");
            }
            if x.is_finite() {
                let want = wide / (1.0 + (-wide).exp());
                let near = (f64::from(silu) - want).abs() <= 5e-7 * want.abs() + 1e-35;
                assert!(near, "silu({x}) = {silu}");
            }
        }
    }

    #[test]
    fn every_instruction_set_gives_the_same_bits() {
        let x = arguments();
        let bits = |values: Vec<[f32; 3]>| -> Vec<[u32; 3]> {
            let one = |value: f32| if value.is_nan() { 0 } else { value.to_bits() };
            values.into_iter().map(|three| three.map(one)).collect()
        };
        let want = bits(InstructionSet::Portable.run(Functions(&x)));
        for set in InstructionSet::ALL {
            if set.is_available() {
                assert!(bits(set.run(Functions(&x))) == want, "{}", set.name());
            }
        }
    }
}
