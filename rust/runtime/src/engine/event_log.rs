//! The event log of a running engine: written by a thread of its own, so that no step waits for a disk.

use std::fs::{File, OpenOptions};
use std::io::BufWriter;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TryRecvError, TrySendError, sync_channel};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use diptych_core::StepPlan;
use diptych_eventlog::{LogWriter, PlanDigest, Record, WriteError};
use serde::Serialize;

use crate::EngineError;
use crate::options::EventLogOptions;
use crate::os;
use crate::shared::lock;

/// Records that may wait for the disk; one more ends the log instead of making the engine wait.
const QUEUE: usize = 4_096;

/// What is told of a log in the statistics.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct EventLogStatus {
    path: String,
    records: u64,
    /// Why nothing more is written, if so.
    ended: Option<String>,
}

#[derive(Debug)]
enum Entry {
    Record(Record),
    Planned(Option<Box<StepPlan>>),
}

/// Sends records to the writer. All clones write into one log.
#[derive(Clone, Debug)]
pub(super) struct EventLogSender {
    sender: SyncSender<Entry>,
    is_behind: Arc<AtomicBool>,
}

impl EventLogSender {
    pub(super) fn record(&self, record: Record) {
        self.send(Entry::Record(record));
    }

    /// The digest is made by the writer.
    pub(super) fn planned(&self, plan: Option<&StepPlan>) {
        self.send(Entry::Planned(plan.cloned().map(Box::new)));
    }

    fn send(&self, entry: Entry) {
        // A log with a hole is worth nothing: after the first record that was lost none follows.
        if self.is_behind.load(Ordering::Relaxed) {
            return;
        }
        // A writer that has ended has said why.
        if let Err(TrySendError::Full(_)) = self.sender.try_send(entry) {
            self.is_behind.store(true, Ordering::Relaxed);
        }
    }
}

/// A log and its writer. Dropping it writes what is left, once all senders are dropped.
#[derive(Debug)]
pub(super) struct EventLog {
    sender: Option<EventLogSender>,
    writer: Option<JoinHandle<()>>,
    status: Arc<Mutex<EventLogStatus>>,
}

impl EventLog {
    /// Creates the file, readable by its owner only; one that is there becomes `FILE.1`.
    pub(super) fn create(options: &EventLogOptions) -> Result<Self, EngineError> {
        let path = &options.path;
        let failed = |error| EngineError::system("creating the event log", error);
        let named = |error: std::io::Error| failed(format!("{}: {error}", path.display()));
        if path.exists() {
            std::fs::rename(path, previous(path)).map_err(named)?;
        }
        let mut open = OpenOptions::new();
        let file = open.write(true).create_new(true).mode(0o600).open(path);
        let file = BufWriter::new(file.map_err(named)?);
        let writer =
            LogWriter::new(file, options.bytes).map_err(|error| failed(error.to_string()))?;
        let (sender, receiver) = sync_channel(QUEUE);
        let is_behind = Arc::new(AtomicBool::new(false));
        let status = Arc::new(Mutex::new(EventLogStatus {
            path: path.display().to_string(),
            records: 0,
            ended: None,
        }));
        let thread = Writing {
            writer,
            receiver,
            is_behind: Arc::clone(&is_behind),
            status: Arc::clone(&status),
        };
        let writer = os::spawn_thread("diptych-log", move || thread.run())
            .map_err(|error| EngineError::system("starting a thread", error))?;
        Ok(Self {
            sender: Some(EventLogSender { sender, is_behind }),
            writer: Some(writer),
            status,
        })
    }

    pub(super) fn sender(&self) -> Option<EventLogSender> {
        self.sender.clone()
    }

    pub(super) fn status(&self) -> EventLogStatus {
        lock(&self.status).clone()
    }
}

impl Drop for EventLog {
    fn drop(&mut self) {
        self.sender = None;
        if let Some(writer) = self.writer.take() {
            let ended = writer.join();
            debug_assert!(ended.is_ok(), "the writer of the event log panicked");
        }
    }
}

fn previous(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".1");
    name.into()
}

struct Writing {
    writer: LogWriter<BufWriter<File>>,
    receiver: Receiver<Entry>,
    is_behind: Arc<AtomicBool>,
    status: Arc<Mutex<EventLogStatus>>,
}

impl Writing {
    fn run(mut self) {
        let ended = match self.write_all() {
            Ok(why) => why,
            Err(error) => Some(format!("it cannot be written: {error}")),
        };
        lock(&self.status).ended = ended;
    }

    /// Writes until nobody sends any more; why it ended before, if so.
    fn write_all(&mut self) -> Result<Option<String>, WriteError> {
        loop {
            let entry = match self.receiver.try_recv() {
                Ok(entry) => entry,
                Err(TryRecvError::Disconnected) => break,
                Err(TryRecvError::Empty) => {
                    // What is known to have happened is in the file before anybody waits.
                    self.writer.flush()?;
                    if self.is_behind.load(Ordering::Relaxed) {
                        break;
                    }
                    match self.receiver.recv() {
                        Ok(entry) => entry,
                        Err(_) => break,
                    }
                }
            };
            let record = match entry {
                Entry::Record(record) => record,
                Entry::Planned(plan) => Record::Planned {
                    plan: plan.as_deref().map(PlanDigest::of),
                },
            };
            if !self.writer.write(&record)? {
                return Ok(Some("event_log_bytes is reached".to_owned()));
            }
            lock(&self.status).records += 1;
        }
        if self.is_behind.load(Ordering::Relaxed) {
            let why = "the disk was slower than the engine";
            self.writer.end(why)?;
            return Ok(Some(why.to_owned()));
        }
        self.writer.flush()?;
        Ok(None)
    }
}
