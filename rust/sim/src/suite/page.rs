//! The suite as a page of results.

use super::{Example, Suite};
use crate::DEVICE_SETS;
use crate::reference::POLICIES;
use crate::table::put;

/// The page in Markdown.
#[must_use]
pub fn markdown(suite: &Suite) -> String {
    let mut out = String::from(
        "# Diptych's core and the field's policies in the simulator\n\n`make bench-simulate`. Virtual time, equal arrivals for every policy of a table, step times with 5 % lognormal noise.\n\n",
    );
    for set in DEVICE_SETS {
        put(
            &mut out,
            format_args!("- `{}`: {}.\n", set.name, set.origin),
        );
    }
    out += "\nThe peers' policies are small reference schedulers in `rust/sim/src/reference`:\n\n";
    for policy in POLICIES {
        put(
            &mut out,
            format_args!("- `{}`: {}.\n", policy.name, policy.like),
        );
    }
    for example in &suite.examples {
        out += &table(example);
    }
    out
}

fn table(example: &Example) -> String {
    let verdict = |holds| if holds { "pass" } else { "MISS" };
    let mut out = format!(
        "\n## {}\n\nMust hold: {}. **{}**\n\n| policy | {} | |\n|{}\n",
        example.title,
        example.criterion,
        verdict(example.holds),
        example.columns.join(" | "),
        " --- |".repeat(example.columns.len() + 2),
    );
    for line in &example.lines {
        let figures = line.figures.join(" | ");
        let judged = line.holds.map_or("", verdict);
        put(
            &mut out,
            format_args!("| {} | {figures} | {judged} |\n", line.policy),
        );
    }
    out
}
