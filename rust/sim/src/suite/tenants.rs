//! One tenant sends twenty times what each of the others does, more than the device can serve.

use super::{Example, Line, Watch, base, judged, run};
use crate::table::number;
use crate::workload::{Arrivals, Workload};
use crate::{DeviceSet, Error, Options, Run};

const TENANTS: u64 = 5;
const FLOODER: u64 = 1;
/// How many times the isolated figure the others' may be.
const MOST: f64 = 2.0;

pub(super) fn example(set: &DeviceSet, watch: &mut Watch<'_>) -> Result<Example, Error> {
    let rate = set.rate / 7.0;
    let flooded = Options {
        workload: Workload {
            arrivals: Arrivals::TenantFlood { rate, factor: 20.0 },
            requests: 3_000,
            tenants: TENANTS,
            ..Workload::default()
        },
        ..base(set)
    };
    let mut isolated = flooded.clone();
    isolated.workload.without_tenant = Some(FLOODER);
    let isolated = run("(3) isolated tenants", &isolated, watch)?;
    let report = run("(3) flooding tenant", &flooded, watch)?;
    let lines = report.runs.iter().zip(&isolated.runs).map(|(run, alone)| {
        let (flooded, calm) = (others_ttft(run), others_ttft(alone));
        let own = &run.tenants[0].ttft_ms;
        Line {
            policy: run.policy.clone(),
            figures: vec![
                number(calm),
                number(flooded),
                format!("{:.1}", flooded / calm),
                number(own.p99),
                run.fairness
                    .jain
                    .map_or("-".into(), |jain| format!("{jain:.3}")),
                run.fairness.max_service_gap.to_string(),
            ],
            holds: Some(flooded <= MOST * calm),
        }
    });
    Ok(judged(
        format!(
            "(3) {}: one of five tenants sends twenty times what each other does",
            set.name
        ),
        "p99 TTFT of each other tenant at most twice that without the flood".into(),
        vec![
            "others' p99 TTFT alone, ms",
            "flooded, ms",
            "times",
            "flooder's, ms",
            "Jain index",
            "worst service gap",
        ],
        lines.collect(),
    ))
}

/// The largest p99 TTFT of a tenant that does not flood.
fn others_ttft(run: &Run) -> f64 {
    let others = run.tenants.iter().filter(|tenant| tenant.tenant != FLOODER);
    others.map(|tenant| tenant.ttft_ms.p99).fold(0.0, f64::max)
}
