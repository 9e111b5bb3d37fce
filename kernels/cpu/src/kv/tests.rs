//! Sizes and places.

use super::*;

const SHAPE: KvShape = KvShape {
    layers: 3,
    blocks: 5,
    block_size: 16,
    kv_heads: 3,
    head_dim: 64,
    format: KvFormat::Bf16,
};

#[test]
fn a_block_of_the_sample_model_takes_what_its_numbers_take() {
    assert_eq!(SHAPE.bytes_per_block(), 3 * 16 * 3 * 2 * 64 * 2);
    let bytes = KvShape {
        format: KvFormat::Int8,
        ..SHAPE
    };
    assert_eq!(bytes.bytes_per_block(), 3 * 16 * 3 * (2 * 64 + 8));
}

#[test]
fn unserved_sizes_are_refused_by_name() {
    let refused = |shape: KvShape, text: &str| {
        let error = KvPool::new(shape, false).unwrap_err().to_string();
        assert!(error.contains(text), "{error:?} does not say {text:?}");
    };
    refused(
        KvShape {
            block_size: 24,
            ..SHAPE
        },
        "block_size = 24",
    );
    refused(
        KvShape {
            block_size: 512,
            ..SHAPE
        },
        "block_size = 512",
    );
    refused(
        KvShape {
            head_dim: 12,
            ..SHAPE
        },
        "head_dim = 12",
    );
    refused(KvShape { blocks: 0, ..SHAPE }, "blocks = 0");
}

#[test]
fn copies_and_new_pages_change_no_other_block() {
    let pool = KvPool::new(SHAPE, true).unwrap();
    let bytes = || {
        // SAFETY: the region's own bytes.
        unsafe { std::slice::from_raw_parts(pool.region().address(), pool.region().bytes()) }
            .to_vec()
    };
    // SAFETY: nobody else has the pool.
    unsafe {
        for index in 0..pool.region().bytes() {
            pool.region()
                .address()
                .add(index)
                .write(index as u8 ^ (index >> 12) as u8);
        }
        let before = bytes();
        pool.populate(0..5).unwrap();
        pool.populate(1..4).unwrap();
        assert!(bytes() == before);
        pool.copy_block(1, 3);
        let (mut want, block) = (before.clone(), SHAPE.bytes_per_block());
        want.copy_within(block..2 * block, 3 * block);
        assert!(bytes() == want);
        pool.fill(0xff);
        assert!(bytes().iter().all(|byte| *byte == 0xff));
    }
}
