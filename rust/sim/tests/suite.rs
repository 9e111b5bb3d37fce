//! The suite's smallest example at a size for every test run; `make bench-simulate` runs all at full size.

use diptych_sim::suite::Suite;
use diptych_sim::suite::{fuzz, markdown};

#[test]
fn random_requests_of_every_kind_break_no_invariant() {
    let example = fuzz(8_000, &mut |_, _| true).expect("no violation");
    assert!(example.holds, "{example:?}");
    let page = markdown(&Suite {
        examples: vec![example],
    });
    assert!(page.contains("| diptych | 8000 |"), "{page}");
}
