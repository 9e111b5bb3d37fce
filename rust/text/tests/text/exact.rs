//! The promise: joined deltas are the tokenizer's own decode, for every kind of decoder, any ids, any prompt, any cut.

use std::sync::Arc;

use diptych_text::{StreamOptions, TextStream};
use proptest::prelude::*;

use crate::common::{cases, stream_after};
use crate::kinds::{Kind, kinds};

fn options(skip_special_tokens: bool) -> StreamOptions {
    StreamOptions {
        skip_special_tokens,
        ..StreamOptions::default()
    }
}

/// The text of `ids` that no continuation changes: what the decodes of all continuations have in common.
fn settled(kind: &Kind, ids: &[u32], skip: bool) -> String {
    let mut common: Option<String> = None;
    for probe in &kind.probes {
        let text = kind.decode(&[ids, probe].concat(), skip);
        common = Some(match common {
            None => text,
            Some(common) => common
                .chars()
                .zip(text.chars())
                .take_while(|(left, right)| left == right)
                .map(|(character, _)| character)
                .collect(),
        });
    }
    common.unwrap_or_default()
}

/// Draws of ids: two in three from what is hard, whatever the vocabulary's size.
fn ids(kind: &Kind, draws: &[u32]) -> Vec<u32> {
    let beyond = kind.table.len() as u32 + 3;
    let pick = |draw: &u32| match draw % 3 {
        0 => draw / 3 % beyond,
        _ if kind.hard.is_empty() => draw / 3 % beyond,
        _ => kind.hard[(draw / 3) as usize % kind.hard.len()],
    };
    draws.iter().map(pick).collect()
}

fn draws(length: usize) -> impl Strategy<Value = Vec<u32>> {
    proptest::collection::vec(any::<u32>(), 0..length)
}

/// Kinds in which one step may wait for what another holds, or for a begun character, though anything would settle it.
const WAIT_TOGETHER: [&str; 3] = ["byte_level_stripped", "stripped_tail", "end_of_word_fused"];

thread_local! {
    static KINDS: Vec<Kind> = kinds();
}

/// The text of a prompt that is not the answer's.
fn begun(kind: &Kind, prompt: &[u32], skip: bool) -> String {
    let all = settled(kind, prompt, skip);
    if !WAIT_TOGETHER.contains(&&*kind.name) {
        return all;
    }
    let mut stream = TextStream::new(Arc::clone(&kind.table), options(skip), &[]).unwrap();
    let mut text = String::new();
    for &id in prompt {
        stream.push(id, &mut text);
    }
    assert!(all.starts_with(&text));
    text
}

fn check(kind: &Kind, prompt: &[u32], output: &[u32], skip: bool) -> Result<(), TestCaseError> {
    let streamed = stream_after(&kind.table, options(skip), prompt, output).text();
    let all = [prompt, output].concat();
    let whole = kind.decode(&all, skip);
    let begin = begun(kind, prompt, skip);
    prop_assert_eq!(format!("{}{}", begin, streamed), &*whole, "{}", kind.name);
    if kind.agrees_with_library(&all, skip) {
        let own = kind.oracle.decode(&all, skip).unwrap();
        prop_assert_eq!(whole, own, "the library's own decode, {}", kind.name);
    }
    Ok(())
}

proptest! {
    #![proptest_config(cases(6_000))]

    #[test]
    fn joined_deltas_are_the_tokenizers_own_decode(
        which in any::<prop::sample::Index>(), prompt in draws(10), output in draws(30), skip in any::<bool>(),
    ) {
        KINDS.with(|kinds| {
            let kind = &kinds[which.index(kinds.len())];
            check(kind, &ids(kind, &prompt), &ids(kind, &output), skip)
        })?;
    }
}

proptest! {
    #![proptest_config(cases(600))]

    #[test]
    fn every_push_gives_all_that_is_settled_and_no_more(
        which in any::<prop::sample::Index>(), prompt in draws(5), output in draws(12), skip in any::<bool>(),
    ) {
        KINDS.with(|kinds| {
            let kind = &kinds[which.index(kinds.len())];
            let (mut all, output) = (ids(kind, &prompt), ids(kind, &output));
            let table = Arc::clone(&kind.table);
            let mut stream = TextStream::new(table, options(skip), &all).unwrap();
            let mut text = begun(kind, &all, skip);
            for id in output {
                stream.push(id, &mut text);
                all.push(id);
                let settled = settled(kind, &all, skip);
                if WAIT_TOGETHER.contains(&&*kind.name) {
                    prop_assert!(settled.starts_with(&text), "{} after {:?}", kind.name, all);
                } else {
                    prop_assert_eq!(&text, &settled, "{} after {:?}", kind.name, all);
                }
            }
            Ok(())
        })?;
    }

    #[test]
    fn whole_characters_in_byte_tokens_come_back(
        which in any::<prop::sample::Index>(), text in "\\PC{0,12}", cut in any::<prop::sample::Index>(),
    ) {
        KINDS.with(|kinds| {
            let kind = &kinds[which.index(kinds.len())];
            let all = kind.spelled(&text);
            let (prompt, output) = all.split_at(cut.index(all.len() + 1));
            check(kind, prompt, output, true)
        })?;
    }
}

/// A long run of what waits for ever in other decoders costs the same at its end as at its start.
#[test]
fn nothing_piles_up_in_any_kind() {
    for kind in kinds() {
        let Some(broken) = kind.spelled("é").first().copied() else {
            continue;
        };
        let mut stream = TextStream::new(Arc::clone(&kind.table), options(true), &[]).unwrap();
        let mut text = String::new();
        for _ in 0..2_000 {
            stream.push(broken, &mut text);
            assert!(stream.pending().len() <= 3, "{}", kind.name);
        }
        stream.finish(&mut text);
        assert_eq!(text, kind.decode(&[broken; 2_000], true), "{}", kind.name);
    }
}
