//! The cost of a token: ours, with and without stop strings, next to the tokenizers library's `DecodeStream`; up to the
//! event that a client reads, as a ratio of it; and of encoding.
#[path = "../tests/text/common.rs"]
mod common;
#[path = "../tests/text/kinds.rs"]
mod kinds;

use std::hint::black_box;
use std::sync::Arc;
use std::time::Instant;

use criterion::measurement::WallTime;
use criterion::{
    BatchSize, BenchmarkGroup, BenchmarkId, Criterion, Throughput, criterion_group, criterion_main,
};
use diptych_text::sse::{Chunks, Delta, Endpoint, Identity, View};
use diptych_text::{StreamOptions, TextStream, TokenTable};

const TOKENS: usize = 1_000;
const LONG_STOP: &str = "a string of thirty characters!";

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
    let eight = (0..8).map(|index| format!("\n\nUser {index}:")).collect();
    let cases = [
        ("no_stop", vec![]),
        ("one_stop", vec![LONG_STOP.to_owned()]),
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

/// From ids to the events of a chat.
struct Answer {
    stream: TextStream,
    chunks: Chunks,
    text: String,
    events: Vec<u8>,
}

impl Answer {
    fn new(table: &Arc<TokenTable>, stop: &[String]) -> Self {
        let identity = Identity {
            id: "chatcmpl-0123456789abcdef0123456789abcdef".to_owned(),
            created: 1_767_225_600,
            model: "smollm2-135m-instruct".to_owned(),
        };
        Self {
            stream: stream(table, stop),
            chunks: Chunks::new(Endpoint::Chat, &identity, View::default(), 1),
            text: String::new(),
            events: Vec::new(),
        }
    }

    fn push_all(&mut self, ids: &[u32]) {
        for &id in ids {
            self.text.clear();
            self.events.clear();
            black_box(self.stream.push(id, &mut self.text));
            let delta = Delta {
                text: &self.text,
                token_ids: &[id],
                ..Delta::default()
            };
            self.chunks.push(0, &delta, None, &mut self.events);
            black_box(&self.events);
        }
    }
}

/// Detokenising, a stop string and the event.
fn events(criterion: &mut Criterion) {
    let table = common::table();
    let mut group = criterion.benchmark_group("events");
    group.throughput(Throughput::Elements(TOKENS as u64));
    for (name, text) in [("ascii", "the lazy dog "), ("cjk_in_bytes", "你好，世界")] {
        let ids = cycled(&common::bytes_ids(text.as_bytes()));
        for (case, stop) in [
            ("no_stop", vec![]),
            ("one_stop", vec![LONG_STOP.to_owned()]),
        ] {
            group.bench_function(BenchmarkId::new(case, name), |bencher| {
                bencher.iter_batched_ref(
                    || Answer::new(&table, &stop),
                    |answer| answer.push_all(&ids),
                    BatchSize::SmallInput,
                );
            });
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
            let begun = || {
                let mut answer = Answer::new(&table, &[]);
                answer.push_all(&vec![0x80; before]);
                answer
            };
            bencher.iter_batched_ref(
                begun,
                |answer| answer.push_all(&[0x80; 200]),
                BatchSize::SmallInput,
            );
        });
    }
    group.finish();
}

fn nanoseconds(work: impl FnOnce()) -> f64 {
    let begun = Instant::now();
    work();
    begun.elapsed().as_nanos() as f64
}

/// Medians over rounds that each measure both.
fn medians(mut both: impl FnMut() -> (f64, f64)) -> (f64, f64) {
    let (mut first, mut second): (Vec<f64>, Vec<f64>) = (0..201).map(|_| both()).unzip();
    first.sort_by(f64::total_cmp);
    second.sort_by(f64::total_cmp);
    (first[100], second[100])
}

/// Both costs and their ratio, measured in turns: what a ratio of two estimates of criterion's would be disturbed by
/// happens to both.
#[expect(clippy::print_stdout, reason = "a benchmark prints")]
fn ratios(_: &mut Criterion) {
    let (table, oracle) = (common::table(), common::oracle());
    for text in ["the lazy dog ", "你好，世界"] {
        let ids = cycled(&common::bytes_ids(text.as_bytes()));
        let stop = [LONG_STOP.to_owned()];
        let (ours, library) = medians(|| {
            let mut answer = Answer::new(&table, &stop);
            let ours = nanoseconds(|| answer.push_all(&ids));
            let library = nanoseconds(|| {
                let mut stream = oracle.decode_stream(false);
                for &id in &ids {
                    // On some sequences it fails, which takes no longer.
                    let _ = black_box(stream.step(id));
                }
            });
            (ours / TOKENS as f64, library / TOKENS as f64)
        });
        println!(
            "ratio: {text:?}: detokenise + stop + event {ours:.0} ns a token, DecodeStream alone {library:.0} ns: {:.3}",
            ours / library
        );
    }
    let (first, last) = medians(|| {
        let mut answer = Answer::new(&table, &[]);
        let first = nanoseconds(|| answer.push_all(&[0x80; 200]));
        answer.push_all(&[0x80; 1_600]);
        let last = nanoseconds(|| answer.push_all(&[0x80; 200]));
        (first / 200.0, last / 200.0)
    });
    println!(
        "ratio: 2,000 forced U+FFFD: the last 200 {last:.0} ns a token, the first 200 {first:.0} ns: {:.2}",
        last / first
    );
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

criterion_group!(
    benches,
    byte_level,
    other_kinds,
    events,
    forced_replacement,
    encode,
    ratios
);
criterion_main!(benches);
