//! A worker that computes nothing: it keeps the token id of every KV slot and builds its block tables
//! from deltas only, so that each wrong slot, table entry, early reuse or stale cache hit is seen.
//!
//! Steps run in launch order, but a launched step may read and write its blocks at any moment until
//! it retires (prefill and decode are different executors). So a block that a step writes must not be
//! touched by another occupant in any unretired step, and the KV of an unretired step belongs to its
//! own occupant alone.

mod view;

use std::collections::VecDeque;

use diptych_core::latency::Work;
use diptych_core::{CoreConfig, PLACEHOLDER, RowStatus, SamplingRow, StepPlan};

use crate::oracle::{self, Randomness};

/// What goes wrong with one sampling row of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Misbehaviour {
    Nan,
    BadId,
    /// Status ok with an id past the vocabulary.
    IdPastVocabulary,
    NotSampled,
}

/// A launched step as the host will find it when it retires.
#[derive(Clone, Debug)]
pub(crate) struct Launched {
    pub(crate) epoch: u64,
    pub(crate) step: u64,
    pub(crate) work: Work,
    pub(crate) sampling: Vec<SamplingRow>,
    pub(crate) results: Vec<(RowStatus, u32)>,
    /// (block, occupant) of everything that the step reads or writes.
    touched: Vec<(usize, u64)>,
    /// Blocks that the step copies from, and who wrote them.
    sources: Vec<(usize, u64)>,
}

/// The only request of the unretired steps, as far as the outside can tell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Suspect {
    /// There is none, or more than one.
    Nobody,
    /// There is one that has not sampled yet.
    Anybody,
    /// Its submission and choice, and the number of outputs that its launched steps lead to.
    Request((u64, u32), u32),
}

/// What one sampling row saw.
#[derive(Clone, Debug)]
pub(crate) struct Draw {
    pub(crate) occupant: u64,
    /// Drawn from the logits of the row of the request's first choice.
    pub(crate) forks: bool,
    /// Tokens read back through the block table; `None` when the row is known to be poisoned.
    pub(crate) prefix: Option<Vec<u32>>,
}

#[derive(Clone, Debug, Default)]
struct Row {
    /// 0 is nobody; a delta that starts the table anew makes a new occupant.
    occupant: u64,
    table: Vec<usize>,
    last: Option<u32>,
    computed: usize,
    /// First position whose sampling was refused: it may be computed again.
    retry: Option<usize>,
    /// A misbehaviour spoilt the row's KV: its later draws mean nothing.
    poisoned: bool,
    /// Where a copied tail ends.
    copied: Option<usize>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
struct Slot {
    /// `None` is poison: never written, or written by a spoilt row.
    token: Option<u32>,
    /// Step and occupant of the last write; step 0 once that step has retired.
    writer: (u64, u64),
}

/// Blocks that copies read with who wrote them, and blocks that they fill.
type Copies = (Vec<(usize, u64)>, Vec<usize>);

#[derive(Clone, Debug)]
pub(crate) struct Worker {
    block_size: usize,
    num_blocks: usize,
    vocabulary: u32,
    kv: Vec<Slot>,
    rows: Vec<Row>,
    next_occupant: u64,
    pub(crate) launched: VecDeque<Launched>,
}

impl Worker {
    pub(crate) fn new(config: &CoreConfig) -> Self {
        let block_size = config.block_size as usize;
        let num_blocks = config.num_blocks as usize;
        Self {
            block_size,
            num_blocks,
            vocabulary: config.vocabulary,
            kv: vec![Slot::default(); block_size * num_blocks],
            rows: vec![Row::default(); config.max_running as usize],
            next_occupant: 1,
            launched: VecDeque::new(),
        }
    }

    /// Runs a step up to its published result; the masks of rows that are `late` come too late. Returns
    /// what each sampling row saw.
    pub(crate) fn launch(
        &mut self,
        plan: &StepPlan,
        fault: Option<(u8, Misbehaviour)>,
        late: &[bool],
    ) -> Result<Vec<Draw>, String> {
        self.apply_deltas(plan)?;
        let fault = fault
            .filter(|_| !plan.sampling.is_empty())
            .map(|(row, what)| (usize::from(row) % plan.sampling.len(), what));
        let mut touched = Vec::new();
        let (sources, copied) = self.copy_blocks(plan)?;
        for index in 0..plan.rows.len() {
            let spoilt = fault.is_some_and(|(sampling, what)| {
                what == Misbehaviour::Nan && plan.sampling[sampling].row as i32 == plan.rows[index]
            });
            self.write_row(plan, index, spoilt, &mut touched)?;
        }
        self.check_exclusive(plan, copied, &touched)?;
        for index in 0..plan.rows.len() {
            let row = plan.rows[index] as usize;
            let length = plan.sequence_lengths[index] as usize;
            self.read(row, length, plan.step)?;
        }
        let mut draws = Vec::with_capacity(plan.sampling.len());
        let mut results = Vec::with_capacity(plan.sampling.len());
        for (index, sampling) in plan.sampling.iter().enumerate() {
            let what = fault.and_then(|(row, what)| (row == index).then_some(what));
            let what = what.or(late[index].then_some(Misbehaviour::NotSampled));
            let (draw, result) = self.draw(plan, sampling, what)?;
            draws.push(draw);
            results.push(result);
        }
        self.launched.push_back(Launched {
            epoch: plan.epoch,
            step: plan.step,
            work: Work::of(plan),
            sampling: plan.sampling.clone(),
            results,
            touched,
            sources,
        });
        Ok(draws)
    }

    /// The oldest launched step leaves; from now on anybody may read what it wrote.
    pub(crate) fn retire(&mut self) -> Option<Launched> {
        let step = self.launched.pop_front()?;
        for slot in &mut self.kv {
            if slot.writer.0 == step.step {
                slot.writer.0 = 0;
            }
        }
        Some(step)
    }

    /// A new incarnation: nothing of the old one is left.
    pub(crate) fn restart(&mut self) {
        self.kv.fill(Slot::default());
        self.rows.fill(Row::default());
        self.launched.clear();
    }

    fn apply_deltas(&mut self, plan: &StepPlan) -> Result<(), String> {
        let mut taken = 0;
        for delta in 0..plan.delta_rows.len() {
            let row = plan.delta_rows[delta] as usize;
            let start = plan.delta_starts[delta] as usize;
            let count = plan.delta_counts[delta] as usize;
            let ids = &plan.delta_blocks[taken..taken + count];
            taken += count;
            if start == 0 {
                self.move_in(row)?;
            }
            let table = &mut self.rows[row].table;
            // Invariant 26: tables grow by appending; nothing in use is rewritten.
            if start != table.len() {
                return Err(format!(
                    "invariant 26: delta of row {row} starts at {start}, its table has {} blocks",
                    table.len()
                ));
            }
            table.extend(ids.iter().map(|&id| id as usize));
        }
        Ok(())
    }

    /// A copy takes retired KV into a block that only a new occupant's table has, at its end.
    fn copy_blocks(&mut self, plan: &StepPlan) -> Result<Copies, String> {
        let mut sources = Vec::new();
        let mut destinations = Vec::new();
        for &[source, destination, count, _] in &plan.block_copies {
            let (source, destination) = (source as usize, destination as usize);
            // Rows that have left keep a table in which nobody looks any more.
            let owners = self.rows.iter_mut().enumerate();
            let mut owners = owners
                .filter(|(row, _)| plan.rows.contains(&(*row as i32)))
                .map(|(_, row)| row)
                .filter(|row| row.table.contains(&destination));
            let (Some(owner), None) = (owners.next(), owners.next()) else {
                return Err(format!(
                    "invariant 22: block {destination} is copied into and is not one row's alone"
                ));
            };
            if owner.computed != 0 || owner.table.last() != Some(&destination) {
                return Err(format!(
                    "invariant 22: block {destination} is no fresh row's tail"
                ));
            }
            owner.copied = Some((owner.table.len() - 1) * self.block_size + count as usize);
            let writer = (plan.step, owner.occupant);
            // Whoever wrote the source may go on behind what is copied, nobody else may.
            sources.push((source, self.kv[source * self.block_size].writer.1));
            for offset in 0..count as usize {
                let slot = self.kv[source * self.block_size + offset];
                if slot.token.is_none() || slot.writer.0 != 0 {
                    return Err(format!(
                        "invariants 9, 22: block {source} is copied before it is written and retired: {slot:?}"
                    ));
                }
                self.kv[destination * self.block_size + offset] = Slot {
                    token: slot.token,
                    writer,
                };
            }
            destinations.push(destination);
        }
        Ok((sources, destinations))
    }

    /// Invariant 20: a row changes hands only when no launched step touches it.
    fn move_in(&mut self, row: usize) -> Result<(), String> {
        let leaving = self.rows[row].occupant;
        let busy = self
            .launched
            .iter()
            .find(|step| step.touched.iter().any(|&(_, who)| who == leaving));
        if let Some(step) = busy {
            return Err(format!(
                "invariant 20: row {row} has a new occupant while step {} is in flight",
                step.step
            ));
        }
        self.rows[row] = Row {
            occupant: self.next_occupant,
            ..Row::default()
        };
        self.next_occupant += 1;
        Ok(())
    }

    fn write_row(
        &mut self,
        plan: &StepPlan,
        index: usize,
        spoilt: bool,
        touched: &mut Vec<(usize, u64)>,
    ) -> Result<(), String> {
        let row_id = plan.rows[index] as usize;
        let start = plan.query_starts[index] as usize;
        let end = plan.query_starts[index + 1] as usize;
        let first = plan.positions[start] as usize;
        self.enter(row_id, first)?;
        let row = &mut self.rows[row_id];
        for token in start..end {
            let position = plan.positions[token] as usize;
            let slot = plan.slots[token] as usize;
            // Invariant 25: each slot lies in the row's own block at the right logical index.
            let expected = row
                .table
                .get(position / self.block_size)
                .map(|block| block * self.block_size + position % self.block_size);
            if expected != Some(slot) || position != first + token - start {
                return Err(format!(
                    "invariant 25: row {row_id} position {position} has slot {slot}, its table says {expected:?}"
                ));
            }
            let id = match plan.token_ids[token] {
                PLACEHOLDER => row.last,
                id => Some(id as u32),
            };
            row.poisoned |= id.is_none() || spoilt;
            self.kv[slot] = Slot {
                token: id.filter(|_| !spoilt),
                writer: (plan.step, row.occupant),
            };
        }
        row.computed = first + end - start;
        let blocks = row.computed.div_ceil(self.block_size);
        touched.extend(
            row.table[..blocks]
                .iter()
                .map(|&block| (block, row.occupant)),
        );
        Ok(())
    }

    /// Positions of an occupant go on without a gap, from a block edge where its cached prefix ends.
    fn enter(&mut self, row_id: usize, first: usize) -> Result<(), String> {
        let row = &mut self.rows[row_id];
        if row.occupant == 0 {
            return Err(format!("row {row_id} is computed and has no block table"));
        }
        if row.retry == Some(first) {
            row.retry = None;
            row.poisoned = false;
        } else if row.computed == 0 {
            let copied = row.copied.take();
            if copied.is_some_and(|end| end != first)
                || (copied.is_none() && !first.is_multiple_of(self.block_size))
            {
                return Err(format!("row {row_id} starts at {first}, inside a block"));
            }
        } else if first != row.computed {
            return Err(format!(
                "row {row_id} computes from {first}, it has computed {}",
                row.computed
            ));
        }
        Ok(())
    }

    /// Invariants 5 and 7: what a step writes is touched by nobody else until it has retired.
    fn check_exclusive(
        &self,
        plan: &StepPlan,
        copied: Vec<usize>,
        touched: &[(usize, u64)],
    ) -> Result<(), String> {
        let mut written: Vec<usize> = plan
            .slots
            .iter()
            .map(|&slot| slot as usize / self.block_size)
            .collect();
        written.extend(copied);
        written.dedup();
        for block in written {
            if block == 0 || block >= self.num_blocks {
                return Err(format!("a step writes block {block}, which is no row's"));
            }
            let Some(&(_, owner)) = touched.iter().find(|touch| touch.0 == block) else {
                return Err(format!("block {block} is written outside its row"));
            };
            let earlier = self.launched.iter();
            let earlier = earlier.flat_map(|step| step.touched.iter().chain(&step.sources));
            if earlier
                .chain(touched)
                .any(|&(other, who)| other == block && who != owner)
            {
                return Err(format!(
                    "invariants 5, 7: step {} writes block {block} while another row's unretired step touches it",
                    plan.step
                ));
            }
        }
        Ok(())
    }

    /// The first `length` tokens of a row, read through its table; `None` if a spoilt row reads poison.
    fn read(&self, row_id: usize, length: usize, step: u64) -> Result<Option<Vec<u32>>, String> {
        let row = &self.rows[row_id];
        let mut prefix = Vec::with_capacity(length);
        for position in 0..length {
            let Some(block) = row.table.get(position / self.block_size) else {
                return Err(format!("row {row_id} has no block for position {position}"));
            };
            let slot = self.kv[block * self.block_size + position % self.block_size];
            let (writer, who) = slot.writer;
            // Invariant 9: only retired KV may be shared.
            if writer != 0 && who != row.occupant {
                return Err(format!(
                    "invariant 9: step {step} row {row_id} reads position {position} that another row computes in unretired step {writer}"
                ));
            }
            match slot.token {
                Some(token) => prefix.push(token),
                None if row.poisoned => return Ok(None),
                None => {
                    return Err(format!(
                        "invariant 9: step {step} row {row_id} reads poison at position {position}, block {block}"
                    ));
                }
            }
        }
        Ok(Some(prefix))
    }

    fn draw(
        &mut self,
        plan: &StepPlan,
        sampling: &SamplingRow,
        what: Option<Misbehaviour>,
    ) -> Result<(Draw, (RowStatus, u32)), String> {
        let position = plan.positions[sampling.token as usize] as usize;
        let ends = plan.query_starts.iter().skip(1);
        let computes = ends
            .take_while(|&&end| end as u32 <= sampling.token)
            .count();
        let computing = plan.rows[computes] as usize;
        let prefix = self.read(computing, position + 1, plan.step)?;
        let randomness = Randomness {
            seed: sampling.seed,
            choice: sampling.choice_index,
        };
        let id = prefix
            .as_ref()
            .map(|prefix| oracle::next_token(prefix, randomness, self.vocabulary));
        let result = match (id, what) {
            (_, Some(Misbehaviour::Nan)) => (RowStatus::Nan, 0),
            (_, Some(Misbehaviour::BadId)) => (RowStatus::BadId, 0),
            (_, Some(Misbehaviour::IdPastVocabulary)) => (RowStatus::Ok, self.vocabulary),
            (None, None) | (_, Some(Misbehaviour::NotSampled)) => (RowStatus::NotSampled, 0),
            (Some(id), None) => (RowStatus::Ok, id),
        };
        if sampling.row as usize != computing {
            // The row that the id belongs to has nothing yet.
            let occupant = self.rows[computing].occupant;
            let draw = Draw {
                occupant,
                forks: true,
                prefix,
            };
            return Ok((draw, result));
        }
        let row = &mut self.rows[computing];
        row.last = id.filter(|_| what.is_none());
        if row.last.is_none() && row.retry.is_none() {
            row.retry = Some(position);
        }
        let draw = Draw {
            occupant: row.occupant,
            forks: false,
            prefix,
        };
        Ok((draw, result))
    }
}
