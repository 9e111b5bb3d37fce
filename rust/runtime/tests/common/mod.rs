//! A byte-level tokenizer, an engine on a scripted worker, and the oracle of its hash mode.
#![allow(
    dead_code,
    unreachable_pub,
    reason = "each test file uses its own part of this module"
)]

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use diptych_runtime::{
    Accepted, Done, Engine, EngineError, Failure, FinishReason, Finished, FrameQueue, Prompt,
};
use serde_json::{Value, json};

/// 256 bytes, end of sequence, and a special token.
pub const VOCABULARY: u32 = 258;
pub const EOS: u32 = 256;
pub const SPECIAL: u32 = 257;

/// A model folder with a tokenizer that has one token per byte, removed when dropped.
pub struct ModelFolder(pub PathBuf);

impl ModelFolder {
    pub fn new() -> Self {
        static NEXT: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);
        let number = NEXT.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let name = format!("diptych-test-{}-{number}", std::process::id());
        let folder = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&folder).unwrap();
        let tokenizer = tokenizer().to_string();
        std::fs::write(folder.join("tokenizer.json"), tokenizer).unwrap();
        let template =
            "{% for message in messages %}{{ message.role }}:{{ message.content }};{% endfor %}";
        std::fs::write(folder.join("chat_template.jinja"), template).unwrap();
        Self(folder)
    }
}

impl Drop for ModelFolder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// The printable stand-in of a byte in byte-level vocabularies.
fn stand_in(byte: u8) -> char {
    let printable = |byte: u8| matches!(byte, b'!'..=b'~' | 0xA1..=0xAC | 0xAE..=0xFF);
    if printable(byte) {
        return char::from(byte);
    }
    let index = (0..byte).filter(|other| !printable(*other)).count();
    char::from_u32(256 + index as u32).unwrap()
}

fn tokenizer() -> Value {
    let vocabulary: serde_json::Map<String, Value> = (0..=255_u8)
        .map(|byte| (stand_in(byte).to_string(), byte.into()))
        .collect();
    let special = |id: u32, content: &str| {
        json!({"id": id, "content": content, "single_word": false, "lstrip": false, "rstrip": false,
               "normalized": false, "special": true})
    };
    let byte_level = json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false});
    json!({
        "version": "1.0", "truncation": null, "padding": null,
        "added_tokens": [special(EOS, "<|end|>"), special(SPECIAL, "<|mark|>")],
        "normalizer": null, "pre_tokenizer": byte_level.clone(), "post_processor": null, "decoder": byte_level,
        "model": {"type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
                  "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false,
                  "vocab": vocabulary, "merges": []}
    })
}

/// What the scripted worker's hash mode answers.
pub fn expected(prompt: &[u32], count: usize) -> Vec<u32> {
    let mut ids = prompt.to_vec();
    for _ in 0..count {
        let bytes: Vec<u8> = ids.iter().flat_map(|id| id.to_le_bytes()).collect();
        let hash = xxhash_rust::xxh3::xxh3_64(&bytes) % u64::from(VOCABULARY);
        // 256 and 257 are special, and after 257 comes 0.
        ids.push(if hash >= 256 { 0 } else { hash as u32 });
    }
    ids.split_off(prompt.len())
}

pub fn text_of(ids: &[u32]) -> String {
    let bytes: Vec<u8> = ids.iter().filter_map(|id| u8::try_from(*id).ok()).collect();
    String::from_utf8_lossy(&bytes).into_owned()
}

pub fn bytes_as_ids(text: &str) -> Vec<u32> {
    text.bytes().map(u32::from).collect()
}

/// Options of an engine on `kind` with `worker` options merged in.
pub fn options(folder: &ModelFolder, kind: &str, worker: Value, limits: Value) -> Value {
    let mut all = json!({
        "worker": {
            "kind": kind, "python": env!("CARGO_BIN_EXE_diptych-test-worker"), "environment_remove": [],
            "options": {"num_blocks": 400, "script": null, "step_ms": 0.0, "eos_id": EOS, "special_ids": [SPECIAL]},
            "start_timeout_s": 20.0
        },
        "limits": {
            "block_size": 4, "max_running": 16, "max_batched_tokens": 64, "max_prefill_tokens": null,
            "max_model_len": 256, "max_queued_requests": 1000, "prefix_cache": true, "overlap_depth": 0
        },
        "model_folder": folder.0, "vocabulary": VOCABULARY, "eos_ids": [EOS]
    });
    merge(&mut all["worker"]["options"], worker);
    merge(&mut all["limits"], limits);
    all
}

pub fn merge(target: &mut Value, changes: Value) {
    if let Value::Object(changes) = changes {
        for (key, value) in changes {
            target[key] = value;
        }
    }
}

pub fn start(options: &Value) -> Result<Engine, EngineError> {
    Engine::start(options.to_string().as_bytes())
}

pub fn params(changes: Value) -> Value {
    let mut params = json!({
        "max_tokens": 16, "min_tokens": 0, "temperature": 0.0, "top_k": -1, "top_p": 1.0, "min_p": 0.0, "presence_penalty": 0.0,
        "frequency_penalty": 0.0, "repetition_penalty": 1.0, "seed": null, "logit_bias": [], "stop": [],
        "stop_token_ids": [], "ignore_eos": false, "include_stop_str_in_output": false,
            "skip_special_tokens": true, "spaces_between_special_tokens": true, "add_special_tokens": true, "return_prompt_ids": false,
            "cache_salt": "", "cache_ttl": null, "cache_retention": 0, "n": 1, "mean_logprob": false
    });
    merge(&mut params, changes);
    params
}

/// Everything that came for one request.
#[derive(Debug, Default)]
pub struct Answer {
    pub accepted: Option<Accepted>,
    pub text: String,
    pub ids: Vec<u32>,
    pub done: Option<Done>,
    pub frames: usize,
}

impl Answer {
    pub fn finished(&self) -> &Finished {
        match &self.done {
            Some(Done::Finished(finished)) => finished,
            other => panic!("not finished: {other:?}"),
        }
    }

    pub fn failed(&self) -> &Failure {
        match &self.done {
            Some(Done::Failed(failure)) => failure,
            other => panic!("not failed: {other:?}"),
        }
    }

    pub fn is_abort(&self) -> bool {
        matches!(&self.done, Some(Done::Finished(finished)) if finished.reason == FinishReason::Abort)
    }
}

/// An engine and one reader.
pub struct Rig {
    pub engine: Engine,
    pub queue: Arc<FrameQueue>,
    pub answers: BTreeMap<u64, Answer>,
    _folder: ModelFolder,
}

impl Rig {
    pub fn new(kind: &str, worker: Value, limits: Value) -> Self {
        let folder = ModelFolder::new();
        let options = options(&folder, kind, worker, limits);
        Self::with(folder, &options)
    }

    pub fn with(folder: ModelFolder, options: &Value) -> Self {
        let engine = start(options).unwrap();
        let queue = engine.frame_queue().unwrap();
        Self {
            engine,
            queue,
            answers: BTreeMap::new(),
            _folder: folder,
        }
    }

    pub fn submit(&self, prompt: Prompt, changes: Value) -> u64 {
        let params = params(changes).to_string();
        let arrived = diptych_runtime::now_ns();
        self.engine
            .submit(&self.queue, prompt, params.as_bytes(), arrived)
            .unwrap()
    }

    pub fn ids(&self, prompt: &[u32], max_tokens: u32) -> u64 {
        self.submit(
            Prompt::Tokens(prompt.to_vec()),
            json!({"max_tokens": max_tokens}),
        )
    }

    /// Takes what is there, after waiting a little for it.
    pub fn pump(&mut self) {
        self.queue.wait(Duration::from_millis(20)).unwrap();
        let mut frames = Vec::new();
        self.queue.drain(&mut frames).unwrap();
        for frame in frames {
            let answer = self.answers.entry(frame.request).or_default();
            assert!(
                answer.done.is_none(),
                "{} has a frame after its last",
                frame.request
            );
            answer.frames += 1;
            if frame.accepted.is_some() {
                assert_eq!(answer.frames, 1, "accepted comes first, once");
                answer.accepted = frame.accepted;
            }
            answer.text.push_str(&frame.text);
            answer.ids.extend(frame.token_ids);
            answer.done = frame.done;
        }
    }

    pub fn pump_until(&mut self, what: &str, condition: impl Fn(&Self) -> bool) {
        let deadline = Instant::now() + Duration::from_secs(30);
        while !condition(self) {
            assert!(Instant::now() < deadline, "{what}: {}", self.stats());
            self.pump();
        }
    }

    /// Waits for the last frames of `requests`.
    pub fn finish(&mut self, requests: &[u64]) {
        self.pump_until("requests did not end", |rig| {
            requests.iter().all(|request| {
                rig.answers
                    .get(request)
                    .is_some_and(|answer| answer.done.is_some())
            })
        });
    }

    pub fn one(&mut self, prompt: Prompt, changes: Value) -> &Answer {
        let request = self.submit(prompt, changes);
        self.finish(&[request]);
        &self.answers[&request]
    }

    pub fn stats(&self) -> Value {
        serde_json::from_slice(&self.engine.stats_json().unwrap()).unwrap()
    }

    /// Waits until nothing runs, and checks that no block is in use and no request open.
    pub fn assert_idle(&mut self) {
        self.pump_until("never idle", |rig| {
            let stats = rig.stats();
            stats["requests_running"] == 0
                && stats["requests_waiting"] == 0
                && stats["kv_blocks_used"] == 0
                && stats["open_requests"] == 0
        });
    }
}
