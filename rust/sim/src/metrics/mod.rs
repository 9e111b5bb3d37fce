//! What is measured of a run.

mod distribution;
mod series;
mod tenants;

pub(crate) use distribution::Distribution;
pub use distribution::Summary;
pub use series::Sample;
pub(crate) use series::Series;
pub(crate) use tenants::Tenants;
pub use tenants::{Fairness, TenantReport};

use crate::options::Slo;
use crate::scheduler::End;

/// An open request as the harness knows it.
#[derive(Clone, Debug)]
pub(crate) struct Open {
    pub(crate) submission: u64,
    pub(crate) ticket: u64,
    pub(crate) replica: u32,
    pub(crate) tenant: usize,
    pub(crate) prompt: u32,
    /// Output tokens until the end of sequence.
    pub(crate) output: u32,
    pub(crate) cached: u32,
    pub(crate) arrived_at: u64,
    pub(crate) admitted: bool,
    pub(crate) first_token_at: u64,
    pub(crate) last_token_at: u64,
    /// Output tokens that came out.
    pub(crate) outputs: u32,
    pub(crate) preemptions: u32,
}

/// Counts and distributions of one run.
#[derive(Clone, Debug)]
pub(crate) struct Metrics {
    slo_ttft_ns: u64,
    slo_tpot_ns: u64,
    pub(crate) arrived: u64,
    pub(crate) finished: u64,
    pub(crate) aborted: u64,
    pub(crate) expired: u64,
    pub(crate) failed: u64,
    pub(crate) overloaded: u64,
    pub(crate) impossible: u64,
    pub(crate) good: u64,
    pub(crate) ttft: Distribution,
    pub(crate) gap: Distribution,
    pub(crate) tpot: Distribution,
    pub(crate) e2e: Distribution,
    pub(crate) queued: Distribution,
    pub(crate) prompt_tokens: u64,
    pub(crate) cached_tokens: u64,
    pub(crate) generated: u64,
    pub(crate) preemptions: u64,
    pub(crate) preempted_requests: u64,
    pub(crate) most_preemptions: u32,
    pub(crate) tenants: Tenants,
}

impl Metrics {
    pub(crate) fn new(slo: Slo) -> Self {
        Self {
            slo_ttft_ns: (slo.ttft_ms * 1e6) as u64,
            slo_tpot_ns: (slo.tpot_ms * 1e6) as u64,
            arrived: 0,
            finished: 0,
            aborted: 0,
            expired: 0,
            failed: 0,
            overloaded: 0,
            impossible: 0,
            good: 0,
            ttft: Distribution::new(3),
            gap: Distribution::new(3),
            tpot: Distribution::new(3),
            e2e: Distribution::new(3),
            queued: Distribution::new(3),
            prompt_tokens: 0,
            cached_tokens: 0,
            generated: 0,
            preemptions: 0,
            preempted_requests: 0,
            most_preemptions: 0,
            tenants: Tenants::default(),
        }
    }

    pub(crate) fn admitted(&mut self, open: &mut Open, cached: u32, now: u64) {
        open.admitted = true;
        open.cached = cached;
        self.prompt_tokens += u64::from(open.prompt);
        self.cached_tokens += u64::from(cached);
        self.queued.record(now - open.arrived_at);
        self.tenants.left_queue(open.tenant);
    }

    pub(crate) fn token(&mut self, open: &mut Open, now: u64) {
        self.generated += 1;
        if open.outputs == 0 {
            open.first_token_at = now;
            let ttft = now - open.arrived_at;
            self.ttft.record(ttft);
            self.tenants.get(open.tenant).ttft.record(ttft);
            self.tenants
                .served(open.tenant, open.prompt - open.cached, 1);
        } else {
            let gap = now - open.last_token_at;
            self.gap.record(gap);
            self.tenants.get(open.tenant).gap.record(gap);
            self.tenants.served(open.tenant, 0, 1);
        }
        open.outputs += 1;
        open.last_token_at = now;
    }

    pub(crate) fn preempted(&mut self, open: &mut Open) {
        self.preemptions += 1;
        self.preempted_requests += u64::from(open.preemptions == 0);
        open.preemptions += 1;
        self.most_preemptions = self.most_preemptions.max(open.preemptions);
    }

    pub(crate) fn ended(&mut self, open: &Open, end: End, now: u64) {
        if !open.admitted {
            self.queued.record(now - open.arrived_at);
            self.tenants.left_queue(open.tenant);
        }
        match end {
            End::Finished => self.finished(open, now),
            End::Aborted => self.aborted += 1,
            End::Expired => self.expired += 1,
            End::Failed => self.failed += 1,
        }
    }

    fn finished(&mut self, open: &Open, now: u64) {
        self.finished += 1;
        self.tenants.get(open.tenant).finished += 1;
        self.e2e.record(now - open.arrived_at);
        let further = u64::from(open.outputs.max(2) - 1);
        let tpot = (open.last_token_at - open.first_token_at) / further;
        if open.outputs > 1 {
            self.tpot.record(tpot);
            self.tenants.get(open.tenant).tpot.record(tpot);
        }
        let ttft = open.first_token_at - open.arrived_at;
        self.good += u64::from(ttft <= self.slo_ttft_ns && tpot <= self.slo_tpot_ns);
    }
}
