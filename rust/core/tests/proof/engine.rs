//! A world for named cases: it panics at the first broken promise.

use diptych_core::config::{Admission, HashMode};
use diptych_core::explanation::Explanation;
use diptych_core::{CoreConfig, Error, FinishReason, Request, Stats};

use crate::operation::Operation;
use crate::world::World;

/// Blocks of four tokens, a pool of 15 blocks, 16 tokens a step, no overlap.
pub(crate) fn small() -> CoreConfig {
    CoreConfig {
        block_size: 4,
        num_blocks: 16,
        max_running: 4,
        max_batched_tokens: 16,
        max_model_len: 64,
        max_queued_requests: 1_000,
        side_words: 256,
        vocabulary: 1_000,
        hash: HashMode::Keyed(3),
        admission: Admission::WholePrompt,
        ..CoreConfig::default()
    }
}

/// As [`small`] with `blocks` blocks to use.
pub(crate) fn pool_of(blocks: u32) -> CoreConfig {
    CoreConfig {
        num_blocks: blocks + 1,
        ..small()
    }
}

/// A prompt that shares no block with the prompt of another `seed`.
pub(crate) fn prompt(seed: u32, length: usize) -> Vec<u32> {
    (0..length as u32)
        .map(|index| (seed * 37 + index * 101 + seed * index * 13) % 1_000)
        .collect()
}

pub(crate) fn request(prompt: &[u32], max_tokens: u32) -> Request {
    Request {
        prompt: prompt.to_vec(),
        max_tokens,
        ..Request::default()
    }
}

pub(crate) struct Engine {
    pub(crate) world: World,
}

impl Engine {
    pub(crate) fn new(config: &CoreConfig) -> Self {
        Self {
            world: World::new(config),
        }
    }

    /// Submits and returns the request's number among the accepted ones.
    pub(crate) fn submit(&mut self, request: Request) -> usize {
        self.try_submit(request, None).expect("the request is fine")
    }

    /// As [`Self::submit`]; the text side finds a stop string at token `stop`.
    pub(crate) fn try_submit(
        &mut self,
        mut request: Request,
        stop: Option<u32>,
    ) -> Result<usize, Error> {
        let number = self.world.model.entries.len();
        request.submission = number as u64;
        request.has_stop_strings = stop.is_some();
        self.world.submit_request(&request, stop)?;
        Ok(number)
    }

    #[track_caller]
    pub(crate) fn apply(&mut self, operation: &Operation) {
        if let Err(error) = self.world.apply(operation) {
            panic!("{operation:?}: {error}");
        }
    }

    #[track_caller]
    pub(crate) fn plan(&mut self) {
        self.apply(&Operation::Plan(None));
    }

    #[track_caller]
    pub(crate) fn complete(&mut self) {
        self.apply(&Operation::Complete);
    }

    #[track_caller]
    pub(crate) fn step(&mut self) {
        self.plan();
        self.complete();
    }

    #[track_caller]
    pub(crate) fn abort(&mut self, number: usize) {
        self.apply(&Operation::Abort(number as u8));
    }

    /// Runs until nothing is open; the number of steps.
    #[track_caller]
    pub(crate) fn finish(&mut self) -> usize {
        match self.world.drain() {
            Ok(steps) => steps,
            Err(error) => panic!("{error}"),
        }
    }

    /// Submits, runs everything to its end, and returns the cached tokens and the outputs.
    #[track_caller]
    pub(crate) fn run(&mut self, request: Request) -> (u32, Vec<u32>) {
        let number = self.submit(request);
        self.finish();
        (self.cached(number), self.outputs(number).to_vec())
    }

    /// As [`Self::run`] while others stay open.
    #[track_caller]
    pub(crate) fn run_beside(&mut self, request: Request) -> (u32, Vec<u32>) {
        let number = self.submit(request);
        for _ in 0..200 {
            self.step();
        }
        assert!(
            self.reason(number).is_some(),
            "request {number} has not finished"
        );
        (self.cached(number), self.outputs(number).to_vec())
    }

    /// The text side has searched the first `checked` outputs.
    #[track_caller]
    pub(crate) fn acknowledge(&mut self, number: usize, checked: u32) {
        if let Err(error) = self.world.acknowledge_to(number, checked) {
            panic!("{error}");
        }
    }

    /// Prompt and outputs of a request.
    pub(crate) fn stream(&self, number: usize) -> Vec<u32> {
        let entry = &self.world.model.entries[number];
        entry.tokens(entry.committed)
    }

    pub(crate) fn outputs(&self, number: usize) -> &[u32] {
        let entry = &self.world.model.entries[number];
        &entry.outputs[..entry.committed as usize]
    }

    pub(crate) fn cached(&self, number: usize) -> u32 {
        self.world.model.entries[number]
            .cached
            .expect("the request was admitted")
    }

    pub(crate) fn admitted(&self, number: usize) -> bool {
        self.world.model.entries[number].cached.is_some()
    }

    pub(crate) fn reason(&self, number: usize) -> Option<FinishReason> {
        self.world.model.entries[number].finished
    }

    /// Of an open request, or of one that has ended lately.
    pub(crate) fn explain(&self, number: usize) -> Explanation {
        let (core, entry) = (&self.world.core, &self.world.model.entries[number]);
        let open = core.explain(entry.handle, self.world.now());
        open.or_else(|| core.explain_ended(number as u64, 0))
            .expect("open, or ended lately")
    }

    pub(crate) fn stats(&self) -> Stats {
        self.world.core.stats()
    }
}
