//! Rotary position embedding: pairs (i, i + half a head) are turned by angles that grow with the position.

use std::io;

use crate::memory::Region;
use crate::simd::{Isa, LANES};

/// Cosines and sines by position, computed as far as positions were met.
///
/// As Su et al. 2021 (rotary embedding) with halves for pairs; an angle is position × frequency in f32.
#[derive(Debug)]
pub struct Rope {
    frequencies: Vec<f32>,
    table: Region,
    positions: usize,
    covered: usize,
}

impl Rope {
    /// For positions below `positions`; one frequency for each pair of a head, scaling applied.
    ///
    /// # Errors
    /// If the system has no memory.
    pub fn new(frequencies: &[f32], positions: usize) -> io::Result<Self> {
        let bytes = positions * frequencies.len() * 2 * size_of::<f32>();
        Ok(Self {
            frequencies: frequencies.to_vec(),
            table: Region::new(bytes, false)?,
            positions,
            covered: 0,
        })
    }

    /// Half of the head's dimensions.
    #[must_use]
    pub fn half(&self) -> usize {
        self.frequencies.len()
    }

    /// Computes what is missing for positions below `positions`.
    ///
    /// # Panics
    /// If that is more than the table was made for.
    pub fn cover(&mut self, positions: usize) {
        assert!(
            positions <= self.positions,
            "a table of {} positions is asked for {positions}",
            self.positions
        );
        let half = self.half();
        for position in self.covered..positions {
            let row = self.row(position).cast_mut();
            for (pair, frequency) in self.frequencies.iter().enumerate() {
                let angle = f64::from(position as f32 * frequency);
                // SAFETY: the row lies within the table, and no other reference is alive.
                unsafe {
                    *row.add(pair) = angle.cos() as f32;
                    *row.add(half + pair) = angle.sin() as f32;
                }
            }
        }
        self.covered = self.covered.max(positions);
    }

    /// Cosines, then sines, of a position.
    pub(crate) fn angles(&self, position: usize) -> *const f32 {
        debug_assert!(position < self.covered);
        self.row(position)
    }

    fn row(&self, position: usize) -> *const f32 {
        let place = position * 2 * self.half();
        let table = self.table.address().cast::<f32>();
        // SAFETY: positions are below those of the table.
        unsafe { table.add(place) }
    }
}

/// Turns one head, `from` [2 × half], into `to` [2 × half], and multiplies it by `factor`.
///
/// # Safety
/// The pointers span that many values; `angles` holds `half` cosines, then as many sines; `to` does not overlap `from`.
#[inline(always)]
pub(crate) unsafe fn rotate<I: Isa>(
    isa: I,
    (angles, half): (*const f32, usize),
    from: *const f32,
    to: *mut f32,
    factor: f32,
) {
    let wide = half / LANES * LANES;
    let scale = isa.splat(factor);
    let mut pair = 0;
    while pair < wide {
        let (cosine, sine) = (
            isa.load(angles.add(pair)),
            isa.load(angles.add(half + pair)),
        );
        let (first, second) = (isa.load(from.add(pair)), isa.load(from.add(half + pair)));
        let low = isa.sub(isa.mul(first, cosine), isa.mul(second, sine));
        let high = isa.add(isa.mul(second, cosine), isa.mul(first, sine));
        isa.store(to.add(pair), isa.mul(low, scale));
        isa.store(to.add(half + pair), isa.mul(high, scale));
        pair += LANES;
    }
    while pair < half {
        let (cosine, sine) = (*angles.add(pair), *angles.add(half + pair));
        let (first, second) = (*from.add(pair), *from.add(half + pair));
        *to.add(pair) = (first * cosine - second * sine) * factor;
        *to.add(half + pair) = (second * cosine + first * sine) * factor;
        pair += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn angles_are_those_of_the_reference() {
        let mut rope = Rope::new(&[1.0, 0.1, 0.01], 5000).unwrap();
        rope.cover(10);
        rope.cover(5000);
        for position in [0, 3, 9, 10, 4999] {
            for (pair, frequency) in [1.0_f32, 0.1, 0.01].into_iter().enumerate() {
                let angle = f64::from(position as f32 * frequency);
                // SAFETY: three cosines and three sines.
                let (cosine, sine) = unsafe {
                    let row = rope.angles(position);
                    (*row.add(pair), *row.add(3 + pair))
                };
                assert!((f64::from(cosine) - angle.cos()).abs() < 1e-7);
                assert!((f64::from(sine) - angle.sin()).abs() < 1e-7);
            }
        }
    }

    #[test]
    #[should_panic(expected = "a table of 4 positions is asked for 5")]
    fn no_position_beyond_the_table() {
        Rope::new(&[1.0], 4).unwrap().cover(5);
    }
}
