//! The one table from Rust errors to Python classes.
//!
//! Each error enum has one base class; each class carries `kind`, stable and for programs, beside a message for people.

use diptych_cpu::model::{ModelError as Model, PlanError as Plan};
use diptych_cpu::packed::PackedError as Packed;
use diptych_sim::Error as Simulation;
use diptych_text::TextError as Text;
use pyo3::create_exception;
use pyo3::exceptions::PyException;
use pyo3::prelude::*;
use pyo3::types::PyType;
use runtime::EngineError as Engine;
use runtime::worker::PortError as Port;

use crate::kernels::{Mismatch, OptionsError as Options};

create_exception!(
    diptych_core,
    EngineError,
    PyException,
    "Base of every error of the engine; `kind` names it."
);
create_exception!(
    diptych_core,
    EngineOptionsError,
    EngineError,
    "The options cannot be read or contradict each other."
);
create_exception!(
    diptych_core,
    EngineStartError,
    EngineError,
    "The worker did not become ready; `error_class` names its exception."
);
create_exception!(
    diptych_core,
    EngineClosed,
    EngineError,
    "The engine or the frame queue is closed."
);
create_exception!(
    diptych_core,
    EngineForked,
    EngineError,
    "The engine belongs to the process `owner`, this is `pid`."
);
create_exception!(
    diptych_core,
    EngineSystemError,
    EngineError,
    "The operating system refused `call`."
);
create_exception!(
    diptych_core,
    InvalidRequest,
    EngineError,
    "A submission that is refused on sight."
);

create_exception!(
    diptych_core.worker,
    WorkerError,
    PyException,
    "Base of every error of a worker's port; `kind` names it."
);
create_exception!(
    diptych_core.worker,
    WorkerConnectionError,
    WorkerError,
    "The host is gone or the system refused."
);
create_exception!(
    diptych_core.worker,
    WorkerProtocolError,
    WorkerError,
    "The host sent what this build does not understand."
);
create_exception!(
    diptych_core.worker,
    WorkerUsageError,
    WorkerError,
    "The caller broke the rules of the call."
);

create_exception!(
    diptych_core.text,
    TextError,
    PyException,
    "Base of every error of text; `kind` names it."
);
create_exception!(
    diptych_core.text,
    TokenizerError,
    TextError,
    "The tokenizer's files, or a text to encode, are not usable."
);
create_exception!(
    diptych_core.text,
    TemplateError,
    TextError,
    "The chat template, or the conversation given to it, is refused."
);
create_exception!(
    diptych_core.text,
    StopStringError,
    TextError,
    "The stop strings are empty, too many or too long."
);

create_exception!(
    diptych_core.kernels,
    KernelsError,
    PyException,
    "Base of every error of the native kernels; `kind` names it."
);
create_exception!(
    diptych_core.kernels,
    KernelOptionsError,
    KernelsError,
    "Options that cannot be read, or ask for what this build or machine lacks."
);
create_exception!(
    diptych_core.kernels,
    KernelMismatchError,
    KernelsError,
    "The kernels compute something else here than they should."
);
create_exception!(
    diptych_core.kernels,
    KernelModelError,
    KernelsError,
    "A model or settings that the kernels cannot run."
);
create_exception!(
    diptych_core.kernels,
    PackedWeightsError,
    KernelsError,
    "Weights that cannot be read or packed; `asks_for_packing` if making the file anew helps."
);
create_exception!(
    diptych_core.kernels,
    PlanError,
    KernelsError,
    "A step plan contradicts itself, the worker's sizes, or what this build supports."
);

create_exception!(
    diptych_core.sim,
    SimulationError,
    PyException,
    "A simulation that cannot run or did not end; `kind` names why."
);

/// Adds every class to the module, with the `kind` of an instance that has no closer one.
pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    let py = module.py();
    let classes: [(&str, Bound<'_, PyType>); 22] = [
        ("engine", py.get_type::<EngineError>()),
        ("options", py.get_type::<EngineOptionsError>()),
        ("start", py.get_type::<EngineStartError>()),
        ("closed", py.get_type::<EngineClosed>()),
        ("forked", py.get_type::<EngineForked>()),
        ("system", py.get_type::<EngineSystemError>()),
        ("invalid_request", py.get_type::<InvalidRequest>()),
        ("worker", py.get_type::<WorkerError>()),
        ("connection", py.get_type::<WorkerConnectionError>()),
        ("protocol", py.get_type::<WorkerProtocolError>()),
        ("usage", py.get_type::<WorkerUsageError>()),
        ("text", py.get_type::<TextError>()),
        ("tokenizer", py.get_type::<TokenizerError>()),
        ("template", py.get_type::<TemplateError>()),
        ("stop_string", py.get_type::<StopStringError>()),
        ("kernels", py.get_type::<KernelsError>()),
        ("options", py.get_type::<KernelOptionsError>()),
        ("mismatch", py.get_type::<KernelMismatchError>()),
        ("model", py.get_type::<KernelModelError>()),
        ("packed", py.get_type::<PackedWeightsError>()),
        ("plan", py.get_type::<PlanError>()),
        ("simulation", py.get_type::<SimulationError>()),
    ];
    for (kind, class) in classes {
        class.setattr("kind", kind)?;
        module.add(class.name()?, class)?;
    }
    Ok(())
}

/// The Python exception for an error of a worker's port.
pub(crate) fn port(error: &Port) -> PyErr {
    let message = error.to_string();
    match error {
        Port::Connection(_) => WorkerConnectionError::new_err(message),
        Port::Protocol(_) => WorkerProtocolError::new_err(message),
        Port::Usage(_) => WorkerUsageError::new_err(message),
    }
}

/// The Python exception for an error of the engine.
pub(crate) fn engine(py: Python<'_>, error: &Engine) -> PyErr {
    let message = error.to_string();
    let raised = match error {
        Engine::Options(_) => EngineOptionsError::new_err(message),
        Engine::Start { .. } => EngineStartError::new_err(message),
        Engine::InvalidRequest(_) => InvalidRequest::new_err(message),
        Engine::Closed(_) => EngineClosed::new_err(message),
        Engine::Forked { .. } => EngineForked::new_err(message),
        Engine::System { .. } => EngineSystemError::new_err(message),
    };
    let value = raised.value(py);
    let set = value
        .setattr("kind", error.kind())
        .and_then(|()| match error {
            Engine::Start { class, .. } => value.setattr("error_class", class),
            Engine::Forked { pid, owner } => value
                .setattr("pid", pid)
                .and_then(|()| value.setattr("owner", owner)),
            Engine::System { call, .. } => value.setattr("call", call),
            Engine::Options(_) | Engine::InvalidRequest(_) | Engine::Closed(_) => Ok(()),
        });
    set.err().unwrap_or(raised)
}

/// The Python exception for an error of the text crate.
pub(crate) fn text(py: Python<'_>, error: &Text) -> PyErr {
    let message = error.to_string();
    let (raised, kind) = match error {
        Text::Read { .. } => (TextError::new_err(message), "read"),
        Text::InvalidConfig { .. } => (TextError::new_err(message), "invalid_config"),
        Text::InvalidTokenizer { .. } => (TokenizerError::new_err(message), "invalid_tokenizer"),
        Text::UnsupportedDecoder { .. } => {
            (TokenizerError::new_err(message), "unsupported_decoder")
        }
        Text::Decode { .. } => (TokenizerError::new_err(message), "decode"),
        Text::Encode { .. } => (TokenizerError::new_err(message), "encode"),
        Text::TemplateSyntax { .. } => (TemplateError::new_err(message), "template_syntax"),
        Text::TemplateRefused { .. } => (TemplateError::new_err(message), "template_refused"),
        Text::TemplateFailed { .. } => (TemplateError::new_err(message), "template_failed"),
        Text::TemplateTooExpensive { .. } => {
            (TemplateError::new_err(message), "template_too_expensive")
        }
        Text::RenderedTooLong { .. } => (TemplateError::new_err(message), "rendered_too_long"),
        Text::NotShown { .. } => (TemplateError::new_err(message), "not_shown"),
        Text::OwnVariable { .. } => (TemplateError::new_err(message), "own_variable"),
        Text::InvalidChat { .. } => (TemplateError::new_err(message), "invalid_chat"),
        Text::EmptyStop { .. } => (StopStringError::new_err(message), "empty_stop"),
        Text::TooManyStops { .. } => (StopStringError::new_err(message), "too_many_stops"),
        Text::StopsTooLong { .. } => (StopStringError::new_err(message), "stops_too_long"),
        _ => (TextError::new_err(message), "text"),
    };
    let set = raised.value(py).setattr("kind", kind);
    set.err().unwrap_or(raised)
}

/// The Python exception for options of the kernels.
pub(crate) fn options(error: &Options) -> PyErr {
    KernelOptionsError::new_err(error.to_string())
}

/// The Python exception for kernels that compute something else than they should.
pub(crate) fn mismatch(error: &Mismatch) -> PyErr {
    KernelMismatchError::new_err(error.to_string())
}

/// The Python exception for a model that the kernels cannot run.
pub(crate) fn model(error: &Model) -> PyErr {
    KernelModelError::new_err(error.to_string())
}

/// The Python exception for weights that cannot be read or packed.
pub(crate) fn packed(py: Python<'_>, error: &Packed) -> PyErr {
    let raised = PackedWeightsError::new_err(error.to_string());
    let again = error.asks_for_packing();
    let set = raised.value(py).setattr("asks_for_packing", again);
    set.err().unwrap_or(raised)
}

/// The Python exception for a bad plan.
pub(crate) fn plan(error: &Plan) -> PyErr {
    PlanError::new_err(error.to_string())
}

/// The Python exception for a simulation.
pub(crate) fn simulation(py: Python<'_>, error: &Simulation) -> PyErr {
    let raised = SimulationError::new_err(error.to_string());
    let kind = match error {
        Simulation::Options(_) | Simulation::Option { .. } | Simulation::Core(_) => "options",
        Simulation::Trace { .. } | Simulation::TraceLine { .. } => "trace",
        Simulation::Stalled { .. } | Simulation::Violation { .. } => "scheduler",
        Simulation::Interrupted => "interrupted",
    };
    let set = raised.value(py).setattr("kind", kind);
    set.err().unwrap_or(raised)
}
