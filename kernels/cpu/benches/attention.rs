//! Attention under several layouts of the cache, as ratios from interleaved runs.
#![allow(clippy::print_stdout, reason = "a benchmark prints what it measured")]

use diptych_cpu::attention::bench::{CHOSEN, Load, alternatives, kv_layout, measure};

fn main() -> std::io::Result<()> {
    println!(
        "{:8} {:34} {:>6} {:>12}",
        "context", "decode", "GB/s", "time ratio"
    );
    for line in kv_layout(&[256, 1024, 4096, 8192], 10)? {
        println!(
            "{:8} {:34} {:6.1} {:12.3}",
            line.context, line.name, line.gigabytes, line.ratio
        );
    }
    let load = Load {
        rows: 1,
        context: 4096,
        queries: 128,
        layers: 1,
        members: 1,
    };
    // Two products of two operations, for 9 heads of 64 dimensions.
    let operations = 128.0 * (4096.0 - 64.0) * 9.0 * 64.0 * 4.0;
    let mut variants = alternatives();
    variants.retain(|one| one.panels);
    variants.insert(0, CHOSEN);
    let (times, _) = measure(&variants, load, 5)?;
    println!("prefill of 128 positions at 4,096");
    for (one, time) in variants.iter().zip(&times) {
        println!(
            "{:8} {:34} {:6.1} GFLOP/s {:4.3}",
            "",
            one.name,
            operations / time / 1e9,
            time / times[0]
        );
    }
    Ok(())
}
