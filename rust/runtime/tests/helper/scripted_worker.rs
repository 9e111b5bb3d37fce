//! A killable worker process for the tests: what `python -P -m diptych.worker` is in an installation. With the arguments `host OPTIONS` a host that
//! prints its worker's process id and waits to be killed.

use std::io::Write;

use diptych_runtime::Engine;
use diptych_runtime::worker::{Port, run_scripted};

type Failure = Box<dyn std::error::Error>;

fn main() -> Result<(), Failure> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if let [mode, options] = arguments.as_slice()
        && mode == "host"
    {
        return host(options);
    }
    Ok(run_scripted(&Port::from_stdin()?)?)
}

fn host(options: &str) -> Result<(), Failure> {
    let engine = Engine::start(options.as_bytes())?;
    let pid = engine.worker_pid().ok_or("no worker process")?;
    writeln!(std::io::stdout(), "{pid}")?;
    loop {
        std::thread::park();
    }
}
