//! What the products of each format do differently.

use crate::matrix::{Format, Layout};
use crate::rows::{Halved, Int8Group, Whole};
use crate::simd::{Isa, LANES};

/// The codes of a format.
#[derive(Clone, Copy)]
pub(super) enum Codes {
    /// Bytes less 128.
    Offset,
    /// Up to `greatest`.
    Small { greatest: usize },
}

impl Codes {
    /// Quads that a sum of so much can take: a power of two up to 8.
    #[inline(always)]
    pub(super) const fn quads(self, limit: usize) -> usize {
        let Self::Small { greatest } = self else {
            return 8;
        };
        let most = limit / (2 * greatest * 127);
        match most {
            8.. => 8,
            4..8 => 4,
            _ => 2,
        }
    }
}

/// How a format is read. Addresses are those of a panel's parts.
pub(super) trait Blocks {
    const LAYOUT: Layout;
    const CODES: Codes;
    /// The activations' groups.
    type Row: Int8Group;
    const HAS_MINIMUM: bool = false;
    /// What is known of a unit before its groups.
    type Header: Copy;

    unsafe fn header<I: Isa>(isa: I, unit: *const u8) -> Self::Header;

    /// Scales of a group of the unit and a part of its activations; none where they are 1. `head` is the unit's in the panel's head.
    unsafe fn scale<I: Isa>(
        isa: I,
        head: *const u8,
        header: &Self::Header,
        place: (usize, usize),
    ) -> Option<I::F>;

    /// What is multiplied with the sum of the activations.
    #[inline(always)]
    unsafe fn minimum<I: Isa>(isa: I, _header: &Self::Header, _group: usize) -> I::F {
        isa.splat(0.0)
    }

    /// Small codes of quads 2 × `pair` and 2 × `pair` + 1.
    #[inline(always)]
    unsafe fn codes<I: Isa>(isa: I, from: *const u8, pair: usize) -> [I::B; 2] {
        let bytes = isa.load_bytes(from.wrapping_add(pair * 64));
        [isa.low_nibbles(bytes), isa.high_nibbles(bytes)]
    }

    /// Binary logarithm of the offset of small codes, where they have one.
    const OFFSET: Option<u32> = None;

    /// The sums of a panel as the product gives them.
    #[inline(always)]
    unsafe fn finish<I: Isa>(_isa: I, _panel: *const u8, sum: I::F) -> I::F {
        sum
    }
}

/// Scales of two groups in a header, or of one and its minima.
#[inline(always)]
unsafe fn halves<I: Isa>(isa: I, header: *const u8, which: usize) -> I::F {
    isa.load_f16(header.cast::<u16>().wrapping_add(which * LANES))
}

/// `bytes` with bit `1 << BIT` where the planes say so.
#[inline(always)]
unsafe fn with_planes<I: Isa>(
    isa: I,
    bytes: [I::B; 2],
    plane: *const u8,
    pair: usize,
    value: u8,
) -> [I::B; 2] {
    let bits = plane.cast::<u64>().wrapping_add(2 * pair);
    [
        isa.add_where(bytes[0], bits.read(), value),
        isa.add_where(bytes[1], bits.add(1).read(), value),
    ]
}

pub(super) struct Int8;

impl Blocks for Int8 {
    const LAYOUT: Layout = Layout::of(Format::Int8);
    const CODES: Codes = Codes::Offset;
    type Row = Whole;
    type Header = ();

    #[inline(always)]
    unsafe fn header<I: Isa>(_isa: I, _unit: *const u8) {}
    #[inline(always)]
    unsafe fn scale<I: Isa>(
        _isa: I,
        _head: *const u8,
        _header: &(),
        (_group, _part): (usize, usize),
    ) -> Option<I::F> {
        None
    }
    #[inline(always)]
    unsafe fn finish<I: Isa>(isa: I, panel: *const u8, sum: I::F) -> I::F {
        isa.mul(sum, isa.load(panel.cast()))
    }
}

/// Formats with one scale for each group, two in a header.
macro_rules! scaled {
    ($name:ident, $codes:expr, { $($more:tt)* }) => {
        pub(super) struct $name;

        impl Blocks for $name {
            const LAYOUT: Layout = Layout::of(Format::$name);
            const CODES: Codes = $codes;
            type Row = Halved;
            type Header = *const u8;

            #[inline(always)]
            unsafe fn header<I: Isa>(_isa: I, unit: *const u8) -> *const u8 {
                unit
            }
            #[inline(always)]
            unsafe fn scale<I: Isa>(isa: I, _head: *const u8, header: &*const u8, (group, _part): (usize, usize)) -> Option<I::F> {
                Some(halves(isa, *header, group))
            }
            $($more)*
        }
    };
}

scaled!(Q8_0, Codes::Offset, {});

scaled!(Q4_0, Codes::Small { greatest: 15 }, {
    const OFFSET: Option<u32> = Some(3);
});

scaled!(Q5_0, Codes::Small { greatest: 31 }, {
    const OFFSET: Option<u32> = Some(4);

    #[inline(always)]
    unsafe fn codes<I: Isa>(isa: I, from: *const u8, pair: usize) -> [I::B; 2] {
        let bytes = isa.load_bytes(from.wrapping_add(pair * 64));
        let nibbles = [isa.low_nibbles(bytes), isa.high_nibbles(bytes)];
        with_planes(isa, nibbles, from.wrapping_add(256), pair, 16)
    }
});

scaled!(Q4_1, Codes::Small { greatest: 15 }, {
    const HAS_MINIMUM: bool = true;

    #[inline(always)]
    unsafe fn minimum<I: Isa>(isa: I, header: &*const u8, _group: usize) -> I::F {
        halves(isa, *header, 1)
    }
});

pub(super) struct Q4K;

impl Blocks for Q4K {
    const LAYOUT: Layout = Layout::of(Format::Q4K);
    const CODES: Codes = Codes::Small { greatest: 15 };
    const HAS_MINIMUM: bool = true;
    type Row = Halved;
    /// d and dmin, then scales and minima of the groups.
    type Header = (*const u8, [i8; 256]);

    #[inline(always)]
    unsafe fn header<I: Isa>(isa: I, unit: *const u8) -> Self::Header {
        let packed = unit.wrapping_add(64);
        let mut small = [0_i8; 256];
        for pair in 0..2 {
            let bytes = isa.load_bytes(packed.wrapping_add(pair * 64));
            let nibbles = [isa.low_nibbles(bytes), isa.high_nibbles(bytes)];
            let five = with_planes(isa, nibbles, packed.wrapping_add(128), pair, 16);
            let six = with_planes(isa, five, packed.wrapping_add(160), pair, 32);
            for (half, bytes) in six.into_iter().enumerate() {
                let to = small.as_mut_ptr().add(pair * 128 + half * 64);
                isa.store_bytes(to.cast(), bytes);
            }
        }
        (unit, small)
    }
    #[inline(always)]
    unsafe fn scale<I: Isa>(
        isa: I,
        _head: *const u8,
        header: &Self::Header,
        (group, _part): (usize, usize),
    ) -> Option<I::F> {
        let small = isa.load_i8(header.1.as_ptr().add(group * LANES));
        Some(isa.mul(halves(isa, header.0, 0), isa.to_float(small)))
    }
    #[inline(always)]
    unsafe fn minimum<I: Isa>(isa: I, header: &Self::Header, group: usize) -> I::F {
        let small = isa.load_i8(header.1.as_ptr().add((8 + group) * LANES));
        let minimum = isa.mul(halves(isa, header.0, 1), isa.to_float(small));
        isa.sub(isa.splat(0.0), minimum)
    }
}

pub(super) struct Q6K;

impl Blocks for Q6K {
    const LAYOUT: Layout = Layout::of(Format::Q6K);
    const CODES: Codes = Codes::Small { greatest: 63 };
    const OFFSET: Option<u32> = Some(5);
    type Row = Halved;
    /// Scales of half groups.
    type Header = *const i8;

    #[inline(always)]
    unsafe fn header<I: Isa>(_isa: I, unit: *const u8) -> *const i8 {
        unit.cast()
    }
    #[inline(always)]
    unsafe fn scale<I: Isa>(
        isa: I,
        head: *const u8,
        header: &*const i8,
        (group, part): (usize, usize),
    ) -> Option<I::F> {
        let small = isa.load_i8(header.wrapping_add((2 * group + part) * LANES));
        Some(isa.mul(halves(isa, head, 0), isa.to_float(small)))
    }
    #[inline(always)]
    unsafe fn codes<I: Isa>(isa: I, from: *const u8, pair: usize) -> [I::B; 2] {
        let bytes = isa.load_bytes(from.wrapping_add(pair * 64));
        let nibbles = [isa.low_nibbles(bytes), isa.high_nibbles(bytes)];
        let five = with_planes(isa, nibbles, from.wrapping_add(256), pair, 16);
        with_planes(isa, five, from.wrapping_add(320), pair, 32)
    }
}
