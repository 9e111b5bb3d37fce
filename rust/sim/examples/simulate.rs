//! The simulator without Python: `cargo run --release -p diptych-sim --example simulate -- '{"policies": […]}'`
//! prints the table to standard error and the JSON result to standard output; `batching` prints the demonstration,
//! `suite` the page of the examples that must hold.

use std::error::Error;
use std::io::Write;

use diptych_sim::{Options, demo_batching, simulate, suite, text};

fn main() -> Result<(), Box<dyn Error>> {
    let argument = std::env::args().nth(1).unwrap_or_else(|| "{}".into());
    let mut out = std::io::stdout();
    if argument == "batching" {
        return Ok(write!(out, "{}", demo_batching()?)?);
    }
    if argument == "suite" {
        let suite = suite::suite(1_000_000, &mut |_, _| true)?;
        return Ok(write!(out, "{}", suite::markdown(&suite))?);
    }
    let options = Options::from_json(&argument)?;
    let report = simulate(&options, &mut |_, _| true)?;
    write!(std::io::stderr(), "{}", text(&report))?;
    writeln!(out, "{}", serde_json::to_string(&report)?)?;
    Ok(())
}
