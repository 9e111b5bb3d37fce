//! A router that follows a core by its KV events alone.

use std::collections::{BTreeMap, BTreeSet};

use diptych_core::Core;
use diptych_core::kv_events::{KvChange, KvEventsError, KvSnapshot, StoredBlock, chain_hash};

use crate::operation::Operation;

/// What a router believes to be stored.
#[derive(Clone, Debug, Default)]
pub(crate) struct Router {
    next: u64,
    stored: BTreeMap<u64, StoredBlock>,
}

impl Router {
    /// Begins in the middle.
    pub(crate) fn from_snapshot(snapshot: KvSnapshot) -> Result<Self, String> {
        let mut router = Self {
            next: snapshot.next,
            stored: BTreeMap::new(),
        };
        for block in snapshot.blocks {
            router.store(block)?;
        }
        Ok(router)
    }

    /// Invariants 41 and 44: events lead to exactly what can be found, and have no gap.
    pub(crate) fn follow(&mut self, core: &Core) -> Result<(), String> {
        let mut events = Vec::new();
        let next = core
            .kv_events(self.next, usize::MAX, &mut events)
            .map_err(|error| error.to_string())?;
        for event in events {
            if event.sequence != self.next {
                return Err(format!(
                    "invariant 44: event {} follows {}",
                    event.sequence, self.next
                ));
            }
            self.next += 1;
            match event.change {
                KvChange::Stored(block) => self.store(block)?,
                KvChange::Removed { hash } => {
                    let removed = self.stored.remove(&hash);
                    removed.ok_or_else(|| {
                        format!("invariant 44: {hash:#x} is removed before it is stored")
                    })?;
                }
                KvChange::Cleared => self.stored.clear(),
            }
        }
        let snapshot = core.kv_snapshot();
        if (next, snapshot.next) != (self.next, self.next) {
            return Err(format!("invariant 44: {next} follows {}", self.next));
        }
        let believed: BTreeSet<u64> = self.stored.keys().copied().collect();
        let found: BTreeSet<u64> = snapshot.blocks.iter().map(|block| block.hash).collect();
        if believed == found && found.len() == snapshot.blocks.len() {
            Ok(())
        } else {
            Err(format!(
                "invariant 41: a router believes {believed:x?}, stored are {found:x?}"
            ))
        }
    }

    fn store(&mut self, block: StoredBlock) -> Result<(), String> {
        let named = chain_hash(block.parent, block.namespace, &block.tokens);
        let orphan = block.parent.filter(|hash| !self.stored.contains_key(hash));
        if named != block.hash || orphan.is_some() {
            return Err(format!(
                "{block:?} bears hash {named:#x}, or its parent is unknown"
            ));
        }
        match self.stored.insert(block.hash, block) {
            None => Ok(()),
            Some(twice) => Err(format!("{twice:?} is stored twice")),
        }
    }
}

/// A core without a ring says so, and one with a small ring says what it has forgotten.
#[test]
fn a_reader_that_fell_behind_begins_with_a_snapshot() {
    use crate::engine::{Engine, prompt, request, small};

    let mut engine = Engine::new(&small());
    engine.run(request(&prompt(1, 16), 2));
    let read = engine.world.core.kv_events(0, 9, &mut Vec::new());
    assert_eq!(read, Err(KvEventsError::Off));

    let mut engine = Engine::new(&diptych_core::CoreConfig {
        kv_events: 3,
        ..small()
    });
    engine.run(request(&prompt(1, 16), 2));
    engine.apply(&Operation::ResetPrefixCache);
    engine.run(request(&prompt(1, 16), 2));
    let core = &engine.world.core;
    let read = core.kv_events(0, 9, &mut Vec::new());
    assert!(
        matches!(read, Err(KvEventsError::Gone { from: 0, oldest }) if oldest > 3),
        "{read:?}"
    );
    let mut router = Router::from_snapshot(core.kv_snapshot()).expect("parents come first");
    router.follow(core).expect("a snapshot is all there is");
}
