//! Blocks of ggml, as `ggml-common.h` defines them and `dequantize_row_*` in `ggml-quants.c` reads them.

use half::f16;

use super::{Encoding, GROUP, Group};

/// Group `index` of a row of a file.
pub(super) fn group(encoding: Encoding, row: &[u8], index: usize) -> Group {
    let (weights, bytes) = encoding.block();
    let block = &row[index / (weights / GROUP) * bytes..][..bytes];
    match encoding {
        Encoding::Q4_0 => Group {
            codes: nibbles(&block[2..18]),
            scale: half_at(block, 0),
            ..Group::default()
        },
        Encoding::Q4_1 => Group {
            codes: nibbles(&block[4..20]),
            scale: half_at(block, 0),
            minimum: half_at(block, 2),
            ..Group::default()
        },
        Encoding::Q5_0 => {
            let high = u32::from_le_bytes([block[2], block[3], block[4], block[5]]);
            let low = nibbles(&block[6..22]);
            Group {
                codes: std::array::from_fn(|i| low[i] | ((high >> i) as u8 & 1) << 4),
                scale: half_at(block, 0),
                ..Group::default()
            }
        }
        Encoding::Q8_0 => Group {
            codes: std::array::from_fn(|i| block[2 + i] ^ 128),
            scale: half_at(block, 0),
            ..Group::default()
        },
        Encoding::Q4K => q4k(block, index % 8),
        Encoding::Q6K => q6k(block, index % 8),
        Encoding::F32 | Encoding::Bf16 | Encoding::F16 => {
            unreachable!("{encoding:?} has no blocks")
        }
    }
}

fn half_at(block: &[u8], at: usize) -> f16 {
    f16::from_le_bytes([block[at], block[at + 1]])
}

/// Weights 0..16 in the low halves of 16 bytes, 16..32 in the high ones.
fn nibbles(bytes: &[u8]) -> [u8; GROUP] {
    std::array::from_fn(|i| bytes[i % 16] >> (i / 16 * 4) & 15)
}

/// d, dmin, 12 bytes of 6-bit scales and minima, then 32 bytes of nibbles for two groups each.
fn q4k(block: &[u8], group: usize) -> Group {
    let packed = &block[4..16];
    let small = if group < 4 {
        [packed[group] & 63, packed[group + 4] & 63]
    } else {
        [
            packed[group + 4] & 15 | packed[group - 4] >> 6 << 4,
            packed[group + 4] >> 4 | packed[group] >> 6 << 4,
        ]
    };
    let codes = &block[16 + group / 2 * GROUP..][..GROUP];
    Group {
        codes: std::array::from_fn(|i| codes[i] >> (group % 2 * 4) & 15),
        scale: half_at(block, 0),
        minimum: half_at(block, 2),
        small,
    }
}

/// 128 bytes of low nibbles, 64 of upper bit pairs, 16 signed scales, d.
fn q6k(block: &[u8], group: usize) -> Group {
    // Halves of 128 weights; in each, groups 0..4.
    let (half, part) = (group / 4, group % 4);
    let low = &block[half * 64 + part % 2 * GROUP..][..GROUP];
    let high = &block[128 + half * 32..][..GROUP];
    Group {
        codes: std::array::from_fn(|i| {
            low[i] >> (part / 2 * 4) & 15 | (high[i] >> (part * 2) & 3) << 4
        }),
        scale: half_at(block, 208),
        small: [block[192 + group * 2], block[193 + group * 2]],
        ..Group::default()
    }
}
