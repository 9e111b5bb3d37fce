//! Products of quantized weights with rows of signed bytes.

use super::Product;
use crate::simd::Isa;

/// As [`Product::run_inside`], checked.
#[inline(always)]
pub(super) unsafe fn run<I: Isa>(_isa: I, product: &Product) {
    unreachable!("{:?} is not served yet", product.matrix.format);
}
