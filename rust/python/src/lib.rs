//! `diptych_core._native`: the Python face of the runtime, the text crate, the simulator and the CPU kernels.
//!
//! Each method parses, releases the GIL where the call may wait, and maps errors by the one table in [`errors`].

mod array;
mod chunks;
mod engine;
mod errors;
mod frame;
mod kernels;
mod sim;
mod text;
mod worker;

use diptych_text::sse;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

/// `CLOCK_MONOTONIC` in nanoseconds, the clock of every time stamp of the engine; equals `time.monotonic_ns()`.
#[pyfunction]
fn now_ns() -> u64 {
    runtime::now_ns()
}

#[pymodule]
fn _native(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    module.add(
        "build_profile",
        if cfg!(debug_assertions) {
            "debug"
        } else {
            "release"
        },
    )?;
    module.add_function(wrap_pyfunction!(now_ns, module)?)?;
    errors::register(module)?;
    module.add_class::<engine::Engine>()?;
    module.add_class::<engine::FrameQueue>()?;
    module.add_class::<frame::Frame>()?;
    module.add_class::<frame::Accepted>()?;
    module.add_class::<frame::Finished>()?;
    module.add_class::<frame::Failure>()?;
    module.add_class::<worker::Port>()?;
    module.add_class::<worker::Step>()?;
    module.add_class::<worker::Control>()?;
    module.add_class::<array::Array>()?;
    module.add_function(wrap_pyfunction!(worker::run_scripted, module)?)?;
    module.add_class::<sim::Core>()?;
    module.add_class::<sim::Plan>()?;
    module.add_function(wrap_pyfunction!(sim::replay, module)?)?;
    module.add_class::<text::Tokenizer>()?;
    module.add_class::<text::ChatTemplate>()?;
    module.add_class::<text::TextStream>()?;
    module.add_class::<chunks::AnswerChunks>()?;
    module.add("KEEP_ALIVE", PyBytes::new(module.py(), sse::KEEP_ALIVE))?;
    module.add_class::<sim::SimulationReport>()?;
    module.add_function(wrap_pyfunction!(sim::simulate, module)?)?;
    module.add_function(wrap_pyfunction!(sim::simulate_suite, module)?)?;
    module.add_function(wrap_pyfunction!(sim::demo_batching, module)?)?;
    module.add_class::<kernels::Model>()?;
    module.add_class::<kernels::Weights>()?;
    module.add_function(wrap_pyfunction!(kernels::instruction_sets, module)?)?;
    module.add_function(wrap_pyfunction!(kernels::attention, module)?)?;
    module.add_function(wrap_pyfunction!(kernels::pack_weights, module)?)?;
    module.add_function(wrap_pyfunction!(kernels::product, module)?)?;
    module.add_function(wrap_pyfunction!(kernels::sample, module)?)
}
