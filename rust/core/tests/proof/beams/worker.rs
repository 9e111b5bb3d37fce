//! A worker that remembers what it was told and nothing else.

use std::collections::HashMap;

use diptych_core::{RowStatus, StepPlan};

use super::naive::logprobs;

/// A worker that knows only what the plans' deltas, copies and tokens put into its KV.
#[derive(Default)]
pub(super) struct Worker {
    tables: HashMap<i32, Vec<i32>>,
    kv: HashMap<i64, u32>,
    last: HashMap<i32, u32>,
}

pub(super) type Results = (Vec<(RowStatus, u32)>, Vec<(u32, f32)>);

impl Worker {
    pub(super) fn run(&mut self, plan: &StepPlan, block_size: i64) -> Results {
        let mut read = 0;
        for (index, row) in plan.delta_rows.iter().enumerate() {
            let table = self.tables.entry(*row).or_default();
            let start = plan.delta_starts[index] as usize;
            let count = plan.delta_counts[index] as usize;
            assert!(start <= table.len(), "a hole in a block table");
            table.truncate(start);
            table.extend_from_slice(&plan.delta_blocks[read..read + count]);
            read += count;
        }
        // All copies happen at once, from what earlier steps wrote.
        let before = self.kv.clone();
        for &[source, destination, count, _] in &plan.block_copies {
            for offset in 0..i64::from(count) {
                let token = before[&(i64::from(source) * block_size + offset)];
                self.kv
                    .insert(i64::from(destination) * block_size + offset, token);
            }
        }
        let mut owners = vec![0; plan.token_ids.len()];
        for (index, row) in plan.rows.iter().enumerate() {
            let range = plan.query_starts[index] as usize..plan.query_starts[index + 1] as usize;
            for place in range.clone() {
                let id = match plan.token_ids[place] {
                    -1 => self.last[row],
                    id => id as u32,
                };
                self.kv.insert(plan.slots[place], id);
            }
            owners[range].fill(index);
        }
        let (mut rows, mut candidates) = (Vec::new(), Vec::new());
        for row in &plan.sampling {
            let index = owners[row.token as usize];
            let table = &self.tables[&plan.rows[index]];
            let prefix: Vec<u32> = (0..i64::from(plan.sequence_lengths[index]))
                .map(|position| {
                    let block = i64::from(table[(position / block_size) as usize]);
                    self.kv[&(block * block_size + position % block_size)]
                })
                .collect();
            let mut likeliest: Vec<(u32, f32)> = (0..).zip(logprobs(&prefix)).collect();
            likeliest.sort_by(|left, right| right.1.total_cmp(&left.1));
            self.last.insert(row.row as i32, likeliest[0].0);
            rows.push((RowStatus::Ok, likeliest[0].0));
            candidates.extend_from_slice(&likeliest[..row.candidates as usize]);
        }
        (rows, candidates)
    }
}
