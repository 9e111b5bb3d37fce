//! What the next mask of an output costs, token taken and mask made, along outputs that wander through a JSON schema. Medians hide what
//! grammars cost, so percentiles are printed, not estimates of criterion's.
//!
//! `DIPTYCH_TOKENIZER` names the folder of a tokenizer; `DIPTYCH_WALKS` a file for the outputs, one JSON array of ids a line, for others
//! to follow.
#![expect(clippy::print_stdout, reason = "a benchmark prints")]
use std::fmt::Write as _;
use std::path::Path;
use std::time::Instant;

use diptych_text::{Grammar, GrammarCompiler, Matcher, Tokenizer};

const SCHEMA: &str = include_str!("schema.json");
const OUTPUTS: usize = 64;
const MOST_TOKENS: usize = 200;

/// A reproducible sequence.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 20) as usize % limit
    }
}

fn allowed(mask: &[u32]) -> Vec<u32> {
    let all = 0..mask.len() as u32 * 32;
    all.filter(|id| mask[*id as usize / 32] >> (id % 32) & 1 == 1)
        .collect()
}

/// An output of random allowed tokens; adds the microseconds of each mask.
fn walk(mut matcher: Matcher, end: u32, random: &mut Random, times: &mut Vec<f64>) -> Vec<u32> {
    let (mut mask, mut output) = (Vec::new(), Vec::new());
    matcher.mask(&[], &mut mask).expect("within the limits");
    while output.len() < MOST_TOKENS {
        let choices = allowed(&mask);
        let token = choices[random.below(choices.len())];
        if token == end {
            break;
        }
        output.push(token);
        let begun = Instant::now();
        matcher.push(token).expect("it is in the mask");
        matcher.mask(&[], &mut mask).expect("within the limits");
        times.push(begun.elapsed().as_secs_f64() * 1e6);
    }
    output
}

fn measure(name: &str, tokenizer: &Tokenizer) -> Vec<Vec<u32>> {
    let vocabulary = tokenizer.vocabulary();
    // One more id, which ends outputs.
    let end = vocabulary;
    let begun = Instant::now();
    let compiler = GrammarCompiler::new(tokenizer.table(), vocabulary + 1, &[end]);
    let grammar = Grammar::JsonSchema(SCHEMA.to_owned());
    compiler.compile(&grammar).expect("a schema");
    let first = begun.elapsed().as_secs_f64() * 1e3;
    let begun = Instant::now();
    let matcher = compiler.compile(&grammar).expect("a schema");
    let again = begun.elapsed().as_secs_f64() * 1e3;
    let (mut random, mut times) = (Random(0x9e37_79b9_7f4a_7c15), Vec::new());
    let outputs = (0..OUTPUTS).map(|_| walk(matcher.clone(), end, &mut random, &mut times));
    let outputs = outputs.collect();
    times.sort_by(f64::total_cmp);
    let at = |part: f64| times[((times.len() - 1) as f64 * part) as usize];
    println!(
        "mask: {name}: {vocabulary} tokens, {} masks: median {:.1} µs, p99 {:.1}, worst {:.1}, mean {:.1}; compiled in {again:.2} ms, the first grammar {first:.1}",
        times.len(),
        at(0.5),
        at(0.99),
        at(1.0),
        times.iter().sum::<f64>() / times.len() as f64
    );
    outputs
}

fn main() {
    let Some(folder) = std::env::var_os("DIPTYCH_TOKENIZER") else {
        println!("mask: DIPTYCH_TOKENIZER names no folder of a tokenizer");
        return;
    };
    let folder = Path::new(&folder);
    let tokenizer = Tokenizer::from_folder(folder).expect("a folder with tokenizer.json");
    let name = folder.file_name().unwrap_or_default().to_string_lossy();
    let outputs = measure(&name, &tokenizer);
    if let Some(file) = std::env::var_os("DIPTYCH_WALKS") {
        let mut lines = String::new();
        for output in outputs {
            writeln!(lines, "{output:?}").expect("a string takes everything");
        }
        std::fs::write(file, lines).expect("a file that can be written");
    }
}
