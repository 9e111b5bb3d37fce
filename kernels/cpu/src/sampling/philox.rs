//! Philox 4×32-10: a random number is a function of a key and a counter, so streams survive anything.
//!
//! J. Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011.

const MULTIPLIERS: [u32; 2] = [0xD251_1F53, 0xCD9E_8D57];
const WEYL: [u32; 2] = [0x9E37_79B9, 0xBB67_AE85];
const ROUNDS: usize = 10;

/// High and low word of the product.
fn multiply(a: u32, b: u32) -> (u32, u32) {
    let product = u64::from(a) * u64::from(b);
    ((product >> 32) as u32, product as u32)
}

/// Four random words.
#[must_use]
pub fn philox(counter: [u32; 4], key: [u32; 2]) -> [u32; 4] {
    let ([mut x0, mut x1, mut x2, mut x3], [mut k0, mut k1]) = (counter, key);
    for _ in 0..ROUNDS {
        let (high0, low0) = multiply(MULTIPLIERS[0], x0);
        let (high1, low1) = multiply(MULTIPLIERS[1], x2);
        (x0, x1, x2, x3) = (high1 ^ x1 ^ k0, low1, high0 ^ x3 ^ k1, low0);
        (k0, k1) = (k0.wrapping_add(WEYL[0]), k1.wrapping_add(WEYL[1]));
    }
    [x0, x1, x2, x3]
}

/// A number in [0, 1), a multiple of 2⁻⁵³.
///
/// Key: the seed's low and high word; counter: (output index, choice index, 0, 0); number: the upper 27 bits of word 0
/// over the upper 26 of word 1.
#[must_use]
pub fn uniform(seed: u64, output_index: u32, choice_index: u32) -> f64 {
    let key = [seed as u32, (seed >> 32) as u32];
    let words = philox([output_index, choice_index, 0, 0], key);
    let number = (u64::from(words[0] >> 5) << 26) + u64::from(words[1] >> 6);
    number as f64 * (-53_f64).exp2()
}
