//! Rounding of floats to quantized formats.
//!
//! For four bits a group's scale (and minimum) is searched: candidates near "largest value ÷ largest code", each fitted
//! by least squares to the codes it gives and rounded to half floats; the least squared error of what will be read back
//! wins. The search of ggml (`make_qx_quants` and `make_qkx2_quants` in `ggml-quants.c`) is alike, but judges before the
//! scale is rounded.

use half::f16;

use super::{Format, GROUP, Group};
use crate::simd::{Isa, Kernel, LANES};

/// Rounds a row of finite values, whole groups of them, into one [`Group`] each. Gives the output's scale for Int8.
pub(super) struct Round<'a> {
    pub(super) format: Format,
    pub(super) values: &'a [f32],
    pub(super) groups: &'a mut [Group],
}

impl Kernel for Round<'_> {
    type Output = f32;

    #[inline(always)]
    fn run<I: Isa>(self, isa: I) -> f32 {
        let groups = self.values.as_chunks::<GROUP>().0;
        let mut output_scale = 0.0;
        if self.format == Format::Int8 {
            let largest = groups.iter().map(|values| largest(isa, load(isa, values)));
            output_scale = largest.fold(0.0, f32::max) / 127.0;
        }
        for (values, group) in groups.iter().zip(self.groups) {
            let values = load(isa, values);
            let trial = match self.format {
                Format::Q4_0 => search_scale(isa, values),
                Format::Q4_1 => search_scale_and_minimum(isa, values),
                Format::Int8 => Trial::new(isa, values, &BYTES, (output_scale, 0.0)),
                _ => {
                    let scale = f16::from_f32(largest(isa, values) / 127.0);
                    Trial::halves(isa, values, &BYTES, (scale, f16::ZERO))
                }
            };
            *group = trial.group(isa);
        }
        output_scale
    }
}

/// The values of a group.
type Values<I> = [<I as Isa>::F; 2];

#[inline(always)]
fn load<I: Isa>(isa: I, values: &[f32; GROUP]) -> Values<I> {
    // SAFETY: 32 values.
    unsafe {
        [
            isa.load(values.as_ptr()),
            isa.load(values.as_ptr().add(LANES)),
        ]
    }
}

#[inline(always)]
fn largest<I: Isa>(isa: I, values: Values<I>) -> f32 {
    isa.reduce_max(isa.max(isa.abs(values[0]), isa.abs(values[1])))
}

/// Codes that a format has, and what it adds before it stores them.
struct Codes {
    least: f32,
    greatest: f32,
    offset: u8,
}

const BYTES: Codes = Codes {
    least: -127.0,
    greatest: 127.0,
    offset: 128,
};
const CENTRED: Codes = Codes {
    least: -8.0,
    greatest: 7.0,
    offset: 8,
};
const NIBBLES: Codes = Codes {
    least: 0.0,
    greatest: 15.0,
    offset: 0,
};

/// A scale and a minimum with the codes they give.
#[derive(Clone, Copy)]
struct Trial<I: Isa> {
    scale: f16,
    minimum: f16,
    codes: [I::I; 2],
    offset: u8,
    /// Σ of squared errors; NaN where the scale is not finite.
    error: f32,
}

impl<I: Isa> Trial<I> {
    #[inline(always)]
    fn new(isa: I, values: Values<I>, codes: &Codes, (scale, minimum): (f32, f32)) -> Self {
        let (scales, minima) = (isa.splat(scale), isa.splat(minimum));
        let (least, greatest) = (isa.splat(codes.least), isa.splat(codes.greatest));
        let mut chosen = [isa.splat_int(0); 2];
        let mut squares = isa.splat(0.0);
        for (value, code) in values.into_iter().zip(&mut chosen) {
            let exact = isa.div(isa.sub(value, minima), scales);
            *code = isa.to_int(isa.max(isa.min(exact, greatest), least));
            let read = isa.add(isa.mul(isa.to_float(*code), scales), minima);
            let error = isa.sub(value, read);
            squares = isa.fma(error, error, squares);
        }
        Self {
            scale: f16::ZERO,
            minimum: f16::ZERO,
            codes: chosen,
            offset: codes.offset,
            error: isa.reduce_add(squares),
        }
    }

    /// The same with what half floats hold.
    #[inline(always)]
    fn halves(isa: I, values: Values<I>, codes: &Codes, (scale, minimum): (f16, f16)) -> Self {
        Self {
            scale,
            minimum,
            ..Self::new(isa, values, codes, (scale.to_f32(), minimum.to_f32()))
        }
    }

    #[inline(always)]
    fn better(self, other: Self) -> Self {
        if other.error < self.error {
            other
        } else {
            self
        }
    }

    #[inline(always)]
    fn group(self, isa: I) -> Group {
        let mut codes = [0_i8; GROUP];
        // SAFETY: 32 codes, from −128 to 127.
        unsafe {
            isa.store_i8(codes.as_mut_ptr(), self.codes[0]);
            isa.store_i8(codes.as_mut_ptr().add(LANES), self.codes[1]);
        }
        Group {
            codes: codes.map(|code| (code as u8).wrapping_add(self.offset)),
            scale: self.scale,
            minimum: self.minimum,
            small: [0; 2],
        }
    }
}

/// Sums over the codes q and values x of a group, for least squares.
struct Moments {
    codes: f32,
    squares: f32,
    values: f32,
    products: f32,
}

impl Moments {
    #[inline(always)]
    fn new<I: Isa>(isa: I, values: Values<I>, codes: [I::I; 2]) -> Self {
        let [a, b] = codes.map(|codes| isa.to_float(codes));
        let [x, y] = values;
        Self {
            codes: isa.reduce_add(isa.add(a, b)),
            squares: isa.reduce_add(isa.fma(b, b, isa.mul(a, a))),
            values: isa.reduce_add(isa.add(x, y)),
            products: isa.reduce_add(isa.fma(b, y, isa.mul(a, x))),
        }
    }

    /// The best scale without a minimum.
    #[inline(always)]
    fn scale(&self) -> f16 {
        f16::from_f32(self.products / self.squares)
    }

    /// The best scale and minimum.
    #[inline(always)]
    fn line(&self) -> (f16, f16) {
        let count = GROUP as f32;
        let determinant = count * self.squares - self.codes * self.codes;
        let scale = (count * self.products - self.values * self.codes) / determinant;
        let minimum = (self.squares * self.values - self.codes * self.products) / determinant;
        (f16::from_f32(scale), f16::from_f32(minimum))
    }
}

/// Codes −8..=7: the value of largest magnitude takes about −8, or about 7.
#[inline(always)]
fn search_scale<I: Isa>(isa: I, values: Values<I>) -> Trial<I> {
    let highest = isa.reduce_max(isa.max(values[0], values[1]));
    let magnitude = largest(isa, values);
    let extreme = if highest >= magnitude {
        magnitude
    } else {
        -magnitude
    };
    let plain = f16::from_f32(extreme / -8.0);
    let mut best = Trial::halves(isa, values, &CENTRED, (plain, f16::ZERO));
    if magnitude == 0.0 {
        return best;
    }
    for step in 0..26 {
        let step = step as f32;
        let code = if step < 17.0 {
            -7.0 - step / 8.0
        } else {
            6.0 + (step - 17.0) / 4.0
        };
        let mut trial = Trial::new(isa, values, &CENTRED, (extreme / code, 0.0));
        for _ in 0..2 {
            let scale = Moments::new(isa, values, trial.codes).scale();
            trial = Trial::halves(isa, values, &CENTRED, (scale, f16::ZERO));
            best = best.better(trial);
        }
    }
    best
}

/// Codes 0..=15 from the least value to the greatest, or somewhat short of them.
#[inline(always)]
fn search_scale_and_minimum<I: Isa>(isa: I, values: Values<I>) -> Trial<I> {
    let negative = values.map(|value| isa.sub(isa.splat(0.0), value));
    let highest = isa.reduce_max(isa.max(values[0], values[1]));
    let lowest = -isa.reduce_max(isa.max(negative[0], negative[1]));
    let range = highest - lowest;
    let plain = (f16::from_f32(range / 15.0), f16::from_f32(lowest));
    let mut best = Trial::halves(isa, values, &NIBBLES, plain);
    if range == 0.0 {
        return best;
    }
    for step in 0..24 {
        let scale = range / (14.0 + step as f32 / 8.0);
        let mut trial = Trial::new(isa, values, &NIBBLES, (scale, lowest));
        for _ in 0..2 {
            let line = Moments::new(isa, values, trial.codes).line();
            trial = Trial::halves(isa, values, &NIBBLES, line);
            best = best.better(trial);
        }
    }
    best
}
