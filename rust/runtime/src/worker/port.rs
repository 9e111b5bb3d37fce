//! The worker's end of the control socket and the arenas.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::control::{
    ControlError, ControlSocket, HostMessage, INIT_DESCRIPTORS, Init, WorkerMessage, decode, encode,
};
use crate::layout::{LAYOUT_VERSION, Layout, result_word};
use crate::os::{self, EventFd, SharedMemory};
use crate::worker::step::{Step, WorkerArenas};
use crate::worker::watch::watch_host;

/// How long a worker looks for the next step before it sleeps.
const SPIN: Duration = Duration::from_micros(50);

/// What a worker's port refuses.
#[derive(Debug, thiserror::Error)]
pub enum PortError {
    /// The host is gone or the system refused.
    #[error("connection to the host: {0}")]
    Connection(String),
    /// The host sent what this build does not understand.
    #[error("protocol: {0}")]
    Protocol(String),
    /// The caller broke the rules of the call.
    #[error("{0}")]
    Usage(String),
}

impl From<ControlError> for PortError {
    fn from(error: ControlError) -> Self {
        match error {
            ControlError::Format(message) => Self::Protocol(message),
            other => Self::Connection(other.to_string()),
        }
    }
}

impl From<std::io::Error> for PortError {
    fn from(error: std::io::Error) -> Self {
        Self::Connection(error.to_string())
    }
}

/// What a worker is to do next.
#[derive(Debug)]
pub enum Work {
    /// Run a step.
    Step(Step),
    /// Answer a question of the host.
    Control(Control),
}

/// A question of the host, asked between steps.
#[derive(Debug)]
pub struct Control {
    name: &'static str,
    control: Arc<Mutex<ControlSocket>>,
}

impl Control {
    /// `"reset"`: forget block tables and last ids; or `"stats"`: describe yourself.
    #[must_use]
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// Answers with a msgpack map.
    ///
    /// # Errors
    /// [`PortError::Connection`] if the host is gone.
    pub fn reply(&self, payload: &[u8]) -> Result<(), PortError> {
        let message = WorkerMessage::Reply {
            name: self.name.to_owned(),
            payload: payload.to_vec(),
        };
        send(&self.control, &message)
    }
}

/// A worker's connection to its host.
#[derive(Debug)]
pub struct Port {
    init: Vec<u8>,
    epoch: AtomicU64,
    arenas: Arc<WorkerArenas>,
    doorbell: EventFd,
    control: Arc<Mutex<ControlSocket>>,
    wake: OwnedFd,
    /// Steps taken, and the number of the last of them.
    taken: AtomicU64,
    last: AtomicU64,
}

impl Port {
    /// The port of a worker process, whose standard input is the control socket. From here on the process ignores SIGINT and SIGTERM and ends
    /// at once when its host is gone.
    ///
    /// # Errors
    /// [`PortError`] if standard input is no control socket or the host's first message cannot be used.
    pub fn from_stdin() -> Result<Self, PortError> {
        os::worker_signals();
        let (port, host) = Self::from_socket(os::take_standard_input()?)?;
        watch_host(host)?;
        Ok(port)
    }

    /// The port at the other end of `socket`, and the pidfd of the host.
    pub(crate) fn from_socket(socket: OwnedFd) -> Result<(Self, OwnedFd), PortError> {
        let wake = socket.try_clone()?;
        let mut control = ControlSocket::new(socket);
        let Some(message) = control.receive(true)? else {
            return Err(PortError::Connection(
                "the socket does not block".to_owned(),
            ));
        };
        let init: Init = decode(&message)?;
        if init.layout_version != LAYOUT_VERSION {
            return Err(PortError::Protocol(format!(
                "the host speaks layout {}, this worker {LAYOUT_VERSION}: install one version of diptych-core for both",
                init.layout_version
            )));
        }
        let descriptors: [OwnedFd; INIT_DESCRIPTORS] = control
            .take_descriptors()
            .try_into()
            .map_err(|got: Vec<_>| {
                PortError::Protocol(format!(
                    "{} descriptors, expected {INIT_DESCRIPTORS}",
                    got.len()
                ))
            })?;
        let [plan, side, result, doorbell, results, host] = descriptors;
        let layout = Layout::new(init.capacities);
        let copies = layout.copies();
        let arenas = WorkerArenas {
            plan: SharedMemory::open(&plan, layout.plan_bytes * copies)?,
            side: SharedMemory::open(&side, layout.side_bytes * copies)?,
            result: SharedMemory::open(&result, layout.result_bytes * copies)?,
            results: EventFd::from_fd(results),
            layout,
        };
        let port = Self {
            init: message,
            epoch: AtomicU64::new(init.epoch),
            arenas: Arc::new(arenas),
            doorbell: EventFd::from_fd(doorbell),
            control: Arc::new(Mutex::new(control)),
            wake,
            taken: AtomicU64::new(0),
            last: AtomicU64::new(0),
        };
        Ok((port, host))
    }

    /// The host's first message, a msgpack map: `kind`, `epoch`, `block_size`, `max_running`, `max_batched_tokens`, `max_prefill_tokens`,
    /// `max_model_len`, `vocabulary`, `options`.
    #[must_use]
    pub fn init(&self) -> &[u8] {
        &self.init
    }

    pub(crate) fn init_message(&self) -> Result<Init, PortError> {
        Ok(decode(&self.init)?)
    }

    /// Describes the worker: a msgpack map with at least `num_blocks`.
    ///
    /// # Errors
    /// [`PortError::Connection`] if the host is gone.
    pub fn hello(&self, info: &[u8]) -> Result<(), PortError> {
        let message = WorkerMessage::Hello {
            layout_version: LAYOUT_VERSION,
            info: info.to_vec(),
        };
        send(&self.control, &message)
    }

    /// Says that steps may come, with the times of the start-up in seconds: a msgpack map.
    ///
    /// # Errors
    /// [`PortError::Connection`] if the host is gone.
    pub fn ready(&self, info: &[u8]) -> Result<(), PortError> {
        let message = WorkerMessage::Ready {
            info: info.to_vec(),
        };
        send(&self.control, &message)
    }

    /// Says that the start-up failed.
    ///
    /// # Errors
    /// [`PortError::Connection`] if the host is gone.
    pub fn fail(&self, error_class: &str, message: &str) -> Result<(), PortError> {
        let message = WorkerMessage::Failed {
            class: error_class.to_owned(),
            message: message.to_owned(),
        };
        send(&self.control, &message)
    }

    /// Waits for the next thing to do. `None`: leave, the host said so or is gone.
    ///
    /// # Errors
    /// [`PortError::Protocol`] if the host sent what cannot be used.
    pub fn next(&self) -> Result<Option<Work>, PortError> {
        loop {
            match self.control_work()? {
                Asked::Nothing => {}
                Asked::Leave => {
                    lock(&self.control).shut_down();
                    return Ok(None);
                }
                Asked::Question(name) => {
                    let control = Arc::clone(&self.control);
                    return Ok(Some(Work::Control(Control { name, control })));
                }
            }
            if let Some(step) = self.spin()? {
                return Ok(Some(Work::Step(step)));
            }
            let readable = os::poll_readable(&[self.doorbell.as_fd(), self.wake.as_fd()], None);
            if readable[0] {
                self.doorbell.clear();
            }
        }
    }

    /// Says that a long step goes on.
    pub fn progress(&self) {
        let word = self.arenas.result.word(0, result_word::PROGRESS);
        word.fetch_add(1, Ordering::Relaxed);
    }

    fn spin(&self) -> Result<Option<Step>, PortError> {
        let launch = self.taken.load(Ordering::Relaxed);
        let last = self.last.load(Ordering::Relaxed);
        let deadline = Instant::now() + SPIN;
        loop {
            if let Some(step) = self.arenas.published(launch, last) {
                self.taken.store(launch + 1, Ordering::Relaxed);
                self.last.store(step, Ordering::Relaxed);
                let epoch = self.epoch.load(Ordering::Relaxed);
                return Step::take(&self.arenas, epoch, launch, step).map(Some);
            }
            if Instant::now() >= deadline {
                return Ok(None);
            }
            std::hint::spin_loop();
        }
    }

    fn control_work(&self) -> Result<Asked, PortError> {
        let message = match lock(&self.control).receive(false) {
            Ok(Some(message)) => message,
            Ok(None) => return Ok(Asked::Nothing),
            Err(ControlError::Closed) => return Ok(Asked::Leave),
            Err(error) => return Err(error.into()),
        };
        Ok(match decode::<HostMessage>(&message)? {
            HostMessage::Reset { epoch } => {
                self.epoch.store(epoch, Ordering::Relaxed);
                self.taken.store(0, Ordering::Relaxed);
                self.last.store(0, Ordering::Relaxed);
                Asked::Question("reset")
            }
            HostMessage::Stats => Asked::Question("stats"),
            HostMessage::Shutdown => Asked::Leave,
        })
    }
}

enum Asked {
    Nothing,
    Leave,
    Question(&'static str),
}

fn lock(control: &Mutex<ControlSocket>) -> std::sync::MutexGuard<'_, ControlSocket> {
    control.lock().unwrap_or_else(PoisonError::into_inner)
}

fn send(control: &Mutex<ControlSocket>, message: &WorkerMessage) -> Result<(), PortError> {
    let bytes = encode(message)?;
    Ok(lock(control).send(&bytes, &[])?)
}
