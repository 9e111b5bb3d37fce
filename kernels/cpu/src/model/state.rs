//! What outlives a step, by state row: block tables and last sampled ids.

use super::plan::{PLACEHOLDER, StepInput};
use super::settings::Settings;

/// Tables point to block 0 where nothing was said.
#[derive(Debug)]
pub(super) struct RowState {
    tables: Vec<i32>,
    columns: usize,
    last_ids: Vec<i32>,
}

impl RowState {
    pub(super) fn new(settings: &Settings) -> Self {
        let columns = settings.max_blocks();
        Self {
            tables: vec![0; settings.max_running * columns],
            columns,
            last_ids: vec![0; settings.max_running],
        }
    }

    /// Bytes of such a state.
    pub(super) fn bytes(settings: &Settings) -> usize {
        settings.max_running * (settings.max_blocks() + 1) * size_of::<i32>()
    }

    pub(super) fn reset(&mut self) {
        self.tables.fill(0);
        self.last_ids.fill(0);
    }

    /// Changes tables in order, the last of several changes to one place standing; the step was checked.
    pub(super) fn apply_deltas(&mut self, step: &StepInput) {
        let mut blocks = step.delta_blocks;
        for index in 0..step.delta_rows.len() {
            let row = step.delta_rows[index] as usize;
            let start = step.delta_starts[index] as usize;
            let (these, rest) = blocks.split_at(step.delta_counts[index] as usize);
            let place = row * self.columns + start;
            self.tables[place..place + these.len()].copy_from_slice(these);
            blocks = rest;
        }
    }

    /// All block tables, one row after the other.
    pub(super) fn tables(&self) -> &[i32] {
        &self.tables
    }

    /// The step's ids, placeholders replaced by what their rows sampled last.
    pub(super) fn fill_placeholders(&self, step: &StepInput, ids: &mut Vec<u32>) {
        ids.clear();
        ids.extend(step.token_ids.iter().enumerate().map(|(token, &id)| {
            if id == PLACEHOLDER {
                self.last_ids[step.rows[token] as usize] as u32
            } else {
                id as u32
            }
        }));
    }

    /// What a row sampled.
    pub(super) fn set_last_id(&mut self, row: usize, id: i32) {
        self.last_ids[row] = id;
    }
}
