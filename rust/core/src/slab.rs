//! Slots of open requests, named by handles that are never reused.

use crate::Handle;
use crate::active::Active;

#[repr(C, align(64))]
#[derive(Clone, Debug)]
struct Slot {
    generation: u32,
    request: Option<Active>,
}

const _: () = assert!(size_of::<Slot>() <= 8 * 64);

#[derive(Clone, Debug, Default)]
pub(crate) struct Slab {
    slots: Vec<Slot>,
    free: Vec<u32>,
}

impl Slab {
    pub(crate) fn insert(&mut self, request: Active) -> Handle {
        let slot = self.free.pop().unwrap_or_else(|| {
            self.slots.push(Slot {
                generation: 0,
                request: None,
            });
            self.slots.len() as u32 - 1
        });
        let entry = &mut self.slots[slot as usize];
        entry.request = Some(request);
        Handle {
            slot,
            generation: entry.generation,
        }
    }

    /// Frees the slot. One whose generations are used up is retired for good.
    pub(crate) fn remove(&mut self, slot: u32) -> Option<Active> {
        let entry = &mut self.slots[slot as usize];
        let request = entry.request.take()?;
        if let Some(generation) = entry.generation.checked_add(1) {
            entry.generation = generation;
            self.free.push(slot);
        }
        Some(request)
    }

    /// The slot of a handle whose request is open.
    pub(crate) fn resolve(&self, handle: Handle) -> Option<u32> {
        let slot = self.slots.get(handle.slot as usize)?;
        (slot.generation == handle.generation && slot.request.is_some()).then_some(handle.slot)
    }

    /// Whether a slot has a request.
    pub(crate) fn is_open(&self, slot: u32) -> bool {
        self.slots[slot as usize].request.is_some()
    }

    /// The handle of the request in a slot.
    pub(crate) fn handle(&self, slot: u32) -> Handle {
        let generation = self.slots[slot as usize].generation;
        Handle { slot, generation }
    }

    /// The open request in a slot, with its handle.
    pub(crate) fn get_mut(&mut self, slot: u32) -> (Handle, &mut Active) {
        let entry = &mut self.slots[slot as usize];
        let generation = entry.generation;
        let request = entry.request.as_mut().expect(OPEN);
        (Handle { slot, generation }, request)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (u32, &Active)> {
        self.slots
            .iter()
            .enumerate()
            .filter_map(|(slot, entry)| Some((slot as u32, entry.request.as_ref()?)))
    }

    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = (u32, &mut Active)> {
        self.slots
            .iter_mut()
            .enumerate()
            .filter_map(|(slot, entry)| Some((slot as u32, entry.request.as_mut()?)))
    }
}

const OPEN: &str = "queue and running set name open requests only";

impl std::ops::Index<u32> for Slab {
    type Output = Active;

    fn index(&self, slot: u32) -> &Active {
        self.slots[slot as usize].request.as_ref().expect(OPEN)
    }
}

impl std::ops::IndexMut<u32> for Slab {
    fn index_mut(&mut self, slot: u32) -> &mut Active {
        self.slots[slot as usize].request.as_mut().expect(OPEN)
    }
}
