//! Activations of the largest step, made once.

use std::cell::UnsafeCell;
use std::io;

use super::settings::Settings;
use super::shape::{ModelError, ModelShape};
use super::weights::Weights;
use crate::matrix::Form;
use crate::memory::{HUGE_PAGE, Region};
use crate::rows::{GROUP, RowBuffer};
use crate::sampling::{Best, Sampler};
use crate::simd::LANES;

/// Rows of a tile: their activations and a few panels fit into the second-level cache.
pub(super) const ROW_BLOCK: usize = 128;
/// Panels of a tile: four streams of weights.
pub(super) const TILE_PANELS: usize = 4;
/// Rows whose MLP runs at once: its buffers are the widest.
pub(super) const MLP_ROWS: usize = 1024;
/// Rows whose logits exist at once.
pub(super) const LOGIT_ROWS: usize = 64;

/// Rows of f32.
#[derive(Debug)]
pub(super) struct Floats {
    memory: Region,
    stride: usize,
}

impl Floats {
    fn new(rows: usize, stride: usize) -> io::Result<Self> {
        let bytes = Self::bytes(rows, stride);
        Ok(Self {
            memory: Region::new(bytes, bytes >= HUGE_PAGE)?,
            stride,
        })
    }

    /// A group more than the rows: reads of whole groups may go past the last.
    fn bytes(rows: usize, stride: usize) -> usize {
        (rows * stride + GROUP) * size_of::<f32>()
    }

    /// Values from one row to the next.
    pub(super) fn stride(&self) -> usize {
        self.stride
    }

    /// The first value of a row.
    pub(super) fn row(&self, row: usize) -> *mut f32 {
        let place = row * self.stride;
        debug_assert!(place * size_of::<f32>() < self.memory.bytes());
        self.memory.address().cast::<f32>().wrapping_add(place)
    }
}

/// The same rows in each form that some weight is multiplied with.
#[derive(Debug)]
pub(super) struct Forms([Option<RowBuffer>; 4]);

const FORMS: [Form; 4] = [Form::F32, Form::Bf16, Form::Int8, Form::Int8Halves];

impl Forms {
    fn new(used: Used, inputs: usize, rows: usize) -> io::Result<Self> {
        let mut forms = [const { None }; 4];
        for (place, form) in FORMS.into_iter().enumerate() {
            if used.0[place] {
                forms[place] = Some(RowBuffer::new(form, inputs, rows)?);
            }
        }
        Ok(Self(forms))
    }

    fn bytes(used: Used, inputs: usize, rows: usize) -> usize {
        let forms = FORMS.into_iter().enumerate();
        let used = forms.filter(|(place, _)| used.0[*place]);
        used.map(|(_, form)| RowBuffer::bytes(form, inputs, rows))
            .sum()
    }

    /// The rows in one form.
    ///
    /// # Panics
    /// If no weight was said to be multiplied with it.
    pub(super) fn get(&self, form: Form) -> &RowBuffer {
        self.0[place(form)]
            .as_ref()
            .expect("a form that no weight wants")
    }
}

fn place(form: Form) -> usize {
    match form {
        Form::F32 => 0,
        Form::Bf16 => 1,
        Form::Int8 => 2,
        Form::Int8Halves => 3,
    }
}

/// Which forms are in use.
#[derive(Clone, Copy, Default)]
struct Used([bool; 4]);

/// Sizes of everything, computed once for making it and for foretelling it.
struct Layout {
    tokens: usize,
    hidden: usize,
    qkv: usize,
    attended: usize,
    wide: usize,
    /// Rows of hidden size: tokens, or sampled rows.
    hidden_rows: usize,
    wide_rows: usize,
    logit_rows: usize,
    vocabulary: usize,
    used_hidden: Used,
    used_attended: Used,
    used_wide: Used,
    /// Rows of the buffer of `SwiGLU`'s pass, where it is one of its own.
    gate_up_rows: usize,
    threads: usize,
}

impl Layout {
    fn new(shape: &ModelShape, weights: &Weights, settings: &Settings) -> Self {
        let mut used = [Used::default(); 3];
        let form = |matrix: &crate::matrix::Matrix| matrix.format.form(settings.arithmetic);
        let mut mark = |which: usize, form: Form| used[which].0[place(form)] = true;
        mark(0, form(&weights.head));
        for layer in &weights.layers {
            layer.qkv.iter().for_each(|part| mark(0, form(part)));
            mark(0, form(&layer.gate_up));
            mark(1, form(&layer.output));
            mark(2, form(&layer.down));
        }
        let tokens = settings.max_tokens;
        let hidden_rows = tokens.max(LOGIT_ROWS);
        let wide_rows = tokens.min(MLP_ROWS);
        Self {
            tokens,
            hidden: shape.hidden.next_multiple_of(GROUP),
            qkv: shape.qkv_size().next_multiple_of(LANES),
            attended: shape.attended_size(),
            wide: shape.intermediate,
            hidden_rows,
            wide_rows,
            logit_rows: settings.max_running.min(LOGIT_ROWS),
            vocabulary: settings.vocabulary.next_multiple_of(LANES),
            used_hidden: used[0],
            used_attended: used[1],
            used_wide: used[2],
            gate_up_rows: if settings.fusions.swiglu {
                0
            } else {
                wide_rows
            },
            threads: settings.threads,
        }
    }

    fn bytes(&self) -> usize {
        let floats = Floats::bytes(self.tokens, self.hidden + self.qkv + self.attended)
            + Floats::bytes(self.logit_rows, self.vocabulary)
            + Floats::bytes(self.gate_up_rows, 2 * self.wide);
        let forms = Forms::bytes(self.used_hidden, self.hidden, self.hidden_rows)
            + Forms::bytes(self.used_attended, self.attended, self.tokens)
            + Forms::bytes(self.used_wide, self.wide, self.wide_rows);
        let member =
            Floats::bytes(ROW_BLOCK, TILE_PANELS * LANES) + self.hidden_rows * size_of::<Best>();
        floats + forms + self.threads * member
    }
}

/// Upper bound of what a step holds besides weights and cache, in bytes, its block tables excluded.
#[must_use]
pub(super) fn activation_bytes(
    shape: &ModelShape,
    weights: &Weights,
    settings: &Settings,
) -> usize {
    Layout::new(shape, weights, settings).bytes()
}

/// What all members share.
#[derive(Debug)]
pub(super) struct Buffers {
    /// `[tokens][hidden]`, zeros up to a multiple of 32.
    pub(super) residual: Floats,
    /// `[tokens][qkv]`.
    pub(super) qkv: Floats,
    /// `[tokens][heads × head_dim]`.
    pub(super) attended: Floats,
    /// `[logit rows][vocabulary]`.
    pub(super) logits: Floats,
    /// `[MLP rows][2 × intermediate]`, where `SwiGLU` is a pass of its own.
    pub(super) gate_up: Floats,
    /// Normed rows.
    pub(super) hidden_rows: Forms,
    /// What attention gave.
    pub(super) attended_rows: Forms,
    /// What `SwiGLU` gave.
    pub(super) wide_rows: Forms,
    /// How many sampled rows are computed at once.
    pub(super) head_rows: usize,
    /// How many of them may keep all their logits.
    pub(super) logit_rows: usize,
}

/// What each member has for itself.
#[derive(Debug)]
pub(super) struct Scratch {
    /// Sums of [`ROW_BLOCK`] rows × [`TILE_PANELS`] panels.
    pub(super) tile: Floats,
    /// Of each sampled row, the best of the logits that this member made.
    best: Vec<UnsafeCell<Best>>,
    sampler: UnsafeCell<Sampler>,
}

// SAFETY: its own member alone writes it, and the phases order that with reads by others.
unsafe impl Sync for Scratch {}

impl Scratch {
    /// The best logits, one for each sampled row of a round.
    pub(super) fn best(&self) -> *mut Best {
        self.best.as_ptr().cast::<Best>().cast_mut()
    }

    /// Its sampler.
    pub(super) fn sampler(&self) -> *mut Sampler {
        self.sampler.get()
    }
}

/// Makes the buffers of a model.
pub(super) fn make(
    shape: &ModelShape,
    weights: &Weights,
    settings: &Settings,
) -> Result<(Buffers, Vec<Scratch>), ModelError> {
    make_inside(&Layout::new(shape, weights, settings), shape.hidden).map_err(|error| {
        ModelError::Memory {
            what: "activations",
            error,
        }
    })
}

fn make_inside(layout: &Layout, hidden: usize) -> io::Result<(Buffers, Vec<Scratch>)> {
    let (attended, wide) = (layout.attended, layout.wide);
    let buffers = Buffers {
        residual: Floats::new(layout.tokens, layout.hidden)?,
        qkv: Floats::new(layout.tokens, layout.qkv)?,
        attended: Floats::new(layout.tokens, attended)?,
        logits: Floats::new(layout.logit_rows, layout.vocabulary)?,
        gate_up: Floats::new(layout.gate_up_rows, 2 * wide)?,
        hidden_rows: Forms::new(layout.used_hidden, hidden, layout.hidden_rows)?,
        attended_rows: Forms::new(layout.used_attended, attended, layout.tokens)?,
        wide_rows: Forms::new(layout.used_wide, wide, layout.wide_rows)?,
        head_rows: layout.hidden_rows,
        logit_rows: layout.logit_rows,
    };
    let mut members = Vec::with_capacity(layout.threads);
    for _ in 0..layout.threads {
        members.push(Scratch {
            tile: Floats::new(ROW_BLOCK, TILE_PANELS * LANES)?,
            best: (0..layout.hidden_rows)
                .map(|_| UnsafeCell::default())
                .collect(),
            sampler: UnsafeCell::default(),
        });
    }
    Ok((buffers, members))
}
