//! A step's arrays, read natively from the arena, or by the buffer protocol from any object that has them.

use std::sync::atomic::AtomicU32;

use diptych_cpu::model::{SamplingInput, StepInput};
use pyo3::buffer::Element;
use pyo3::prelude::*;
use runtime::worker::Item;

use super::items;
use crate::worker::Step;

/// One array of a step.
enum Column {
    View(runtime::worker::Array),
    I32(Vec<i32>),
    I64(Vec<i64>),
    F32(Vec<f32>),
    U32(Vec<u32>),
    Masks(Vec<AtomicU32>),
}

/// All arrays of a step that the kernels read.
pub(super) struct Columns {
    num_decode_rows: usize,
    arrays: Vec<Column>,
}

/// Their names and items, in the order in which [`Columns::input`] takes them.
const NAMES: [(&str, Item); 29] = [
    ("token_ids", Item::I32),
    ("positions", Item::I32),
    ("slots", Item::I64),
    ("rows", Item::I32),
    ("query_starts", Item::I32),
    ("sequence_lengths", Item::I32),
    ("delta_rows", Item::I32),
    ("delta_starts", Item::I32),
    ("delta_counts", Item::I32),
    ("delta_blocks", Item::I32),
    ("block_copies", Item::I32),
    ("sampling_tokens", Item::I32),
    ("sampling_rows", Item::I32),
    ("temperature", Item::F32),
    ("top_k", Item::I32),
    ("top_p", Item::F32),
    ("min_p", Item::F32),
    ("presence_penalty", Item::F32),
    ("frequency_penalty", Item::F32),
    ("repetition_penalty", Item::F32),
    ("seed", Item::I64),
    ("output_index", Item::I32),
    ("choice_index", Item::I32),
    ("penalty_offset", Item::I32),
    ("bias_offset", Item::I32),
    ("logprobs", Item::I32),
    ("masked", Item::I32),
    (MASKS, Item::U32),
    ("side", Item::U32),
];

/// Written by the host while the step runs.
const MASKS: &str = "masks";

impl Columns {
    /// Reads a step of the runtime, or a `StepView` made in Python.
    pub(super) fn read(step: &Bound<'_, PyAny>) -> PyResult<Self> {
        if let Ok(native) = step.cast::<Step>() {
            return Ok(Self::of_arena(native.get().inner()));
        }
        let mut arrays = Vec::with_capacity(NAMES.len());
        for (name, item) in NAMES {
            let array = step.call_method1("array", (name,))?;
            arrays.push(match item {
                Item::U32 if name == MASKS => {
                    Column::Masks(words(&array)?.into_iter().map(AtomicU32::new).collect())
                }
                Item::I32 => Column::I32(items(&array)?),
                Item::I64 => Column::I64(items(&array)?),
                Item::F32 => Column::F32(items(&array)?),
                Item::U32 => Column::U32(words(&array)?),
            });
        }
        let num_decode_rows = step.getattr("num_decode_rows")?.extract()?;
        Ok(Self {
            num_decode_rows,
            arrays,
        })
    }

    fn of_arena(step: &runtime::worker::Step) -> Self {
        let array = |name| {
            let array = step.array(name);
            Column::View(array.expect("every plan has these arrays"))
        };
        Self {
            num_decode_rows: step.num_decode_rows(),
            arrays: NAMES.iter().map(|(name, _)| array(name)).collect(),
        }
    }

    /// The step, borrowed.
    pub(super) fn input(&self) -> StepInput<'_> {
        let mut arrays = self.arrays.iter();
        let mut next = || arrays.next().expect("as many as there are names");
        StepInput {
            num_decode_rows: self.num_decode_rows,
            token_ids: next().slice(),
            positions: next().slice(),
            slots: next().slice(),
            rows: next().slice(),
            query_starts: next().slice(),
            sequence_lengths: next().slice(),
            delta_rows: next().slice(),
            delta_starts: next().slice(),
            delta_counts: next().slice(),
            delta_blocks: next().slice(),
            block_copies: next().slice(),
            sampling: SamplingInput {
                tokens: next().slice(),
                rows: next().slice(),
                temperature: next().slice(),
                top_k: next().slice(),
                top_p: next().slice(),
                min_p: next().slice(),
                presence_penalty: next().slice(),
                frequency_penalty: next().slice(),
                repetition_penalty: next().slice(),
                seed: next().slice(),
                output_index: next().slice(),
                choice_index: next().slice(),
                penalty_offset: next().slice(),
                bias_offset: next().slice(),
                logprobs: next().slice(),
                masked: next().slice(),
                masks: next().masks(),
                side: next().slice(),
            },
        }
    }
}

/// Side data, whose words tests write signed or unsigned.
fn words(array: &Bound<'_, PyAny>) -> PyResult<Vec<u32>> {
    if let Ok(words) = items::<u32>(array) {
        return Ok(words);
    }
    let words = items::<i32>(array)?;
    Ok(words.into_iter().map(i32::cast_unsigned).collect())
}

/// Items that a plan's arrays hold.
trait PlanItem: Element + Copy {
    const ITEM: Item;
    fn owned(column: &Column) -> Option<&[Self]>;
}

macro_rules! plan_item {
    ($type:ty, $variant:ident) => {
        impl PlanItem for $type {
            const ITEM: Item = Item::$variant;
            fn owned(column: &Column) -> Option<&[Self]> {
                match column {
                    Column::$variant(items) => Some(items),
                    _ => None,
                }
            }
        }
    };
}

plan_item!(i32, I32);
plan_item!(i64, I64);
plan_item!(f32, F32);
plan_item!(u32, U32);

impl Column {
    /// Words that may change.
    ///
    /// # Panics
    /// If they are none: the order of [`NAMES`] is wrong.
    fn masks(&self) -> &[AtomicU32] {
        match self {
            Self::Masks(words) => words,
            Self::View(view) => {
                assert_eq!(view.item(), Item::U32);
                // SAFETY: the view keeps the mapping alive, its address is aligned, and both sides write these words as atomics, or
                // before anybody can read them.
                unsafe { std::slice::from_raw_parts(view.address().cast(), view.len()) }
            }
            _ => panic!("words of masks"),
        }
    }

    /// The items.
    ///
    /// # Panics
    /// If they are of another type: the order of [`NAMES`] is wrong.
    fn slice<T: PlanItem>(&self) -> &[T] {
        if let Self::View(view) = self {
            assert_eq!(view.item(), T::ITEM);
            // SAFETY: the view keeps the mapping alive, its address is aligned, and the host leaves an image alone from
            // the moment in which the worker may read it until the step is published.
            return unsafe { std::slice::from_raw_parts(view.address().cast(), view.len()) };
        }
        T::owned(self).expect("items of this type")
    }
}
