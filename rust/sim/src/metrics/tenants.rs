//! What each tenant got, and how evenly.
//!
//! Service is counted as VTC does (Sheng and others 2024): 1 for a prompt token that was computed, 2 for an output
//! token. Two tenants are compared over the time in which both had requests waiting without a break, at each sample.

use std::collections::HashMap;

use serde::Serialize;

use super::distribution::{Distribution, Summary};

/// Tenants kept apart; all further ones are one.
const KEPT: usize = 64;
const PROMPT_WEIGHT: u64 = 1;
const OUTPUT_WEIGHT: u64 = 2;

#[derive(Clone, Debug)]
pub(crate) struct Tenant {
    name: u64,
    pub(crate) arrived: u64,
    pub(crate) finished: u64,
    pub(crate) ttft: Distribution,
    pub(crate) tpot: Distribution,
    pub(crate) gap: Distribution,
    /// Requests that wait for their first admission.
    waiting: u64,
    service: u64,
    /// At the last sample.
    backlogged: bool,
    service_before: u64,
    /// Service and samples while backlogged.
    backlogged_service: u64,
    backlogged_samples: u64,
}

/// One tenant's part of a report.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct TenantReport {
    /// The tenant, or 0 for all that are not kept apart.
    pub tenant: u64,
    /// Requests that arrived.
    pub arrived: u64,
    /// Requests that finished.
    pub finished: u64,
    /// Weighted tokens.
    pub service: u64,
    /// Time to first token.
    pub ttft_ms: Summary,
    /// Mean time per further token of each request.
    pub tpot_ms: Summary,
    /// Time between tokens.
    pub itl_ms: Summary,
}

/// How evenly tenants were served.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Fairness {
    /// Jain's index of the service rates of tenants while backlogged, from 1 / tenants to 1; none for fewer
    /// than two such tenants.
    pub jain: Option<f64>,
    /// Largest difference in service of two tenants while both were backlogged, in weighted tokens.
    pub max_service_gap: u64,
    /// Samples in which at least two tenants were backlogged.
    pub contended_samples: u64,
}

#[derive(Clone, Debug)]
pub(crate) struct Tenants {
    list: Vec<Tenant>,
    places: HashMap<u64, usize>,
    /// Service of the first less that of the second while both are backlogged.
    differences: Vec<i64>,
    fairness: Fairness,
}

impl Default for Tenants {
    fn default() -> Self {
        Self {
            list: Vec::new(),
            places: HashMap::new(),
            differences: vec![0; (KEPT + 1) * (KEPT + 1)],
            fairness: Fairness::default(),
        }
    }
}

impl Tenants {
    /// The place of a tenant.
    pub(crate) fn place(&mut self, name: u64) -> usize {
        if let Some(&place) = self.places.get(&name) {
            return place;
        }
        let place = self.list.len().min(KEPT);
        if place == self.list.len() {
            self.list.push(Tenant {
                name: if place == KEPT { 0 } else { name },
                arrived: 0,
                finished: 0,
                ttft: Distribution::new(2),
                tpot: Distribution::new(2),
                gap: Distribution::new(2),
                waiting: 0,
                service: 0,
                backlogged: false,
                service_before: 0,
                backlogged_service: 0,
                backlogged_samples: 0,
            });
        }
        self.places.insert(name, place);
        place
    }

    pub(crate) fn get(&mut self, place: usize) -> &mut Tenant {
        &mut self.list[place]
    }

    pub(crate) fn queued(&mut self, place: usize) {
        self.list[place].waiting += 1;
    }

    pub(crate) fn left_queue(&mut self, place: usize) {
        self.list[place].waiting -= 1;
    }

    pub(crate) fn served(&mut self, place: usize, prompt: u32, output: u32) {
        let service = PROMPT_WEIGHT * u64::from(prompt) + OUTPUT_WEIGHT * u64::from(output);
        self.list[place].service += service;
    }

    /// Compares the tenants that were backlogged since the last sample.
    pub(crate) fn sample(&mut self) {
        let mut gained = Vec::with_capacity(self.list.len());
        for tenant in &mut self.list {
            let backlogged = tenant.waiting > 0;
            let service = tenant.service - tenant.service_before;
            tenant.service_before = tenant.service;
            let throughout = backlogged && tenant.backlogged;
            tenant.backlogged = backlogged;
            if throughout {
                tenant.backlogged_service += service;
                tenant.backlogged_samples += 1;
            }
            gained.push(throughout.then_some(service as i64));
        }
        let contended = gained.iter().flatten().count() > 1;
        self.fairness.contended_samples += u64::from(contended);
        for (first, one) in gained.iter().enumerate() {
            for (second, other) in gained.iter().enumerate().skip(first + 1) {
                let difference = &mut self.differences[first * (KEPT + 1) + second];
                if let (Some(one), Some(other)) = (one, other) {
                    *difference += one - other;
                    let gap = difference.unsigned_abs();
                    self.fairness.max_service_gap = self.fairness.max_service_gap.max(gap);
                } else {
                    *difference = 0;
                }
            }
        }
    }

    pub(crate) fn fairness(&self) -> Fairness {
        let rates: Vec<f64> = self
            .list
            .iter()
            .filter(|tenant| tenant.backlogged_samples > 0)
            .map(|tenant| tenant.backlogged_service as f64 / tenant.backlogged_samples as f64)
            .collect();
        let sum: f64 = rates.iter().sum();
        let squares: f64 = rates.iter().map(|rate| rate * rate).sum();
        let comparable = rates.len() > 1 && squares > 0.0;
        Fairness {
            jain: comparable.then(|| sum * sum / (rates.len() as f64 * squares)),
            ..self.fairness
        }
    }

    pub(crate) fn report(&self) -> Vec<TenantReport> {
        let mut reports: Vec<TenantReport> = self
            .list
            .iter()
            .map(|tenant| TenantReport {
                tenant: tenant.name,
                arrived: tenant.arrived,
                finished: tenant.finished,
                service: tenant.service,
                ttft_ms: tenant.ttft.summary(),
                tpot_ms: tenant.tpot.summary(),
                itl_ms: tenant.gap.summary(),
            })
            .collect();
        reports.sort_by_key(|report| report.tenant);
        reports
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_time_in_which_both_are_backlogged_counts() {
        let mut tenants = Tenants::default();
        let (one, other) = (tenants.place(1), tenants.place(2));
        tenants.queued(one);
        tenants.sample();
        tenants.served(one, 1_000, 0);
        tenants.queued(other);
        tenants.sample();
        assert_eq!(tenants.fairness().max_service_gap, 0);
        tenants.served(one, 30, 0);
        tenants.served(other, 0, 5);
        tenants.sample();
        assert_eq!(tenants.fairness().max_service_gap, 20);
        tenants.served(other, 50, 0);
        tenants.sample();
        assert_eq!(tenants.fairness().max_service_gap, 30);
        tenants.left_queue(other);
        tenants.sample();
        let fairness = tenants.fairness();
        assert_eq!(
            (fairness.max_service_gap, fairness.contended_samples),
            (30, 2)
        );
    }

    #[test]
    fn jain_is_one_for_equal_rates_and_less_for_others() {
        let jain = |service: [u32; 2]| {
            let mut tenants = Tenants::default();
            let places = [tenants.place(1), tenants.place(2)];
            for place in places {
                tenants.queued(place);
            }
            tenants.sample();
            for (place, service) in places.into_iter().zip(service) {
                tenants.served(place, service, 0);
            }
            tenants.sample();
            tenants.fairness().jain.unwrap()
        };
        assert!((jain([5, 5]) - 1.0).abs() < 1e-12);
        assert!((jain([9, 0]) - 0.5).abs() < 1e-12);
    }
}
