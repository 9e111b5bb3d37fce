//! The simulator: the same [`diptych_core::Core`] that serves, under virtual time.
//!
//! Requests arrive from a generator or a trace, a router sends each to a replica, a replica's scheduler plans steps,
//! a latency model says how long each takes, and a fake model whose next token is a hash of what came before
//! samples them. Equal options give equal results. The field's other schedulers stand beside the core
//! in [`reference`], behind one trait, so that policies are compared on the same arrivals and the same device.

#![forbid(unsafe_code)]

mod cluster;
mod core_scheduler;
mod demo;
mod device_set;
mod error;
mod latency;
mod metrics;
mod options;
mod oracle;
mod plot;
mod random;
pub mod reference;
mod replica;
mod report;
mod router;
mod scheduler;
pub mod suite;
mod table;
mod workload;

use std::time::Instant;

pub use cluster::Progress;
pub use core_scheduler::CoreScheduler;
pub use demo::batching as demo_batching;
pub use device_set::{DEVICE_SETS, DeviceSet};
pub use error::Error;
pub use latency::{Coefficients, Noise, Shape};
pub use metrics::{Fairness, Sample, Summary, TenantReport};
pub use options::{CORE_POLICY, Engine, EngineOptions, Options, PrefillOrder, Slo};
pub use plot::html;
pub use report::{Cost, Goodput, HostReport, Preemptions, Report, Requests, Run, Steps, Tokens};
pub use router::Routing;
pub use scheduler::{End, Gauges, Job, Outcome, Refusal, Scheduler, Step};
pub use table::text;
pub use workload::{Arrival, Arrivals, Lengths, Listed, Sharing, Workload};

use cluster::{Cluster, Settings};
use latency::Device;
use metrics::Metrics;
use reference::{POLICIES, Reference};
use replica::Replica;
use router::Router;

/// Runs the workload once under each policy. `progress` is told the policy and how far it is, now and then; false
/// ends the simulation.
///
/// # Errors
/// [`Error`] for options that cannot work, unreadable traces, broken schedulers, and an interruption.
pub fn simulate(
    options: &Options,
    progress: &mut dyn FnMut(&str, Progress) -> bool,
) -> Result<Report, Error> {
    options.check()?;
    let set = DeviceSet::named(&options.device)?;
    let engine = options.engine()?;
    let mut runs = Vec::with_capacity(options.policies.len());
    for policy in &options.policies {
        runs.push(run(policy, options, &engine, &set, progress)?);
    }
    Ok(Report {
        options: options.clone(),
        engine,
        device_origin: match options.coefficients {
            Some(_) => "coefficients given in the options".into(),
            None => set.origin.into(),
        },
        runs,
    })
}

fn run(
    policy: &str,
    options: &Options,
    engine: &Engine,
    set: &DeviceSet,
    progress: &mut dyn FnMut(&str, Progress) -> bool,
) -> Result<Run, Error> {
    let coefficients = options.coefficients.unwrap_or(set.coefficients);
    let mut replicas = Vec::with_capacity(options.replicas as usize);
    for number in 0..options.replicas {
        let device = Device::new(coefficients, options.noise, options.seed, number);
        replicas.push(Replica::new(scheduler(policy, options, engine)?, device));
    }
    let counts_skipped = policy != CORE_POLICY || engine.overlap_depth == 0;
    let settings = Settings {
        sample_ns: ((options.sample_s * 1e9) as u64).max(1),
        horizon_ns: options
            .horizon_s
            .map_or(u64::MAX, |seconds| (seconds * 1e9) as u64),
        check_every: options.check_every.unwrap_or(u64::MAX),
        counts_skipped,
        measures_host: options.measure_host,
    };
    let router = Router::new(options.router, options.replicas, options.seed);
    let metrics = Metrics::new(options.slo);
    let mut cluster = Cluster::new(policy, replicas, router, metrics, settings);
    let source = options.workload.source(options.seed)?;
    let expected = options.workload.expected()?;
    let started = Instant::now();
    cluster.run(source, expected, &mut |now| progress(policy, now))?;
    let wall_s = started.elapsed().as_secs_f64();
    progress(policy, cluster.progress(expected));
    Ok(Run::new(policy, cluster, counts_skipped, wall_s))
}

fn scheduler(
    policy: &str,
    options: &Options,
    engine: &Engine,
) -> Result<Box<dyn Scheduler>, Error> {
    match POLICIES.into_iter().find(|known| known.name == policy) {
        Some(known) => Ok(Box::new(Reference::new(known, options.eviction, engine))),
        None => Ok(Box::new(CoreScheduler::new(engine)?)),
    }
}
