//! A report as text for people.

use std::fmt::{Arguments, Write};

use crate::report::{Report, Run};

/// A line of the table: what it is, and how it reads for one run.
type Row = (&'static str, fn(&Run) -> String);

const ROWS: [Row; 21] = [
    ("requests finished", |run| run.requests.finished.to_string()),
    ("aborted, expired, refused, open", |run| {
        let refused = run.requests.overloaded + run.requests.impossible;
        format!(
            "{}, {}, {refused}, {}",
            run.requests.aborted, run.requests.expired, run.requests.open
        )
    }),
    ("TTFT p50, ms", |run| number(run.ttft_ms.p50)),
    ("TTFT p99, ms", |run| number(run.ttft_ms.p99)),
    ("ITL p50, ms", |run| number(run.itl_ms.p50)),
    ("ITL p99, ms", |run| number(run.itl_ms.p99)),
    ("ITL worst, ms", |run| number(run.itl_ms.max)),
    ("TPOT p99, ms", |run| number(run.tpot_ms.p99)),
    ("goodput at SLO, requests/s", |run| {
        number(run.goodput.per_s)
    }),
    ("within SLO", |run| percent(run.goodput.share)),
    ("output tokens/s", |run| number(run.tokens.generated_per_s)),
    ("prefix hit ratio", |run| percent(run.hit_ratio)),
    ("preempted requests", |run| percent(run.preemptions.share)),
    ("preemptions, most of one", |run| {
        format!("{}, {}", run.preemptions.total, run.preemptions.most)
    }),
    ("decode rows left out", |run| {
        run.skipped_decode_rows
            .map_or("-".into(), |rows| rows.to_string())
    }),
    ("queue age p99, ms", |run| number(run.queue_ms.p99)),
    ("queue age worst, ms", |run| number(run.queue_ms.max)),
    ("Jain index", |run| {
        run.fairness
            .jain
            .map_or("-".into(), |jain| format!("{jain:.3}"))
    }),
    ("worst service gap, tokens", |run| {
        run.fairness.max_service_gap.to_string()
    }),
    ("plan, median µs (p99)", |run| {
        run.host.map_or("-".into(), |host| {
            format!("{:.2} ({:.2})", host.plan_us.p50, host.plan_us.p99)
        })
    }),
    ("simulated steps/s", |run| {
        run.host
            .map_or("-".into(), |host| format!("{:.0}", host.steps_per_s))
    }),
];

/// The runs side by side, one column each.
#[must_use]
pub fn text(report: &Report) -> String {
    let options = &report.options;
    let slo = &options.slo;
    let replicas = match options.replicas {
        1 => "1 replica".into(),
        many => format!("{many} replicas"),
    };
    let mut out = String::new();
    put(
        &mut out,
        format_args!(
            "{} ({}), {replicas} of {} blocks, seed {}; SLO: TTFT {} ms, TPOT {} ms\n",
            options.device,
            report.device_origin,
            report.engine.blocks,
            options.seed,
            slo.ttft_ms,
            slo.tpot_ms,
        ),
    );
    let mut lines = vec![vec![String::new()]];
    lines[0].extend(report.runs.iter().map(|run| run.policy.clone()));
    for (name, read) in ROWS {
        let mut line = vec![name.to_owned()];
        line.extend(report.runs.iter().map(read));
        lines.push(line);
    }
    out + &aligned(&lines)
}

/// Columns padded to equal width: the first to the right, the others to the left.
fn aligned(lines: &[Vec<String>]) -> String {
    let columns = lines.first().map_or(0, Vec::len);
    let width = |column: usize| lines.iter().map(|line| line[column].chars().count()).max();
    let widths: Vec<usize> = (0..columns)
        .map(|column| width(column).unwrap_or(0))
        .collect();
    let mut out = String::new();
    for line in lines {
        for (column, (cell, &width)) in line.iter().zip(&widths).enumerate() {
            let padding = " ".repeat(width - cell.chars().count());
            if column == 0 {
                put(&mut out, format_args!("{cell}{padding}"));
            } else {
                put(&mut out, format_args!("  {padding}{cell}"));
            }
        }
        out.truncate(out.trim_end().len());
        out.push('\n');
    }
    out
}

/// Three significant digits, and no fraction of a large number.
pub(crate) fn number(value: f64) -> String {
    let digits = match value.abs() {
        size if size >= 100.0 => 0,
        size if size >= 10.0 => 1,
        size if size >= 1.0 => 2,
        _ => 3,
    };
    format!("{value:.digits$}")
}

pub(crate) fn percent(share: f64) -> String {
    format!("{:.1} %", share * 100.0)
}

/// Appends formatted text.
pub(crate) fn put(out: &mut String, text: Arguments<'_>) {
    let written = out.write_fmt(text);
    debug_assert!(written.is_ok(), "a string takes everything");
}
