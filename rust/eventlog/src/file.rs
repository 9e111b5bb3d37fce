//! The file: a header, then frames, each whole or not there.
//!
//! ```text
//!   header   "DIPTYCH-LOG\n", version u32
//!   frame    length u32, checksum u32, then `length` bytes: a record as a msgpack map by names
//! ```
//!
//! Numbers are little-endian; the checksum is the low half of XXH3-64 over the record. A process
//! that dies leaves at most one torn frame at the end, which reading ends at.

use std::io::{self, Read, Write};

use serde::Serialize;
use xxhash_rust::xxh3::xxh3_64;

use crate::Record;

const MAGIC: &[u8; 12] = b"DIPTYCH-LOG\n";
/// Version of the header and the frames. Records describe themselves.
const VERSION: u32 = 1;
/// Largest record that is read, in bytes: prompts are far smaller.
const LARGEST: u32 = 1 << 30;
/// Bytes that are kept free for the record that says why a log ends.
const LAST_WORD: u64 = 512;

/// A log that cannot be written.
#[derive(Debug, thiserror::Error)]
pub enum WriteError {
    /// By the system.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// A bug.
    #[error("a record cannot be encoded: {0}")]
    Encode(#[from] rmp_serde::encode::Error),
}

/// Writes a log of at most so many bytes.
#[derive(Debug)]
pub struct LogWriter<W> {
    out: W,
    left: u64,
    open: bool,
    record: Vec<u8>,
}

impl<W: Write> LogWriter<W> {
    /// Begins a log of at most `limit` bytes.
    ///
    /// # Errors
    /// [`WriteError::Io`].
    pub fn new(mut out: W, limit: u64) -> Result<Self, WriteError> {
        out.write_all(MAGIC)?;
        out.write_all(&VERSION.to_le_bytes())?;
        Ok(Self {
            out,
            left: limit.saturating_sub(MAGIC.len() as u64 + 4),
            open: true,
            record: Vec::new(),
        })
    }

    /// Appends a record. `false`: the log has ended, because there was no room for it or before.
    ///
    /// # Errors
    /// [`WriteError`]; the log is to be left alone then.
    pub fn write(&mut self, record: &Record) -> Result<bool, WriteError> {
        if !self.open {
            return Ok(false);
        }
        self.encode(record)?;
        if self.record.len() as u64 + 8 + LAST_WORD > self.left {
            self.end("the log has reached its limit (event_log_bytes)")?;
            return Ok(false);
        }
        self.write_frame()?;
        Ok(true)
    }

    /// Says why nothing more will come.
    ///
    /// # Errors
    /// [`WriteError`].
    pub fn end(&mut self, why: &str) -> Result<(), WriteError> {
        if std::mem::take(&mut self.open) {
            let why = why.to_owned();
            self.encode(&Record::End { why })?;
            self.write_frame()?;
        }
        self.flush()
    }

    /// Hands everything to the system.
    ///
    /// # Errors
    /// [`WriteError::Io`].
    pub fn flush(&mut self) -> Result<(), WriteError> {
        Ok(self.out.flush()?)
    }

    fn encode(&mut self, record: &Record) -> Result<(), WriteError> {
        self.record.clear();
        Ok(rmp_serde::encode::write_named(&mut self.record, record)?)
    }

    fn write_frame(&mut self) -> Result<(), WriteError> {
        let length = self.record.len() as u32;
        self.out.write_all(&length.to_le_bytes())?;
        let checksum = xxh3_64(&self.record) as u32;
        self.out.write_all(&checksum.to_le_bytes())?;
        self.out.write_all(&self.record)?;
        self.left = self.left.saturating_sub(u64::from(length) + 8);
        Ok(())
    }
}

/// A log that cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// By the system.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// Another kind of file.
    #[error("this is no event log of diptych")]
    NoLog,
    /// A log of another time.
    #[error("this log has version {0} of the format, this build reads {VERSION}")]
    Version(u32),
    /// Bytes have changed, and more follow.
    #[error("the log is damaged at byte {offset}: a checksum is wrong")]
    Damaged { offset: u64 },
    /// A record that this build does not know.
    #[error("the record at byte {offset} is not known to this build: {error}")]
    Unknown {
        offset: u64,
        error: rmp_serde::decode::Error,
    },
}

/// How a log ends.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Ending {
    /// After a whole record; the process was closed or died between two.
    Whole,
    /// Within a record of which so many bytes are there: the process died while it wrote.
    Torn { bytes: u64 },
    /// The writer said why.
    Said(String),
}

/// Reads a log record by record.
#[derive(Debug)]
pub struct LogReader<R> {
    input: R,
    offset: u64,
    ending: Option<Ending>,
}

impl<R: Read> LogReader<R> {
    /// Reads the header.
    ///
    /// # Errors
    /// [`ReadError::NoLog`], [`ReadError::Version`], [`ReadError::Io`].
    pub fn new(mut input: R) -> Result<Self, ReadError> {
        let header = read_up_to(&mut input, MAGIC.len() + 4)?;
        let version = header.strip_prefix(MAGIC).ok_or(ReadError::NoLog)?;
        let version: [u8; 4] = version.try_into().map_err(|_| ReadError::NoLog)?;
        match u32::from_le_bytes(version) {
            VERSION => Ok(Self {
                input,
                offset: header.len() as u64,
                ending: None,
            }),
            other => Err(ReadError::Version(other)),
        }
    }

    /// The next record; `None` at the end, which [`Self::ending`] describes.
    ///
    /// # Errors
    /// [`ReadError::Damaged`], [`ReadError::Unknown`], [`ReadError::Io`].
    pub fn next_record(&mut self) -> Result<Option<Record>, ReadError> {
        if self.ending.is_some() {
            return Ok(None);
        }
        let frame = read_up_to(&mut self.input, 8)?;
        let Ok(frame): Result<[u8; 8], _> = frame.as_slice().try_into() else {
            return Ok(self.end_after(frame.len()));
        };
        let [length, checksum] = [&frame[..4], &frame[4..]]
            .map(|half| u32::from_le_bytes([half[0], half[1], half[2], half[3]]));
        let offset = self.offset;
        if length > LARGEST {
            return Err(ReadError::Damaged { offset });
        }
        let record = read_up_to(&mut self.input, length as usize)?;
        if record.len() < length as usize {
            return Ok(self.end_after(8 + record.len()));
        }
        if xxh3_64(&record) as u32 != checksum {
            // A torn page may have its length right and its bytes wrong, but nothing after it.
            return match read_up_to(&mut self.input, 1)?.len() {
                0 => Ok(self.end_after(8 + record.len())),
                _ => Err(ReadError::Damaged { offset }),
            };
        }
        self.offset += 8 + u64::from(length);
        match rmp_serde::from_slice(&record) {
            Ok(Record::End { why }) => {
                self.ending = Some(Ending::Said(why));
                Ok(None)
            }
            Ok(record) => Ok(Some(record)),
            Err(error) => Err(ReadError::Unknown { offset, error }),
        }
    }

    /// How the log ended, once [`Self::next_record`] has given `None`.
    #[must_use]
    pub fn ending(&self) -> Option<&Ending> {
        self.ending.as_ref()
    }

    fn end_after(&mut self, bytes: usize) -> Option<Record> {
        self.ending = Some(match bytes {
            0 => Ending::Whole,
            bytes => Ending::Torn {
                bytes: bytes as u64,
            },
        });
        None
    }
}

fn read_up_to(input: &mut impl Read, count: usize) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    input.take(count as u64).read_to_end(&mut bytes)?;
    Ok(bytes)
}
