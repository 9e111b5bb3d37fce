//! The program of a step: what every member of the team runs, from the embedding to the sampled ids.
//!
//! A layer has eight barriers, one more with prefill rows, and two for each further format among queries, keys and values:
//!
//! ```text
//! norm ┤ qkv ┤ rope, attention ┤ round ┤ output + residual ┤ norm ┤ gate, up ─ SwiGLU ┤ down + residual ┤
//! ```

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use super::buffers::Floats;
use super::model::Model;
use super::phase::{Job, Phases, Source, Then, each_row};
use crate::attention::{AttentionLayer, AttentionPlan, StepRows, Switches, Turn};
use crate::epilogue::{SwiGlu, Tile};
use crate::kv::KvPool;
use crate::matrix::{Form, Matrix, read_row};
use crate::pool::Member;
use crate::rope::Rope;
use crate::rows::{RowBuffer, Rows};
use crate::sampling::{Best, SamplingRow, Scores, Status};
use crate::simd::LANES;

/// Where the sampled rows' results go.
#[derive(Clone, Copy)]
pub(super) struct Found {
    pub(super) statuses: *mut i32,
    pub(super) ids: *mut i32,
    pub(super) logprobs: *mut f32,
    /// Likeliest ids and their log probabilities, and where each row's begin.
    pub(super) candidate_ids: *mut i32,
    pub(super) candidate_logprobs: *mut f32,
    pub(super) starts: *const usize,
}

/// What becomes of the sampled rows.
#[derive(Clone, Copy)]
pub(super) enum Wanted<'a> {
    /// One id each.
    Ids(&'a [SamplingRow<'a>], Found),
    /// All logits: `[S][vocabulary]`.
    Logits(*mut f32),
}

/// A step, ready to run.
pub(super) struct Program<'a> {
    pub(super) model: &'a Model,
    pub(super) phases: Phases<'a>,
    pub(super) pool: &'a KvPool,
    pub(super) rope: &'a Rope,
    pub(super) attention: &'a AttentionPlan,
    pub(super) rows: StepRows<'a>,
    /// `[T]`, placeholders filled.
    pub(super) ids: &'a [u32],
    /// `[S]` tokens, those that keep all their logits first.
    pub(super) sampled: &'a [usize],
    /// `[S]` their sampling rows.
    pub(super) order: &'a [usize],
    /// How many keep all their logits.
    pub(super) kept: usize,
    pub(super) wanted: Wanted<'a>,
    /// Nanoseconds of the layers.
    pub(super) forward_ns: AtomicU64,
}

// SAFETY: raw pointers are used as the phases share them out.
unsafe impl Sync for Program<'_> {}

impl Program<'_> {
    /// One member's part; `progress` is called by member 0 after every layer.
    ///
    /// # Safety
    /// Called by all members of one team alike; the plan was checked.
    pub(super) unsafe fn run(&self, member: &Member, progress: &(dyn Fn() + Sync)) {
        let start = Instant::now();
        self.embed(member);
        for layer in 0..self.model.shape.layers {
            self.attend(member, layer);
            self.mlp(member, layer);
            if member.index() == 0 {
                progress();
            }
        }
        if member.index() == 0 {
            let spent = start.elapsed().as_nanos() as u64;
            self.forward_ns.store(spent, Ordering::Relaxed);
        }
        let mut done = 0;
        while done < self.sampled.len() {
            done += self.head(member, done);
        }
    }

    unsafe fn embed(&self, member: &Member) {
        let (embedding, hidden) = (&self.model.weights.embedding, self.model.shape.hidden);
        let residual = &self.phases.buffers.residual;
        each_row(member, self.ids.len(), |token| {
            let row = std::slice::from_raw_parts_mut(residual.row(token), hidden);
            read_row(embedding, self.ids[token] as usize, row);
        });
    }

    /// All rows of the residual stream, normed.
    fn normed<'a>(&self, from: &'a Floats, norm: &[f32], matrix: &Matrix) -> Source<'a> {
        Source {
            from,
            chosen: None,
            count: self.ids.len(),
            size: self.model.shape.hidden,
            norm: norm.as_ptr(),
            epsilon: self.model.shape.epsilon,
            form: matrix.format.form(self.phases.settings.arithmetic),
        }
    }

    /// Norm and the projection to queries, keys and values.
    unsafe fn project(&self, member: &Member, index: usize) {
        let (layer, vectors) = (
            &self.model.weights.layers[index],
            &self.model.vectors[index],
        );
        let (buffers, count) = (self.phases.buffers, self.ids.len());
        let mut prepared: Option<(Form, Rows)> = None;
        let mut column = 0;
        for part in &layer.qkv {
            let source = self.normed(&buffers.residual, &vectors.input_norm, part);
            let (_, rows) = match prepared {
                Some(rows) if rows.0 == source.form => rows,
                _ => {
                    let rows = self.phases.prepare(member, &source, &buffers.hidden_rows);
                    *prepared.insert((source.form, rows))
                }
            };
            let store = Then::Store(buffers.qkv.row(0).add(column), buffers.qkv.stride());
            let bias = vectors.qkv_bias.as_ref().map(|bias| &bias[column..]);
            self.phases
                .product(member, &job(*part, rows, (0, count), bias, store));
            column += part.outputs;
        }
    }

    /// Norm, projection, attention, projection, residual.
    unsafe fn attend(&self, member: &Member, index: usize) {
        let (layer, vectors) = (
            &self.model.weights.layers[index],
            &self.model.vectors[index],
        );
        let (buffers, count) = (self.phases.buffers, self.ids.len());
        self.project(member, index);
        let attention = AttentionLayer {
            pool: self.pool,
            layer: index,
            rows: &self.rows,
            qkv: buffers.qkv.row(0),
            qkv_stride: buffers.qkv.stride(),
            rope: self.rope,
            scale: 1.0 / (self.model.shape.head_dim as f32).sqrt(),
            arithmetic: self.phases.settings.arithmetic,
            out: buffers.attended.row(0),
            switches: Switches {
                prefetch: self.phases.settings.fusions.prefetch,
                ..Switches::ALL
            },
        };
        for phase in 0..self.attention.phases() {
            let turn = Turn {
                phase,
                member: member.index(),
                claims: member.claims(),
            };
            self.attention
                .run(self.phases.settings.set, turn, &attention);
            member.wait();
        }
        let source = Source {
            from: &buffers.attended,
            size: self.model.shape.attended_size(),
            norm: std::ptr::null(),
            ..self.normed(&buffers.attended, &[], &layer.output)
        };
        let rows = self.phases.prepare(member, &source, &buffers.attended_rows);
        let then = Then::Residual(buffers.residual.row(0), buffers.residual.stride());
        let bias = vectors.output_bias.as_deref();
        self.phases
            .product(member, &job(layer.output, rows, (0, count), bias, then));
    }

    /// Norm, gate and up, `SwiGLU`, down, residual; so many rows at once as there is room for.
    unsafe fn mlp(&self, member: &Member, index: usize) {
        let (layer, vectors) = (
            &self.model.weights.layers[index],
            &self.model.vectors[index],
        );
        let (buffers, count) = (self.phases.buffers, self.ids.len());
        let source = self.normed(&buffers.residual, &vectors.post_norm, &layer.gate_up);
        let rows = self.phases.prepare(member, &source, &buffers.hidden_rows);
        let form = layer.down.format.form(self.phases.settings.arithmetic);
        let wide = buffers.wide_rows.get(form);
        let most = wide.rows().count();
        for first in (0..count).step_by(most) {
            let part = (first, most.min(count - first));
            let bias = vectors.gate_up_bias.as_deref();
            if self.phases.settings.fusions.swiglu {
                let then = Then::SwiGlu(wide);
                self.phases
                    .product(member, &job(layer.gate_up, rows, part, bias, then));
            } else {
                let then = Then::Store(buffers.gate_up.row(0), buffers.gate_up.stride());
                self.phases
                    .product(member, &job(layer.gate_up, rows, part, bias, then));
                self.activate(member, wide, part.1);
            }
            let (residual, stride) = (buffers.residual.row(first), buffers.residual.stride());
            let bias = vectors.down_bias.as_deref();
            let then = Then::Residual(residual, stride);
            self.phases.product(
                member,
                &job(layer.down, wide.rows(), (0, part.1), bias, then),
            );
        }
    }

    /// `SwiGLU` as a pass of its own.
    unsafe fn activate(&self, member: &Member, into: &RowBuffer, count: usize) {
        let gate_up = &self.phases.buffers.gate_up;
        each_row(member, count, |row| {
            let tile = Tile {
                sums: gate_up.row(row),
                stride: gate_up.stride(),
                rows: 1,
                columns: 2 * self.model.shape.intermediate,
                bias: std::ptr::null(),
            };
            self.phases.settings.set.run(SwiGlu {
                tile,
                into,
                row,
                column: 0,
            });
        });
    }

    /// Logits of as many sampled rows as there is room for, from the `done`-th on, and what becomes of them.
    unsafe fn head(&self, member: &Member, done: usize) -> usize {
        let buffers = self.phases.buffers;
        let kept = self.kept.saturating_sub(done).min(buffers.logit_rows);
        // Whoever keeps its logits waits for the next round when there is no room; the others follow the last of them.
        let left = if done + kept < self.kept {
            kept
        } else {
            self.sampled.len() - done
        };
        let count = left.min(buffers.head_rows);
        let scratch = &self.phases.scratch[member.index()];
        std::slice::from_raw_parts_mut(scratch.best(), count).fill(Best::new());
        let head = self.model.weights.head;
        let source = Source {
            chosen: Some(&self.sampled[done..done + count]),
            count,
            ..self.normed(&buffers.residual, &self.model.norm, &head)
        };
        let rows = self.phases.prepare(member, &source, &buffers.hidden_rows);
        let vocabulary = self.phases.settings.vocabulary;
        let job = Job {
            panels: vocabulary.div_ceil(LANES),
            ..job(
                head,
                rows,
                (0, count),
                None,
                Then::Logits(vocabulary, kept, &buffers.logits),
            )
        };
        self.phases.product(member, &job);
        while let Some(row) = member.claim(count) {
            self.take(member, done + row, (row, kept));
        }
        member.wait();
        count
    }

    /// What becomes of sampled row `index`, row `row` of this round, of which `kept` have all their logits.
    unsafe fn take(&self, member: &Member, index: usize, (row, kept): (usize, usize)) {
        let vocabulary = self.phases.settings.vocabulary;
        let logits = if row < kept {
            self.phases.buffers.logits.row(row)
        } else {
            std::ptr::null_mut()
        };
        let place = self.order[index];
        let (sampling, found) = match self.wanted {
            Wanted::Ids(sampling, found) => (sampling, found),
            Wanted::Logits(out) => {
                std::ptr::copy_nonoverlapping(logits, out.add(place * vocabulary), vocabulary);
                return;
            }
        };
        let (status, id): (Status, u32) = if row < kept {
            let sampler = &mut *self.phases.scratch[member.index()].sampler();
            let logits = std::slice::from_raw_parts_mut(logits, vocabulary);
            let set = self.phases.settings.set;
            let row = &sampling[place];
            if row.wants_logprob {
                let (start, count) = (*found.starts.add(place), row.candidates as usize);
                let logprobs = found.candidate_logprobs.add(start);
                let scores = Scores {
                    logprob: &mut *found.logprobs.add(place),
                    ids: std::slice::from_raw_parts_mut(found.candidate_ids.add(start), count),
                    logprobs: std::slice::from_raw_parts_mut(logprobs, count),
                };
                sampler.sample_scored(set, logits, row, scores)
            } else {
                sampler.sample(set, logits, row)
            }
        } else {
            let mut best = Best::new();
            for other in self.phases.scratch {
                best.merge(*other.best().add(row));
            }
            best.finish()
        };
        *found.statuses.add(place) = status as i32;
        *found.ids.add(place) = id as i32;
    }
}

/// A product with all panels of a matrix; part: first row and count.
fn job<'a>(
    matrix: Matrix<'a>,
    rows: Rows<'a>,
    (first, count): (usize, usize),
    bias: Option<&[f32]>,
    then: Then<'a>,
) -> Job<'a> {
    Job {
        matrix,
        rows,
        first,
        count,
        panels: matrix.panels(),
        bias: bias.map_or(std::ptr::null(), <[f32]>::as_ptr),
        then,
    }
}
