//! The cost of a token: ours, with and without stop strings, next to the tokenizers library's `DecodeStream`.
#[path = "../tests/text/common.rs"]
mod common;

use std::hint::black_box;
use std::sync::Arc;

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use diptych_text::{StreamOptions, TextStream};

const TOKENS: usize = 1_000;

fn texts() -> Vec<(&'static str, Vec<u32>)> {
    let repeat =
        |bytes: &[u8]| common::bytes_ids(&bytes.repeat(TOKENS / bytes.len() + 1)[..TOKENS]);
    vec![
        ("ascii", repeat(b"the lazy dog ")),
        ("cjk_in_bytes", repeat("你好，世界".as_bytes())),
        ("broken", repeat(b"\x80")),
    ]
}

fn push_all(mut stream: TextStream, ids: &[u32], out: &mut String) {
    for &id in ids {
        out.clear();
        black_box(stream.push(id, out));
    }
}

fn detokenise(criterion: &mut Criterion) {
    let table = common::table();
    let oracle = common::oracle();
    let long_stop = "a string of thirty characters!".to_owned();
    let cases = [
        ("no_stop", vec![]),
        ("one_stop", vec![long_stop]),
        (
            "eight_stops",
            (0..8).map(|index| format!("\n\nUser {index}:")).collect(),
        ),
    ];
    let mut group = criterion.benchmark_group("detokenise");
    group.throughput(Throughput::Elements(TOKENS as u64));
    for (text, ids) in texts() {
        for (case, stop) in &cases {
            group.bench_function(BenchmarkId::new(*case, text), |bencher| {
                let mut out = String::new();
                let stream = || {
                    let options = StreamOptions {
                        stop: stop.clone(),
                        ..StreamOptions::default()
                    };
                    TextStream::new(Arc::clone(&table), options).expect("valid stop strings")
                };
                bencher.iter_batched(
                    stream,
                    |stream| push_all(stream, &ids, &mut out),
                    criterion::BatchSize::SmallInput,
                );
            });
        }
        // Its cost on broken text grows with the square of the length, and it fails on some: only whole text is compared.
        if text != "broken" {
            group.bench_function(
                BenchmarkId::new("tokenizers_decode_stream", text),
                |bencher| {
                    bencher.iter(|| {
                        let mut stream = oracle.decode_stream(false);
                        for &id in &ids {
                            black_box(stream.step(id).expect("whole text decodes"));
                        }
                    });
                },
            );
        }
    }
    group.finish();
}

criterion_group!(benches, detokenise);
criterion_main!(benches);
