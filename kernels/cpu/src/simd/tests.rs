//! Every implementation against the scalar one, bit by bit.

use super::*;

/// Values of every kind: ordinary, large, tiny, subnormal, zero of both signs, infinite, NaN.
fn bits(seed: &mut u64) -> u32 {
    *seed ^= *seed << 13;
    *seed ^= *seed >> 7;
    *seed ^= *seed << 17;
    let random = (*seed >> 20) as u32;
    match *seed % 16 {
        0 => random & 0x807f_ffff,
        1 => random & 0x8000_0000,
        2 => (random & 0x8000_0000) | 0x7f80_0000,
        3 => random | 0x7f80_0000,
        4..=7 => random,
        _ => (random & 0x807f_ffff) | ((115 + (*seed >> 56) as u32 % 24) << 23),
    }
}

/// Runs every operation on arrays of bits and gives all results as bits.
struct Everything<'a> {
    a: &'a [u32; 16],
    b: &'a [u32; 16],
    c: &'a [u32; 16],
}

#[derive(Default)]
struct Results {
    exact: Vec<u32>,
    /// Lanes that are NaN may differ in their payload.
    floats: Vec<u32>,
}

impl Kernel for Everything<'_> {
    type Output = Results;

    #[inline(always)]
    fn run<I: Isa>(self, isa: I) -> Results {
        let mut out = Results::default();
        self.arithmetic(isa, &mut out.floats);
        self.choices(isa, &mut out.exact);
        self.integers(isa, &mut out.exact);
        self.stores(isa, &mut out.exact);
        out
    }
}

impl Everything<'_> {
    #[inline(always)]
    fn arithmetic<I: Isa>(&self, isa: I, out: &mut Vec<u32>) {
        let (a, b, c) = (float(isa, self.a), float(isa, self.b), float(isa, self.c));
        for value in [
            isa.add(a, b),
            isa.sub(a, b),
            isa.mul(a, b),
            isa.div(a, b),
            isa.fma(a, b, c),
            isa.max(a, b),
            isa.min(a, b),
            isa.sqrt(a),
            isa.abs(a),
            isa.dot_bf16(c, pair(isa, self.a), pair(isa, self.b)),
            isa.low(isa.pack_pairs(a, b)),
            isa.high(isa.pack_pairs(a, b)),
            unsafe { isa.load_f16(self.a.as_ptr().cast()) },
            isa.splat(isa.reduce_add(a)),
        ] {
            keep(isa, out, value);
        }
    }

    #[inline(always)]
    fn choices<I: Isa>(&self, isa: I, out: &mut Vec<u32>) {
        let (a, b, c) = (float(isa, self.a), float(isa, self.b), float(isa, self.c));
        let ints = (int(isa, self.a), int(isa, self.b));
        for value in [
            isa.low(pair(isa, self.a)),
            isa.high(pair(isa, self.a)),
            isa.select(isa.greater(a, b), a, b),
            isa.select(isa.is_nan(a), b, c),
            isa.as_float(ints.0),
            isa.to_float(ints.0),
            unsafe { isa.load_bf16(self.a.as_ptr().cast()) },
        ] {
            keep(isa, out, value);
        }
        let count = self.c[0] as usize % 20;
        for mask in [isa.greater(a, b), isa.is_nan(a), isa.first(count)] {
            keep_int(isa, out, isa.select_int(mask, ints.0, ints.1));
            out.push(u32::from(isa.any(mask)));
        }
        let numbers = isa.abs(isa.select(isa.is_nan(a), isa.splat(0.0), a));
        out.push(isa.reduce_max(numbers).to_bits());
    }

    #[inline(always)]
    fn integers<I: Isa>(&self, isa: I, out: &mut Vec<u32>) {
        let (a, b) = (int(isa, self.a), int(isa, self.b));
        let (bytes, others) = (byte(isa, self.a), byte(isa, self.b));
        let (zero, ones) = (isa.splat_int(0), isa.splat_bytes(0x0101_0101));
        let bits = u64::from(self.a[1]) << 32 | u64::from(self.b[1]);
        for value in [
            isa.add_int(a, b),
            isa.shift_left::<23>(a),
            isa.as_int(float(isa, self.a)),
            isa.to_int(isa.to_float(isa.dot_bytes(zero, bytes, others))),
            isa.dot_bytes(int(isa, self.c), bytes, others),
            isa.dot_bytes(zero, isa.low_nibbles(bytes), ones),
            isa.dot_bytes(zero, isa.high_nibbles(bytes), ones),
            isa.dot_bytes(zero, isa.add_where(bytes, bits, 16), ones),
            unsafe { isa.load_i8(self.a.as_ptr().cast()) },
            offset_sum(isa, self.a, self.b),
            small_sum(isa, self.a, self.b),
        ] {
            keep_int(isa, out, value);
        }
    }

    #[inline(always)]
    fn stores<I: Isa>(&self, isa: I, out: &mut Vec<u32>) {
        let a = float(isa, self.a);
        unsafe {
            let mut bytes = [0_i8; 16];
            isa.store_i8(bytes.as_mut_ptr(), isa.load_i8(self.b.as_ptr().cast()));
            out.extend(bytes.map(|byte| byte as u32));
            let mut words = [0_u32; 16];
            isa.store_bytes(words.as_mut_ptr().cast(), byte(isa, self.a));
            out.extend(words);
            let mut pairs = [0_u16; 32];
            let (even, odd) = (isa.low(pair(isa, self.a)), isa.high(pair(isa, self.b)));
            isa.store_pairs(pairs.as_mut_ptr(), isa.join_pairs(even, odd));
            out.extend(pairs.map(u32::from));
            let mut halves = [0_u16; 16];
            isa.store_bf16(halves.as_mut_ptr(), a);
            out.extend(halves.map(u32::from));
            isa.store_f16(halves.as_mut_ptr(), a);
            out.extend(halves.map(u32::from));
        }
    }
}

#[inline(always)]
fn float<I: Isa>(isa: I, values: &[u32; 16]) -> I::F {
    unsafe { isa.load(values.as_ptr().cast()) }
}

#[inline(always)]
fn int<I: Isa>(isa: I, values: &[u32; 16]) -> I::I {
    unsafe { isa.load_int(values.as_ptr().cast()) }
}

#[inline(always)]
fn byte<I: Isa>(isa: I, values: &[u32; 16]) -> I::B {
    unsafe { isa.load_bytes(values.as_ptr().cast()) }
}

#[inline(always)]
fn pair<I: Isa>(isa: I, values: &[u32; 16]) -> I::P {
    unsafe { isa.load_pairs(values.as_ptr().cast()) }
}

#[inline(always)]
fn keep<I: Isa>(isa: I, out: &mut Vec<u32>, value: I::F) {
    let mut lanes = [0.0_f32; 16];
    unsafe { isa.store(lanes.as_mut_ptr(), value) };
    out.extend(lanes.map(f32::to_bits));
}

#[inline(always)]
fn keep_int<I: Isa>(isa: I, out: &mut Vec<u32>, value: I::I) {
    let mut lanes = [0_i32; 16];
    unsafe { isa.store_int(lanes.as_mut_ptr(), value) };
    out.extend(lanes.map(|lane| lane as u32));
}

/// No byte −128.
fn activations(values: &[u32; 16]) -> [u32; 16] {
    values.map(|four| {
        u32::from_le_bytes(
            four.to_le_bytes()
                .map(|byte| if byte == 128 { 129 } else { byte }),
        )
    })
}

/// The sum over the lane's four products, (a − 128) × b.
#[inline(always)]
fn offset_sum<I: Isa>(isa: I, a: &[u32; 16], b: &[u32; 16]) -> I::I {
    let b = activations(b);
    let minus_sums: [i32; 16] = b.map(|four| {
        -four
            .to_le_bytes()
            .iter()
            .map(|&byte| i32::from(byte as i8))
            .sum::<i32>()
    });
    unsafe {
        let start = isa.offset_start(isa.load_int(minus_sums.as_ptr()));
        let a = isa.offset_bytes(isa.load_bytes(a.as_ptr().cast()));
        isa.dot_offset(start, a, isa.load_bytes(b.as_ptr().cast()))
    }
}

/// As many products of each width as 16 bits hold.
#[inline(always)]
fn small_sum<I: Isa>(isa: I, a: &[u32; 16], b: &[u32; 16]) -> I::I {
    let b = activations(b);
    let mut sum = isa.splat_int(0);
    for (mask, times) in [(0x0f0f_0f0f, 8), (0x1f1f_1f1f, 4), (0x3f3f_3f3f, 2)] {
        let a = a.map(|four| four & mask);
        let mut small = isa.small_start(sum);
        for _ in 0..times {
            small = unsafe {
                isa.dot_small(
                    small,
                    isa.load_bytes(a.as_ptr().cast()),
                    isa.load_bytes(b.as_ptr().cast()),
                )
            };
        }
        sum = isa.widen(sum, small);
    }
    sum
}

#[test]
fn every_operation_gives_the_bits_of_the_scalar_one() {
    let mut seed = 0x9e37_79b9_7f4a_7c15;
    for set in InstructionSet::ALL
        .into_iter()
        .filter(|set| set.is_available())
    {
        for round in 0..20_000 {
            let [a, b, c] =
                [(); 3].map(|()| std::array::from_fn::<u32, 16, _>(|_| bits(&mut seed)));
            let run = |set: InstructionSet| {
                set.run(Everything {
                    a: &a,
                    b: &b,
                    c: &c,
                })
            };
            let (got, want) = (run(set), run(InstructionSet::Portable));
            let place = got
                .exact
                .iter()
                .zip(&want.exact)
                .position(|(got, want)| got != want);
            assert_eq!(
                place,
                None,
                "{} round {round} gives {:x?} for {:x?}",
                set.name(),
                place.map(|i| got.exact[i]),
                place.map(|i| want.exact[i])
            );
            for (place, (got, want)) in got.floats.iter().zip(&want.floats).enumerate() {
                let nan = f32::from_bits(*got).is_nan() && f32::from_bits(*want).is_nan();
                assert!(
                    nan || got == want,
                    "{} operation {} lane {}: {got:x} is not {want:x}: {a:x?} {b:x?} {c:x?}",
                    set.name(),
                    place / 16,
                    place % 16
                );
            }
        }
    }
}

#[test]
fn names_read_back() {
    for set in InstructionSet::ALL {
        assert_eq!(set.name().parse(), Ok(set));
    }
    assert!("sse9".parse::<InstructionSet>().is_err());
}

#[test]
fn the_extremes_of_small_and_offset_sums_are_exact() {
    for set in InstructionSet::ALL
        .into_iter()
        .filter(|set| set.is_available())
    {
        for byte in [0x7f7f_7f7f, 0x8181_8181, 0x7f81_7f81] {
            for weight in [0, u32::MAX] {
                let run = |set: InstructionSet| {
                    set.run(Everything {
                        a: &[weight; 16],
                        b: &[byte; 16],
                        c: &[0; 16],
                    })
                };
                assert_eq!(run(set).exact, run(InstructionSet::Portable).exact);
            }
        }
    }
}
