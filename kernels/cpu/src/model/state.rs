//! What outlives a step, by state row: block tables and last sampled ids.

use super::plan::{PLACEHOLDER, PlanError, StepInput};
use super::settings::Settings;

/// The last id of a row that has sampled nothing since the one before was taken.
const TAKEN: i32 = -1;

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
            last_ids: vec![TAKEN; settings.max_running],
        }
    }

    /// Bytes of such a state.
    pub(super) fn bytes(settings: &Settings) -> usize {
        settings.max_running * (settings.max_blocks() + 1) * size_of::<i32>()
    }

    pub(super) fn reset(&mut self) {
        self.tables.fill(0);
        self.last_ids.fill(TAKEN);
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

    /// Refuses a placeholder of a row that has sampled nothing since its last one: host and worker would mean different
    /// ids.
    pub(super) fn check_placeholders(&self, step: &StepInput) -> Result<(), PlanError> {
        // A placeholder stands in a decode row, which has one token.
        let decodes = step.token_ids.iter().zip(step.rows);
        let unknown = decodes
            .take(step.num_decode_rows)
            .find(|&(&id, &row)| id == PLACEHOLDER && self.last_ids[row as usize] == TAKEN);
        match unknown {
            None => Ok(()),
            Some((_, row)) => Err(PlanError(format!(
                "state row {row} is to take its last sampled id in a plan, and has sampled none since it took one"
            ))),
        }
    }

    /// The step's ids, placeholders replaced by what their rows sampled last; each of those is taken once.
    pub(super) fn fill_placeholders(&mut self, step: &StepInput, ids: &mut Vec<u32>) {
        ids.clear();
        for (token, &id) in step.token_ids.iter().enumerate() {
            ids.push(if id == PLACEHOLDER {
                let row = step.rows[token] as usize;
                std::mem::replace(&mut self.last_ids[row], TAKEN) as u32
            } else {
                id as u32
            });
        }
    }

    /// What a row sampled.
    pub(super) fn set_last_id(&mut self, row: usize, id: i32) {
        self.last_ids[row] = id;
    }
}
