//! Which request kills workers? Policy for deaths of a worker process.
//!
//! The rows of unretired steps are suspects. A row is cleared once a step has retired that brings
//! it past the point it had reached when the worker died. When a worker dies again on uncleared
//! suspects, the older half of those goes on trial and the others park until the trial is over.
//! Halving goes on until one is on trial alone; nobody else is admitted beside it. It fails after
//! two deaths in which it was the only unretired row. A worker that is killed from outside thus
//! harms nobody: between two deaths some step retires and clears its rows.

/// How a request stands. Cleared by a retired step, not by time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) enum Standing {
    #[default]
    Clear,
    /// In an unretired step at a death, planned like any other.
    Suspect,
    /// The half that is planned after a repeated death.
    OnTrial,
    /// The half that is not.
    Parked,
}

/// A request's record.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Suspicion {
    pub(crate) standing: Standing,
    /// Retired positions that clear it.
    mark: u32,
    /// Deaths in which it was the only unretired row.
    lone_deaths: u8,
}

const FATAL_LONE_DEATHS: u8 = 2;

impl Suspicion {
    /// A worker died with a step unretired that computes up to position `end`. True: the culprit.
    pub(crate) fn accuse(&mut self, end: u32, alone: bool) -> bool {
        if self.standing == Standing::Clear {
            self.standing = Standing::Suspect;
        }
        self.mark = end;
        self.lone_deaths += u8::from(alone);
        self.lone_deaths >= FATAL_LONE_DEATHS
    }

    /// The trial is over: still suspected, no longer held back.
    pub(crate) fn release(&mut self) {
        if self.standing != Standing::Clear {
            self.standing = Standing::Suspect;
        }
    }
}

/// Numbers of requests by standing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Suspects {
    pub(crate) on_trial: u32,
    pub(crate) parked: u32,
}

impl Suspects {
    /// Whether requests that are not on trial may be admitted, those that are parked apart.
    pub(crate) fn admits_others(self) -> bool {
        self.on_trial != 1
    }

    /// Whether anybody is held back.
    pub(crate) fn is_trial(self) -> bool {
        self.on_trial + self.parked > 0
    }

    /// A step has retired with `end` positions of this request. True: the trial is over.
    pub(crate) fn step_retired(&mut self, suspicion: &mut Suspicion, end: u32) -> bool {
        suspicion.standing != Standing::Clear
            && end >= suspicion.mark
            && self.dismiss(std::mem::take(suspicion))
    }

    /// The request is cleared or gone. True: the trial is over.
    pub(crate) fn dismiss(&mut self, suspicion: Suspicion) -> bool {
        match suspicion.standing {
            Standing::Clear | Standing::Suspect => return false,
            Standing::OnTrial => self.on_trial -= 1,
            Standing::Parked => self.parked -= 1,
        }
        self.on_trial == 0 && self.parked > 0
    }
}

/// Sorts the accused into trial and parking after a repeated death. `accused` is oldest first and
/// says whose second death this is: only they are on trial, the others park. With no such request
/// this is a first death, and everybody is planned.
pub(crate) fn halve(accused: Vec<(bool, &mut Suspicion)>) -> Suspects {
    let repeated = accused.iter().filter(|(again, _)| *again).count() as u32;
    let mut counts = Suspects::default();
    for (again, suspicion) in accused {
        suspicion.standing = if repeated == 0 {
            Standing::Suspect
        } else if again && counts.on_trial < repeated.div_ceil(2) {
            counts.on_trial += 1;
            Standing::OnTrial
        } else {
            counts.parked += 1;
            Standing::Parked
        };
    }
    counts
}
