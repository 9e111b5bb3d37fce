//! A killable worker process for the tests: what `python -P -m diptych.worker` is in an installation.

use diptych_runtime::worker::{Port, PortError, run_scripted};

fn main() -> Result<(), PortError> {
    run_scripted(&Port::from_stdin()?)
}
