//! The event loop: virtual time moves from one arrival, end of a step, or departing client to the next.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use crate::Error;
use crate::metrics::{Metrics, Open, Sample, Series};
use crate::oracle::Chain;
use crate::replica::{Host, Replica};
use crate::router::Router;
use crate::scheduler::{END_OF_SEQUENCE, End, Job, Outcome, Refusal};
use crate::workload::{Arrival, Source};

/// Submissions name their place among the open requests in this many low bits.
const PLACE_BITS: u32 = 24;

/// What will happen at a moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Due {
    StepEnds { replica: u32 },
    ClientLeaves { submission: u64 },
}

/// An open request with the state of its fake model.
struct Place {
    open: Open,
    chain: Chain,
    sampled: u32,
    /// Whether its next token needs only one more token computed.
    decodes: bool,
}

impl Place {
    fn new(open: Open, chain: Chain) -> Self {
        Self {
            open,
            chain,
            sampled: 0,
            decodes: false,
        }
    }
}

/// What a caller may see while a simulation runs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Progress {
    /// Requests that have ended.
    pub ended: u64,
    /// Requests that will arrive, at most.
    pub expected: u64,
    /// Virtual seconds since the start.
    pub virtual_s: f64,
}

pub(crate) struct Cluster {
    policy: String,
    pub(crate) replicas: Vec<Replica>,
    router: Router,
    places: Vec<Option<Place>>,
    vacant: Vec<usize>,
    due: BinaryHeap<Reverse<(u64, u64, Due)>>,
    sequence: u64,
    arrivals: u64,
    pub(crate) now: u64,
    pub(crate) metrics: Metrics,
    pub(crate) series: Series,
    pub(crate) host: Option<Host>,
    /// Rows that could decode and were left out of a step, where no steps are planned ahead.
    pub(crate) skipped_rows: u64,
    /// Rows that could decode, by replica.
    decoding: Vec<u64>,
    ids: Vec<u32>,
    settings: Settings,
}

/// How a cluster is run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Settings {
    pub(crate) sample_ns: u64,
    pub(crate) horizon_ns: u64,
    pub(crate) check_every: u64,
    pub(crate) counts_skipped: bool,
    pub(crate) measures_host: bool,
}

impl Cluster {
    pub(crate) fn new(
        policy: &str,
        replicas: Vec<Replica>,
        router: Router,
        metrics: Metrics,
        settings: Settings,
    ) -> Self {
        Self {
            policy: policy.into(),
            decoding: vec![0; replicas.len()],
            replicas,
            router,
            places: Vec::new(),
            vacant: Vec::new(),
            due: BinaryHeap::new(),
            sequence: 0,
            arrivals: 0,
            now: 0,
            metrics,
            series: Series::new(),
            host: settings.measures_host.then(Host::new),
            skipped_rows: 0,
            ids: Vec::new(),
            settings,
        }
    }

    /// Requests that are open.
    pub(crate) fn open(&self) -> usize {
        self.places.len() - self.vacant.len()
    }

    /// Runs until nothing is left, or to the horizon. `progress` is asked now and then whether to go on.
    pub(crate) fn run(
        &mut self,
        mut source: Source,
        expected: u64,
        progress: &mut dyn FnMut(Progress) -> bool,
    ) -> Result<(), Error> {
        let mut arrival = source.next().transpose()?;
        let mut sample_at = 0;
        let mut turns = 0_u64;
        loop {
            let due = self.due.peek().map(|Reverse((at, ..))| *at);
            let next = match (arrival.as_ref().map(|arrival| arrival.at), due) {
                (Some(arrives), Some(due)) => arrives.min(due),
                (Some(at), None) | (None, Some(at)) => at,
                (None, None) => break,
            };
            while sample_at <= next.min(self.settings.horizon_ns) {
                self.sample(sample_at);
                sample_at += self.settings.sample_ns;
            }
            if next > self.settings.horizon_ns {
                self.now = self.settings.horizon_ns;
                return Ok(());
            }
            self.now = next;
            if due.is_some_and(|due| due == next) {
                self.happen()?;
            } else if let Some(arrived) = arrival.take() {
                self.arrive(arrived);
                arrival = source.next().transpose()?;
            }
            turns += 1;
            if turns.is_multiple_of(1_024) && !progress(self.progress(expected)) {
                return Err(Error::Interrupted);
            }
        }
        self.sample(self.now);
        self.stalled()
    }

    pub(crate) fn progress(&self, expected: u64) -> Progress {
        Progress {
            ended: self.metrics.arrived - self.open() as u64,
            expected,
            virtual_s: self.now as f64 / 1e9,
        }
    }

    fn stalled(&self) -> Result<(), Error> {
        let open = self.places.iter().flatten().next();
        match open {
            None => Ok(()),
            Some(place) => Err(Error::Stalled {
                policy: self.policy.clone(),
                replica: place.open.replica,
                now_ns: self.now,
                open: self.open(),
            }),
        }
    }

    fn schedule(&mut self, at: u64, due: Due) {
        self.sequence += 1;
        self.due.push(Reverse((at, self.sequence, due)));
    }

    fn happen(&mut self) -> Result<(), Error> {
        let Some(Reverse((_, _, due))) = self.due.pop() else {
            return Ok(());
        };
        match due {
            Due::StepEnds { replica } => self.end_step(replica)?,
            Due::ClientLeaves { submission } => self.leave(submission),
        }
        Ok(())
    }

    fn arrive(&mut self, arrival: Arrival) {
        self.metrics.arrived += 1;
        let tenant = self.metrics.tenants.place(arrival.tenant);
        self.metrics.tenants.get(tenant).arrived += 1;
        let prompt = arrival.prompt.len() as u32;
        let replica = self.router.route(&arrival.prompt);
        let place = self.vacant.pop().unwrap_or_else(|| {
            self.places.push(None);
            self.places.len() - 1
        });
        let submission = self.arrivals << PLACE_BITS | place as u64;
        self.arrivals += 1;
        let chain = Chain::new(&arrival.prompt);
        let job = Job {
            submission,
            prompt: arrival.prompt,
            max_tokens: arrival.max_tokens,
            tenant: arrival.tenant,
            priority: arrival.priority,
            deadline: arrival.timeout.map(|after| self.now + after),
            first_token_deadline: arrival.ttft_timeout.map(|after| self.now + after),
        };
        let scheduler = &mut self.replicas[replica as usize].scheduler;
        let ticket = match scheduler.submit(job, self.now) {
            Ok(ticket) => ticket,
            Err(refusal) => {
                match refusal {
                    Refusal::Overloaded(_) => self.metrics.overloaded += 1,
                    Refusal::Impossible(_) => self.metrics.impossible += 1,
                }
                self.router.ended(replica, prompt);
                self.vacant.push(place);
                return;
            }
        };
        self.metrics.tenants.queued(tenant);
        let open = Open {
            submission,
            ticket,
            replica,
            tenant,
            prompt,
            output: arrival.output,
            cached: 0,
            arrived_at: self.now,
            admitted: false,
            first_token_at: 0,
            last_token_at: 0,
            outputs: 0,
            preemptions: 0,
        };
        self.places[place] = Some(Place::new(open, chain));
        if let Some(after) = arrival.abort_after {
            self.schedule(self.now + after, Due::ClientLeaves { submission });
        }
        self.launch(replica);
    }

    fn place(&mut self, submission: u64) -> Option<&mut Place> {
        let index = (submission & ((1 << PLACE_BITS) - 1)) as usize;
        self.places[index]
            .as_mut()
            .filter(|place| place.open.submission == submission)
    }

    fn leave(&mut self, submission: u64) {
        let Some(place) = self.place(submission) else {
            return;
        };
        let (replica, ticket) = (place.open.replica, place.open.ticket);
        let now = self.now;
        self.replicas[replica as usize].scheduler.abort(ticket, now);
        self.hear(replica);
        self.launch(replica);
    }

    fn end_step(&mut self, replica: u32) -> Result<(), Error> {
        let ended = self.replicas[replica as usize].ended_step();
        let mut ids = std::mem::take(&mut self.ids);
        ids.clear();
        ids.extend(ended.0.iter().map(|&submission| self.sampled(submission)));
        let now = self.now;
        let completed =
            self.replicas[replica as usize].complete(ended, &ids, now, self.host.as_mut());
        self.ids = ids;
        completed.map_err(|violation| self.violation(replica, violation))?;
        self.hear(replica);
        self.launch(replica);
        let steps = self.replicas[replica as usize].work.steps;
        if steps.is_multiple_of(self.settings.check_every) {
            let checked = self.replicas[replica as usize].scheduler.check();
            checked.map_err(|violation| self.violation(replica, violation))?;
        }
        Ok(())
    }

    /// The fake model's next token for a request; any for one that has ended meanwhile.
    fn sampled(&mut self, submission: u64) -> u32 {
        let Some(place) = self.place(submission) else {
            return END_OF_SEQUENCE;
        };
        place.sampled += 1;
        if place.sampled >= place.open.output {
            END_OF_SEQUENCE
        } else {
            place.chain.next()
        }
    }

    /// Launches what can be launched. Where nothing can, a later arrival may change that; `run` finds out whether one comes.
    fn launch(&mut self, replica: u32) {
        let index = replica as usize;
        while let Some(ends_at) = self.replicas[index].launch(self.now, self.host.as_mut()) {
            self.schedule(ends_at, Due::StepEnds { replica });
            self.hear(replica);
            if self.settings.counts_skipped {
                self.count_skipped(replica);
            }
        }
        // A plan that launched nothing may still have ended or preempted somebody.
        self.hear(replica);
    }

    fn count_skipped(&mut self, replica: u32) {
        let planned = self.replicas[replica as usize]
            .newest_samples()
            .iter()
            .filter(|&&submission| {
                let index = (submission & ((1 << PLACE_BITS) - 1)) as usize;
                self.places[index]
                    .as_ref()
                    .is_some_and(|place| place.decodes)
            })
            .count() as u64;
        self.skipped_rows += self.decoding[replica as usize] - planned;
    }

    /// Takes in what a replica's scheduler has to tell.
    fn hear(&mut self, replica: u32) {
        let mut outcomes = std::mem::take(&mut self.replicas[replica as usize].outcomes);
        self.replicas[replica as usize]
            .scheduler
            .take_outcomes(&mut outcomes);
        for outcome in outcomes.drain(..) {
            self.take_in(replica, outcome);
        }
        self.replicas[replica as usize].outcomes = outcomes;
    }

    fn take_in(&mut self, replica: u32, outcome: Outcome) {
        let (Outcome::Admitted { submission, .. }
        | Outcome::Token { submission }
        | Outcome::Preempted { submission }
        | Outcome::Ended { submission, .. }) = outcome;
        let index = (submission & ((1 << PLACE_BITS) - 1)) as usize;
        let now = self.now;
        let place = self.places[index]
            .as_mut()
            .filter(|place| place.open.submission == submission)
            .expect("outcomes are of open requests");
        let decoding = &mut self.decoding[replica as usize];
        match outcome {
            Outcome::Admitted { cached, .. } => {
                self.metrics.admitted(&mut place.open, cached, now);
            }
            Outcome::Token { .. } => {
                *decoding += u64::from(!place.decodes);
                place.decodes = true;
                self.metrics.token(&mut place.open, now);
            }
            Outcome::Preempted { .. } => {
                *decoding -= u64::from(place.decodes);
                place.decodes = false;
                self.metrics.preempted(&mut place.open);
            }
            Outcome::Ended { end, .. } => {
                *decoding -= u64::from(place.decodes);
                self.end(index, end);
            }
        }
    }

    fn end(&mut self, index: usize, end: End) {
        let place = self.places[index].take().expect("an open request");
        self.vacant.push(index);
        self.metrics.ended(&place.open, end, self.now);
        self.router.ended(place.open.replica, place.open.prompt);
    }

    fn sample(&mut self, at: u64) {
        self.metrics.tenants.sample();
        let mut sample = Sample {
            at_s: at as f64 / 1e9,
            arrived: self.metrics.arrived,
            generated: self.metrics.generated,
            ..Sample::default()
        };
        let mut used = 0;
        let mut blocks = 0;
        for replica in &self.replicas {
            let gauges = replica.scheduler.gauges();
            sample.running += u64::from(gauges.running);
            sample.waiting += u64::from(gauges.waiting);
            used += u64::from(gauges.used_blocks);
            blocks += u64::from(gauges.blocks);
        }
        sample.used_share = used as f64 / blocks.max(1) as f64;
        self.series.push(sample);
    }

    fn violation(&self, replica: u32, violation: String) -> Error {
        Error::Violation {
            policy: self.policy.clone(),
            replica,
            now_ns: self.now,
            violation,
        }
    }
}
