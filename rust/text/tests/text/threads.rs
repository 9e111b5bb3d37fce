//! One tokenizer for all threads.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use diptych_text::{StreamOptions, Tokenizer};

use crate::common::{stream, tokenizer};

const THREADS: usize = 64;
const TEXTS: &[&str] = &[
    "in the end, the thé",
    "<|start|>the<think>two words<|end|>",
    "👩‍👩‍👧‍👦 🇨🇿 你好，世界 क्षत्रिय",
    "\u{0}\u{2028}\r\n  \t",
    "",
];

fn both_ways(tokenizer: &Tokenizer, text: &str, special: bool) -> (Vec<u32>, String) {
    let ids = tokenizer.encode(text, special).unwrap();
    let options = StreamOptions {
        skip_special_tokens: special,
        ..StreamOptions::default()
    };
    let decoded = stream(&tokenizer.table(), options, &ids).text();
    (ids, decoded)
}

/// `DIPTYCH_SECONDS` makes it long.
#[test]
fn each_thread_gets_what_one_alone_gets() {
    let tokenizer = tokenizer();
    let alone = |index: usize| {
        both_ways(
            &tokenizer,
            TEXTS[index % TEXTS.len()],
            index.is_multiple_of(2),
        )
    };
    let expected: Vec<_> = (0..2 * TEXTS.len()).map(alone).collect();
    let seconds = std::env::var("DIPTYCH_SECONDS");
    let seconds = seconds.map_or(0, |seconds| seconds.parse().expect("a number of seconds"));
    let end = Instant::now() + Duration::from_secs(seconds);
    let done = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let (alone, expected, done) = (&alone, &expected, &done);
            scope.spawn(move || {
                for round in 0.. {
                    let index = (thread + round) % expected.len();
                    assert_eq!(alone(index), expected[index]);
                    done.fetch_add(1, Ordering::Relaxed);
                    if round >= 20 && Instant::now() >= end {
                        break;
                    }
                }
            });
        }
    });
    assert!(done.into_inner() > 20 * THREADS);
}
