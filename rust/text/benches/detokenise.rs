//! The cost of a token: ours, with and without stop strings, next to the tokenizers library's `DecodeStream`; and of
//! encoding.
#[path = "../tests/text/common.rs"]
mod common;
#[path = "../tests/text/kinds.rs"]
mod kinds;

use std::hint::black_box;
use std::sync::Arc;

use criterion::measurement::WallTime;
use criterion::{
    BatchSize, BenchmarkGroup, BenchmarkId, Criterion, Throughput, criterion_group, criterion_main,
};
use diptych_text::{StreamOptions, TextStream, TokenTable};

const TOKENS: usize = 1_000;

fn cycled(ids: &[u32]) -> Vec<u32> {
    ids.iter().copied().cycle().take(TOKENS).collect()
}

fn stream(table: &Arc<TokenTable>, stop: &[String]) -> TextStream {
    let options = StreamOptions {
        stop: stop.to_vec(),
        ..StreamOptions::default()
    };
    TextStream::new(Arc::clone(table), options, &[]).expect("valid stop strings")
}

fn push_all(stream: &mut TextStream, ids: &[u32], out: &mut String) {
    for &id in ids {
        out.clear();
        black_box(stream.push(id, out));
    }
}

fn bench_ours(
    group: &mut BenchmarkGroup<'_, WallTime>,
    id: BenchmarkId,
    table: &Arc<TokenTable>,
    stop: &[String],
    ids: &[u32],
) {
    group.bench_function(id, |bencher| {
        let mut out = String::new();
        bencher.iter_batched(
            || stream(table, stop),
            |mut stream| push_all(&mut stream, ids, &mut out),
            BatchSize::SmallInput,
        );
    });
}

fn bench_library(
    group: &mut BenchmarkGroup<'_, WallTime>,
    text: &str,
    tokenizer: &tokenizers::Tokenizer,
    ids: &[u32],
) {
    let id = BenchmarkId::new("tokenizers_decode_stream", text);
    group.bench_function(id, |bencher| {
        bencher.iter(|| {
            let mut stream = tokenizer.decode_stream(false);
            for &id in ids {
                // On some sequences it fails, which takes no longer.
                let _ = black_box(stream.step(id));
            }
        });
    });
}

/// Byte-level BPE, with each number of stop strings.
fn byte_level(criterion: &mut Criterion) {
    let (table, oracle) = (common::table(), common::oracle());
    let long_stop = "a string of thirty characters!".to_owned();
    let eight = (0..8).map(|index| format!("\n\nUser {index}:")).collect();
    let cases = [
        ("no_stop", vec![]),
        ("one_stop", vec![long_stop]),
        ("eight_stops", eight),
    ];
    let texts = [
        ("ascii", cycled(&common::bytes_ids(b"the lazy dog "))),
        (
            "cjk_in_bytes",
            cycled(&common::bytes_ids("你好，世界".as_bytes())),
        ),
        ("broken", cycled(&[0x80])),
    ];
    let mut group = criterion.benchmark_group("detokenise");
    group.throughput(Throughput::Elements(TOKENS as u64));
    for (text, ids) in &texts {
        for (case, stop) in &cases {
            bench_ours(&mut group, BenchmarkId::new(*case, text), &table, stop, ids);
        }
        // Its cost on broken text grows with the square of the length, and it fails on some: only whole text is compared.
        if *text != "broken" {
            bench_library(&mut group, text, &oracle, ids);
        }
    }
    group.finish();
}

/// The other kinds of decoders, without stop strings.
fn other_kinds(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("kinds");
    group.throughput(Throughput::Elements(TOKENS as u64));
    for name in [
        "llama",
        "metaspace",
        "word_piece",
        "end_of_word",
        "stripped_tail",
    ] {
        let kind = kinds::kind(name);
        let bytes = kinds::fallback("你好".as_bytes());
        let words = ["a", "▁a", "ab", ".", "##b", "▁▁b"].map(kinds::word);
        let ids = cycled(&[&words[..], &bytes].concat());
        bench_ours(
            &mut group,
            BenchmarkId::new("no_stop", name),
            &kind.table,
            &[],
            &ids,
        );
        // The library panics where more is stripped than there is.
        if name != "stripped_tail" {
            bench_library(&mut group, name, &kind.oracle, &ids);
        }
    }
    group.finish();
}

/// Two hundred forced U+FFFD: the first of two thousand, and the last.
fn forced_replacement(criterion: &mut Criterion) {
    let table = common::table();
    let mut group = criterion.benchmark_group("forced_replacement");
    group.throughput(Throughput::Elements(200));
    for (name, before) in [("first_200", 0), ("last_200", 1_800)] {
        group.bench_function(name, |bencher| {
            let mut out = String::new();
            let begun = || {
                let mut stream = stream(&table, &[]);
                push_all(&mut stream, &vec![0x80; before], &mut String::new());
                stream
            };
            bencher.iter_batched(
                begun,
                |mut stream| push_all(&mut stream, &[0x80; 200], &mut out),
                BatchSize::SmallInput,
            );
        });
    }
    group.finish();
}

/// Texts of a thousand tokens, of one byte a character and of more.
fn encode(criterion: &mut Criterion) {
    let tokenizer = common::tokenizer();
    let mut group = criterion.benchmark_group("encode");
    for (name, part) in [
        ("ascii", "a quick brown fox. "),
        ("cjk", "你好，世界。"),
        ("emoji", "👩‍👩‍👧‍👦 🇨🇿 "),
    ] {
        let tokens = tokenizer
            .encode(part, false)
            .expect("any text encodes")
            .len();
        let text = part.repeat(TOKENS / tokens);
        let tokens = tokenizer
            .encode(&text, false)
            .expect("any text encodes")
            .len();
        group.throughput(Throughput::Elements(tokens as u64));
        group.bench_function(name, |bencher| {
            bencher.iter(|| black_box(tokenizer.encode(&text, false)));
        });
    }
    group.finish();
}

criterion_group!(benches, byte_level, other_kinds, forced_replacement, encode);
criterion_main!(benches);
