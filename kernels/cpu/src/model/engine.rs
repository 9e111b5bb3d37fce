//! A model with its cache and rows: runs steps.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use super::buffers::{self, Buffers, Scratch};
use super::filling::Filling;
use super::model::Model;
use super::phase::Phases;
use super::plan::{PlanError, StepInput};
use super::program::{Found, Program, Wanted};
use super::report::Report;
use super::settings::Settings;
use super::shape::{ModelError, ModelShape};
use super::state::RowState;
use super::weights::{WeightOwner, Weights};
use crate::attention::{AttentionPlan, StepRows};
use crate::kv::{KvPool, KvShape};
use crate::pool::{Member, Team};
use crate::rope::Rope;
use crate::sampling::SamplingRow;

/// Bytes of scratch for each id of the vocabulary while a row is sampled: counts, keys, weights, sums.
const SAMPLING_BYTES: usize = 64;

/// What a step gave, one value for each sampling row.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct StepOutput {
    /// 0: the id is valid; 1: the logits held NaN or no finite maximum.
    pub status: Vec<i32>,
    /// Sampled ids.
    pub ids: Vec<i32>,
    /// Their log probabilities, with penalties and bias, before temperature; 0 where not asked for.
    pub logprobs: Vec<f32>,
    /// Likeliest ids of the rows that ask for them, best first, one row's after the other's; 0 where the status is not 0.
    pub candidate_ids: Vec<i32>,
    /// Their log probabilities.
    pub candidate_logprobs: Vec<f32>,
    /// Nanoseconds of embedding and layers, without head and sampling.
    pub forward_ns: u64,
}

/// A model, its cache and its rows. One step at a time.
pub struct Engine {
    model: Model,
    settings: Settings,
    team: Team,
    /// Ends before the pool.
    filling: Filling,
    pool: Arc<KvPool>,
    rope: Rope,
    attention: AttentionPlan,
    buffers: Buffers,
    scratch: Vec<Scratch>,
    state: RowState,
    ids: Vec<u32>,
}

impl Engine {
    /// Makes everything that steps need. The cache's blocks for the longest request are in memory then; the others are
    /// brought in while no step runs.
    ///
    /// # Errors
    /// Weights, sizes and settings that do not fit each other or that no kernel serves; memory or threads that the
    /// system does not give.
    pub fn new(owner: Arc<dyn WeightOwner>, settings: Settings) -> Result<Self, ModelError> {
        let model = Model::new(owner)?;
        settings.check(&model.shape)?;
        let memory = |what| move |error| ModelError::Memory { what, error };
        let mut team = Team::new(settings.threads).map_err(|error| {
            let threads = settings.threads;
            ModelError::Threads { threads, error }
        })?;
        let shape = kv_shape(&model.shape, &settings);
        let pool = Arc::new(KvPool::new(shape, settings.huge_pages)?);
        let attention = AttentionPlan::new(&shape, model.shape.heads, settings.threads)
            .map_err(memory("attention"))?;
        let rope = Rope::new(&model.shape.rope_frequencies, settings.max_model_len)
            .map_err(memory("rotary angles"))?;
        let (buffers, scratch) = buffers::make(&model.shape, &model.weights, &settings)?;
        let longest = settings.max_model_len.div_ceil(settings.block_size);
        let filling =
            Filling::start(&pool, &mut team, longest + 1).map_err(memory("the KV cache"))?;
        Ok(Self {
            state: RowState::new(&settings),
            model,
            settings,
            team,
            filling,
            pool,
            rope,
            attention,
            buffers,
            scratch,
            ids: Vec::new(),
        })
    }

    /// The model's shape.
    #[must_use]
    pub fn shape(&self) -> &ModelShape {
        &self.model.shape
    }

    /// How it runs.
    #[must_use]
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// The cache.
    #[must_use]
    pub fn pool(&self) -> &KvPool {
        &self.pool
    }

    /// What was found and granted.
    #[must_use]
    pub fn report(&self) -> Report {
        Report::new(&self.settings, &self.model.weights, &self.pool, &self.team)
    }

    /// Every table points to block 0 again, and no row has sampled anything.
    pub fn reset(&mut self) {
        self.state.reset();
    }

    /// Runs a step; `progress` is called once a layer.
    ///
    /// # Errors
    /// A plan that contradicts itself or the settings: nothing was computed then.
    pub fn run(
        &mut self,
        step: &StepInput,
        progress: &(dyn Fn() + Sync),
    ) -> Result<StepOutput, PlanError> {
        step.check(&self.settings)?;
        let count = step.sampling.len();
        let sampling: Result<Vec<SamplingRow>, _> =
            (0..count).map(|row| step.sampling.row(row)).collect();
        let sampling = sampling.map_err(|error| PlanError(error.to_string()))?;
        let fused = self.settings.fusions.argmax;
        let whole = |row: &usize| !(fused && sampling[*row].wants_argmax_only());
        let mut order: Vec<usize> = (0..count).filter(whole).collect();
        let kept = order.len();
        order.extend((0..count).filter(|row| !whole(row)));
        let mut starts = Vec::with_capacity(count);
        let mut candidates = 0;
        for row in &sampling {
            starts.push(candidates);
            candidates += row.candidates as usize;
        }
        let mut output = StepOutput {
            status: vec![0; count],
            ids: vec![0; count],
            logprobs: vec![0.0; count],
            candidate_ids: vec![0; candidates],
            candidate_logprobs: vec![0.0; candidates],
            forward_ns: 0,
        };
        let found = Found {
            statuses: output.status.as_mut_ptr(),
            ids: output.ids.as_mut_ptr(),
            logprobs: output.logprobs.as_mut_ptr(),
            candidate_ids: output.candidate_ids.as_mut_ptr(),
            candidate_logprobs: output.candidate_logprobs.as_mut_ptr(),
            starts: starts.as_ptr(),
        };
        let wanted = Wanted::Ids(&sampling, found);
        output.forward_ns = self.execute(step, (&order, kept), wanted, progress)?;
        // Of several rows of a state row the first is what it goes on with: the others score a prompt.
        for (row, status) in output.status.iter().enumerate().rev() {
            // The host may have launched a step over a row without an id: it computes with any, in vain.
            let id = if *status == 0 { output.ids[row] } else { 0 };
            self.state.set_last_id(step.sampling.rows[row] as usize, id);
        }
        Ok(output)
    }

    /// Runs a step, but gives the logits of its sampling rows, `[S][vocabulary]`, instead of sampling.
    ///
    /// # Errors
    /// As [`Engine::run`].
    pub fn logits(&mut self, step: &StepInput) -> Result<Vec<f32>, PlanError> {
        step.check(&self.settings)?;
        let count = step.sampling.len();
        let order: Vec<usize> = (0..count).collect();
        let mut logits = vec![0.0; count * self.settings.vocabulary];
        let wanted = Wanted::Logits(logits.as_mut_ptr());
        self.execute(step, (&order, count), wanted, &|| ())?;
        Ok(logits)
    }

    /// Runs a checked step. order: sampling rows, of which the first `kept` keep their logits.
    fn execute(
        &mut self,
        step: &StepInput,
        (order, kept): (&[usize], usize),
        wanted: Wanted,
        progress: &(dyn Fn() + Sync),
    ) -> Result<u64, PlanError> {
        self.state.check_placeholders(step)?;
        self.state.apply_deltas(step);
        self.state.fill_placeholders(step, &mut self.ids);
        let rows = StepRows {
            positions: step.positions,
            slots: step.slots,
            query_starts: step.query_starts,
            sequence_lengths: step.sequence_lengths,
            rows: step.rows,
            tables: self.state.tables(),
            table_stride: self.settings.max_blocks(),
            num_decode_rows: step.num_decode_rows,
        };
        let planned = self.attention.plan(&rows, &mut self.rope);
        planned.map_err(|error| PlanError(error.to_string()))?;
        let sampled: Vec<usize> = order
            .iter()
            .map(|&row| step.sampling.tokens[row] as usize)
            .collect();
        let program = Program {
            model: &self.model,
            phases: Phases {
                settings: &self.settings,
                buffers: &self.buffers,
                scratch: &self.scratch,
            },
            pool: &self.pool,
            rope: &self.rope,
            attention: &self.attention,
            rows,
            ids: &self.ids,
            sampled: &sampled,
            order,
            kept,
            wanted,
            forward_ns: AtomicU64::new(0),
        };
        // SAFETY: the plan was checked, and all members run the same program.
        let run = |member: &Member| unsafe { program.run(member, progress) };
        self.filling.step();
        for (source, destination) in step.copies() {
            // SAFETY: the plan was checked, and no step runs.
            unsafe { self.pool.copy_block(source, destination) };
        }
        self.team.run(&run);
        self.filling.step();
        Ok(program.forward_ns.into_inner())
    }
}

fn kv_shape(shape: &ModelShape, settings: &Settings) -> KvShape {
    KvShape {
        layers: shape.layers,
        blocks: settings.num_blocks,
        block_size: settings.block_size,
        kv_heads: shape.kv_heads,
        head_dim: shape.head_dim,
        format: settings.kv,
    }
}

/// Bytes of one block of the cache, all layers and heads.
#[must_use]
pub fn bytes_per_block(shape: &ModelShape, settings: &Settings) -> usize {
    kv_shape(shape, settings).bytes_per_block()
}

/// Upper bound of what an engine holds besides weights and cache, in bytes.
#[must_use]
pub fn activation_bytes(shape: &ModelShape, weights: &Weights, settings: &Settings) -> usize {
    let angles = settings.max_model_len * shape.head_dim * size_of::<f32>();
    let cache = kv_shape(shape, settings);
    let attention = AttentionPlan::bytes(
        &cache,
        shape.heads,
        settings.threads,
        settings.max_model_len,
    );
    let sampling = settings.threads * settings.vocabulary * SAMPLING_BYTES;
    let buffers = buffers::activation_bytes(shape, weights, settings);
    buffers + attention + sampling + RowState::bytes(settings) + angles
}
