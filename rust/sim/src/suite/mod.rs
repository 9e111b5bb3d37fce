//! The examples that must hold, each beside the field's other policies on the same arrivals.

mod fuzz;
mod long_prompts;
mod page;
mod prefill_orders;
mod pressure;
mod stall;
mod tenants;

pub use fuzz::example as fuzz;
pub use page::markdown;

use crate::report::Report;
use crate::{CORE_POLICY, DEVICE_SETS, DeviceSet, Error, Options, Progress};

/// What is told while the suite runs: the example, and how far it is. False ends the suite.
pub type Watch<'a> = dyn FnMut(&str, Progress) -> bool + 'a;

/// Every policy of the comparison, ours first.
pub(crate) const POLICIES: [&str; 6] = [
    CORE_POLICY,
    "static",
    "prefill-first",
    "fixed-budget",
    "reserve-max",
    "first-chunk",
];

/// All examples.
#[derive(Clone, Debug, PartialEq)]
pub struct Suite {
    /// In the order of the design.
    pub examples: Vec<Example>,
}

/// One example on one device.
#[derive(Clone, Debug, PartialEq)]
pub struct Example {
    /// What arrives, in words.
    pub title: String,
    /// What must hold of Diptych.
    pub criterion: String,
    /// Names of the figures.
    pub columns: Vec<&'static str>,
    /// Each policy's figures.
    pub lines: Vec<Line>,
    /// Whether it holds.
    pub holds: bool,
}

/// One policy's figures.
#[derive(Clone, Debug, PartialEq)]
pub struct Line {
    /// The policy.
    pub policy: String,
    /// As many as there are columns.
    pub figures: Vec<String>,
    /// Whether it keeps the criterion; none where it is not judged alone.
    pub holds: Option<bool>,
}

impl Suite {
    /// Whether every example holds.
    #[must_use]
    pub fn holds(&self) -> bool {
        self.examples.iter().all(|example| example.holds)
    }
}

/// Runs every example with every named set of coefficients; `fuzz_requests` are the random ones at the end.
///
/// # Errors
/// As [`crate::simulate`].
pub fn suite(fuzz_requests: u64, watch: &mut Watch<'_>) -> Result<Suite, Error> {
    let mut examples = Vec::new();
    for set in &DEVICE_SETS {
        examples.push(long_prompts::example(set, watch)?);
        examples.push(stall::example(set, watch)?);
        examples.push(tenants::example(set, watch)?);
        examples.push(pressure::example(set, watch)?);
        examples.push(prefill_orders::example(set, watch)?);
    }
    examples.push(fuzz::example(fuzz_requests, watch)?);
    Ok(Suite { examples })
}

/// Options on which all examples build.
pub(crate) fn base(set: &DeviceSet) -> Options {
    Options {
        device: set.name.into(),
        policies: POLICIES.map(String::from).to_vec(),
        measure_host: false,
        ..Options::default()
    }
}

/// Runs options under the name of an example.
pub(crate) fn run(
    example: &str,
    options: &Options,
    watch: &mut Watch<'_>,
) -> Result<Report, Error> {
    crate::simulate(options, &mut |policy, progress| {
        watch(
            &format!("{example}: {policy} on {}", options.device),
            progress,
        )
    })
}

/// An example whose outcome is that of our own policy's line.
pub(crate) fn judged(
    title: String,
    criterion: String,
    columns: Vec<&'static str>,
    lines: Vec<Line>,
) -> Example {
    let ours = |line: &&Line| line.policy == CORE_POLICY;
    let holds = lines
        .iter()
        .filter(ours)
        .all(|line| line.holds != Some(false));
    Example {
        title,
        criterion,
        columns,
        lines,
        holds,
    }
}
