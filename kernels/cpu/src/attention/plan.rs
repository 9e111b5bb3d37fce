//! A step's attention in pieces that members of a team claim.

use std::io;
use std::sync::atomic::AtomicUsize;

use super::{StepRows, TILE, scratch};
use crate::kv::KvShape;
use crate::memory::Region;
use crate::rope::Rope;
use crate::simd::LANES;

/// Tokens whose keys and values are one piece of work.
const WRITE_TOKENS: usize = 64;

/// Pieces that a member should find, so that none waits long for the others.
const PIECES_PER_MEMBER: usize = 4;

/// Rows that contradict themselves or the pool.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RowsError {
    /// Arrays whose lengths do not fit together.
    #[error("{name} of a step has {length} values: {expected} are needed")]
    Length {
        /// Which.
        name: &'static str,
        /// Its length.
        length: usize,
        /// What it has to be.
        expected: usize,
    },
    /// A value that would read or write where it must not.
    #[error("{name}[{index}] of a step is {value}: {expected}")]
    Value {
        /// Of which array.
        name: &'static str,
        /// Where.
        index: usize,
        /// What it is.
        value: i64,
        /// What it may be.
        expected: String,
    },
}

/// Tokens of one row, whose keys and values one member writes.
#[derive(Clone, Copy, Debug)]
pub(super) struct WritePiece {
    pub(super) first_token: usize,
    pub(super) tokens: usize,
}

/// Work on one row and KV head.
#[derive(Clone, Copy, Debug)]
pub(super) struct Piece {
    pub(super) row: usize,
    pub(super) head: usize,
    pub(super) kind: PieceKind,
}

#[derive(Clone, Copy, Debug)]
pub(super) enum PieceKind {
    /// The row's one query over its whole context, after writing its key and value.
    Decode,
    /// The same over some tiles. The member that has the last tile writes; the one that finishes last joins all.
    Tiles {
        first: usize,
        end: usize,
        split: usize,
    },
    /// Some of the row's queries, the first counted from its first token.
    Prefill { first: usize, queries: usize },
}

/// A row and KV head in several pieces.
#[derive(Debug)]
pub(super) struct Split {
    pub(super) pieces: usize,
    pub(super) remaining: AtomicUsize,
    /// Where its tiles' results lie, in f32.
    pub(super) place: usize,
}

/// How a step's attention is shared out; made once, and planned anew for each step.
#[derive(Debug)]
pub struct AttentionPlan {
    pub(super) shape: KvShape,
    /// Query heads of a KV head.
    pub(super) group: usize,
    pub(super) members: usize,
    /// Queries of a prefill piece, a power of two.
    pub(super) queries: usize,
    pub(super) scratch: Region,
    partials: Option<Region>,
    writes: Vec<WritePiece>,
    work: Vec<Piece>,
    splits: Vec<Split>,
}

impl AttentionPlan {
    /// For a pool of `shape`, `heads` query heads and a team of `members`.
    ///
    /// # Errors
    /// If the system has no memory.
    ///
    /// # Panics
    /// If `heads` is no multiple of the shape's KV heads.
    pub fn new(shape: &KvShape, heads: usize, members: usize) -> io::Result<Self> {
        assert!(
            heads > 0 && heads.is_multiple_of(shape.kv_heads),
            "{heads} query heads cannot share {} KV heads",
            shape.kv_heads
        );
        let (group, queries) = sharing(shape, heads);
        let bytes = scratch::bytes(shape, group, queries);
        Ok(Self {
            shape: *shape,
            group,
            members,
            queries,
            scratch: Region::new(bytes * members, true)?,
            partials: None,
            writes: Vec::new(),
            work: Vec::new(),
            splits: Vec::new(),
        })
    }

    /// Upper bound of what such a plan allocates, in bytes, for sequences of at most `max_model_len` tokens.
    #[must_use]
    pub fn bytes(shape: &KvShape, heads: usize, members: usize, max_model_len: usize) -> usize {
        let (group, queries) = sharing(shape, heads);
        let tile = group * (shape.padded_dim() + LANES) * size_of::<f32>();
        // Only rows whose heads are fewer than these pieces are split; the memory for them grows to twice the need.
        let partials = 2 * PIECES_PER_MEMBER * members * max_model_len.div_ceil(TILE) * tile;
        scratch::bytes(shape, group, queries) * members + partials
    }

    /// Shares out a step, and has `rope` cover its positions.
    ///
    /// # Errors
    /// [`RowsError`] for rows that contradict themselves or the pool: nothing unsafe can be planned.
    ///
    /// # Panics
    /// If the system has no memory for partial results.
    pub fn plan(&mut self, rows: &StepRows<'_>, rope: &mut Rope) -> Result<(), RowsError> {
        check(rows, &self.shape)?;
        self.writes.clear();
        self.work.clear();
        self.splits.clear();
        let longest = rows.sequence_lengths.iter().copied().max().unwrap_or(0);
        rope.cover(longest as usize);
        for row in rows.num_decode_rows..rows.num_rows() {
            self.plan_prefill(rows, row);
        }
        let few = (rows.num_rows() * self.shape.kv_heads) < PIECES_PER_MEMBER * self.members;
        let mut place = 0;
        for row in 0..rows.num_decode_rows {
            let tiles = (rows.sequence_lengths[row] as usize).div_ceil(TILE);
            let split = few && self.members > 1 && tiles > 1 && self.work.len() < 64;
            for head in 0..self.shape.kv_heads {
                if split {
                    self.plan_tiles((row, head), tiles, &mut place);
                } else {
                    let kind = PieceKind::Decode;
                    self.work.push(Piece { row, head, kind });
                }
            }
        }
        let bytes = place * size_of::<f32>();
        if bytes > self.partials.as_ref().map_or(0, Region::bytes) {
            self.partials =
                Some(Region::new(bytes * 2, false).expect("memory for partial results"));
        }
        Ok(())
    }

    /// Phases of a layer's attention: the members wait for each other between them.
    #[must_use]
    pub fn phases(&self) -> usize {
        if self.writes.is_empty() { 1 } else { 2 }
    }

    pub(super) fn writes(&self) -> &[WritePiece] {
        &self.writes
    }

    pub(super) fn work(&self) -> &[Piece] {
        &self.work
    }

    pub(super) fn split(&self, index: usize) -> &Split {
        &self.splits[index]
    }

    /// f32 values of a tile's result for one query head: sums, largest score, sum of weights, in whole vectors.
    pub(super) fn partial_values(&self) -> usize {
        self.shape.padded_dim() + LANES
    }

    /// Memory for the results of split rows.
    pub(super) fn partials(&self) -> *mut f32 {
        self.partials
            .as_ref()
            .map_or(std::ptr::null_mut(), |region| region.address().cast())
    }

    /// Blocks of queries, cut at absolute positions, the costly ones first.
    fn plan_prefill(&mut self, rows: &StepRows<'_>, row: usize) {
        let start = rows.query_starts[row] as usize;
        let tokens = rows.query_starts[row + 1] as usize - start;
        let position = rows.positions[start] as usize;
        let mut first = 0;
        while first < tokens {
            let end = (position + first + WRITE_TOKENS) / WRITE_TOKENS * WRITE_TOKENS - position;
            let end = end.min(tokens);
            self.writes.push(WritePiece {
                first_token: start + first,
                tokens: end - first,
            });
            first = end;
        }
        let mut end = tokens;
        while end > 0 {
            let first =
                ((position + end - 1) / self.queries * self.queries).saturating_sub(position);
            for head in 0..self.shape.kv_heads {
                let kind = PieceKind::Prefill {
                    first,
                    queries: end - first,
                };
                self.work.push(Piece { row, head, kind });
            }
            end = first;
        }
    }

    fn plan_tiles(&mut self, (row, head): (usize, usize), tiles: usize, place: &mut usize) {
        let pieces = tiles.min(2 * self.members);
        let split = self.splits.len();
        self.splits.push(Split {
            pieces,
            remaining: AtomicUsize::new(pieces),
            place: *place,
        });
        *place += tiles * self.group * self.partial_values();
        for piece in 0..pieces {
            let kind = PieceKind::Tiles {
                first: tiles * piece / pieces,
                end: tiles * (piece + 1) / pieces,
                split,
            };
            self.work.push(Piece { row, head, kind });
        }
    }
}

/// Query heads of a KV head, and queries of a prefill piece.
fn sharing(shape: &KvShape, heads: usize) -> (usize, usize) {
    let group = heads / shape.kv_heads;
    let queries = (1..=6)
        .map(|power| 1 << power)
        .rfind(|queries| queries * group <= 128)
        .unwrap_or(1);
    (group, queries)
}

fn require_length(name: &'static str, length: usize, expected: usize) -> Result<(), RowsError> {
    if length == expected {
        return Ok(());
    }
    Err(RowsError::Length {
        name,
        length,
        expected,
    })
}

fn wrong_value(name: &'static str, index: usize, value: i64, expected: String) -> RowsError {
    RowsError::Value {
        name,
        index,
        value,
        expected,
    }
}

fn check(rows: &StepRows<'_>, shape: &KvShape) -> Result<(), RowsError> {
    let (count, tokens) = (rows.num_rows(), rows.positions.len());
    require_length("slots", rows.slots.len(), tokens)?;
    require_length("query_starts", rows.query_starts.len(), count + 1)?;
    require_length("rows", rows.rows.len(), count)?;
    if rows.num_decode_rows > count {
        let value = rows.num_decode_rows as i64;
        return Err(wrong_value(
            "num_decode_rows",
            0,
            value,
            format!("{count} rows are there"),
        ));
    }
    let slots = (shape.blocks * shape.block_size) as i64;
    if let Some(index) = rows
        .slots
        .iter()
        .position(|slot| !(0..slots).contains(slot))
    {
        let value = rows.slots[index];
        return Err(wrong_value(
            "slots",
            index,
            value,
            format!("below {slots} is allowed"),
        ));
    }
    for row in 0..count {
        check_row(rows, row, shape)?;
    }
    require_length("positions", tokens, rows.query_starts[count] as usize)
}

fn check_row(rows: &StepRows<'_>, row: usize, shape: &KvShape) -> Result<(), RowsError> {
    let (start, end) = (rows.query_starts[row], rows.query_starts[row + 1]);
    let decodes = row < rows.num_decode_rows;
    let tokens = i64::from(end) - i64::from(start);
    let first_is_wrong = row == 0 && start != 0;
    if first_is_wrong || tokens < 1 || end as usize > rows.positions.len() || decodes && tokens != 1
    {
        let expected = format!(
            "after {start} and up to {} tokens it has to grow, by one for decode rows, from 0",
            rows.positions.len()
        );
        return Err(wrong_value("query_starts", row + 1, end.into(), expected));
    }
    let positions = &rows.positions[start as usize..end as usize];
    for (index, position) in positions.iter().enumerate() {
        let want = i64::from(positions[0]) + index as i64;
        if positions[0] < 0 || i64::from(*position) != want {
            let expected = "a row's positions follow each other, from 0 at least".to_owned();
            return Err(wrong_value(
                "positions",
                start as usize + index,
                (*position).into(),
                expected,
            ));
        }
    }
    let length = rows.sequence_lengths[row];
    let last = positions[positions.len() - 1];
    if i64::from(length) != i64::from(last) + 1 {
        let expected = format!("the row's last position is {last}");
        return Err(wrong_value(
            "sequence_lengths",
            row,
            length.into(),
            expected,
        ));
    }
    let blocks = (length as usize).div_ceil(shape.block_size);
    let table = rows.rows[row];
    let place = usize::try_from(table).map(|table| table * rows.table_stride);
    let place = place
        .ok()
        .filter(|place| place + blocks <= rows.tables.len());
    let Some(place) = place.filter(|_| blocks <= rows.table_stride) else {
        let expected = format!("its table has to hold {blocks} blocks");
        return Err(wrong_value("rows", row, table.into(), expected));
    };
    for (index, block) in rows.tables[place..place + blocks].iter().enumerate() {
        if !(0..shape.blocks as i64).contains(&i64::from(*block)) {
            let expected = format!("the pool has {} blocks", shape.blocks);
            return Err(wrong_value(
                "tables",
                place + index,
                (*block).into(),
                expected,
            ));
        }
    }
    Ok(())
}
