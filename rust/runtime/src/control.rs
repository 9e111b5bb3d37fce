//! Control messages between host and worker: a `u32` little-endian length, then one msgpack map.

use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::layout::Capacities;
use crate::os;

/// Longest message in bytes: nothing that either side sends comes near.
const MAX_MESSAGE: usize = 1 << 24;

/// First message of the host; six descriptors come with it: the memfds of plan, side and result, the eventfds of doorbell and results, and a
/// pidfd of the host.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Init {
    pub(crate) kind: String,
    pub(crate) layout_version: u32,
    pub(crate) capacities: Capacities,
    pub(crate) epoch: u64,
    pub(crate) block_size: u32,
    pub(crate) max_running: u32,
    pub(crate) max_batched_tokens: u32,
    pub(crate) max_prefill_tokens: Option<u32>,
    pub(crate) max_model_len: u32,
    pub(crate) vocabulary: u32,
    pub(crate) options: Map<String, Value>,
}

/// Descriptors that come with [`Init`].
pub(crate) const INIT_DESCRIPTORS: usize = 6;

/// What the host says after [`Init`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub(crate) enum HostMessage {
    /// Zero block tables and last ids, and go on in another epoch; only sent with nothing in flight.
    Reset { epoch: u64 },
    /// Describe yourself.
    Stats,
    /// Leave.
    Shutdown,
}

/// What the worker says.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub(crate) enum WorkerMessage {
    /// The worker's description, a msgpack map.
    Hello {
        layout_version: u32,
        #[serde(with = "serde_bytes")]
        info: Vec<u8>,
    },
    /// Steps may come; the times of the start-up, a msgpack map.
    Ready {
        #[serde(with = "serde_bytes")]
        info: Vec<u8>,
    },
    /// The start-up failed.
    Failed { class: String, message: String },
    /// Answer to `Reset` or `Stats`.
    Reply {
        name: String,
        #[serde(with = "serde_bytes")]
        payload: Vec<u8>,
    },
}

/// Why a control socket is of no use any more.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ControlError {
    #[error("the other side closed the control socket")]
    Closed,
    #[error("control socket: {0}")]
    System(#[from] std::io::Error),
    #[error("control message: {0}")]
    Format(String),
}

/// Encodes a message as a msgpack map.
pub(crate) fn encode<T: Serialize>(message: &T) -> Result<Vec<u8>, ControlError> {
    rmp_serde::to_vec_named(message).map_err(|error| ControlError::Format(error.to_string()))
}

/// Decodes a msgpack map.
pub(crate) fn decode<T: DeserializeOwned>(message: &[u8]) -> Result<T, ControlError> {
    rmp_serde::from_slice(message).map_err(|error| ControlError::Format(error.to_string()))
}

/// One end of the control socket.
#[derive(Debug)]
pub(crate) struct ControlSocket {
    socket: OwnedFd,
    received: Vec<u8>,
    descriptors: Vec<OwnedFd>,
    to_send: VecDeque<u8>,
}

impl ControlSocket {
    pub(crate) fn new(socket: OwnedFd) -> Self {
        Self {
            socket,
            received: Vec::new(),
            descriptors: Vec::new(),
            to_send: VecDeque::new(),
        }
    }

    /// Sends one encoded message with its descriptors and waits until the system has taken it.
    pub(crate) fn send(
        &mut self,
        message: &[u8],
        descriptors: &[BorrowedFd<'_>],
    ) -> Result<(), ControlError> {
        let mut rest = framed(message)?;
        let mut attached = descriptors;
        while !rest.is_empty() {
            let sent = os::send(self.socket.as_fd(), &rest, attached, true)?;
            rest.drain(..sent);
            attached = &[];
        }
        Ok(())
    }

    /// Queues one encoded message and sends what the system takes at once: a worker that does not read cannot stop the caller.
    pub(crate) fn send_later(&mut self, message: &[u8]) -> Result<(), ControlError> {
        self.to_send.extend(framed(message)?);
        self.flush()
    }

    /// As [`Self::send_later`], for the first message of a connection and its descriptors.
    pub(crate) fn send_first(
        &mut self,
        message: &[u8],
        descriptors: &[BorrowedFd<'_>],
    ) -> Result<(), ControlError> {
        let framed = framed(message)?;
        let sent = os::send(self.socket.as_fd(), &framed, descriptors, false)?;
        self.to_send.extend(&framed[sent..]);
        self.flush()
    }

    /// Whether something waits for the system to take it.
    pub(crate) fn is_sending(&self) -> bool {
        !self.to_send.is_empty()
    }

    /// Sends more of what [`Self::send_later`] queued.
    pub(crate) fn flush(&mut self) -> Result<(), ControlError> {
        while !self.to_send.is_empty() {
            let (front, _) = self.to_send.as_slices();
            match os::send(self.socket.as_fd(), front, &[], false) {
                Ok(sent) => drop(self.to_send.drain(..sent)),
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    /// The next whole message. Without `wait`, `None` means that none is there yet.
    pub(crate) fn receive(&mut self, wait: bool) -> Result<Option<Vec<u8>>, ControlError> {
        let mut buffer = [0_u8; 16384];
        loop {
            if let Some(message) = self.take_message()? {
                return Ok(Some(message));
            }
            let received = os::receive(
                self.socket.as_fd(),
                &mut buffer,
                &mut self.descriptors,
                wait,
            );
            match received {
                Ok(0) => return Err(ControlError::Closed),
                Ok(count) => self.received.extend_from_slice(&buffer[..count]),
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => return Ok(None),
                Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => {
                    return Err(ControlError::Closed);
                }
                Err(error) => return Err(error.into()),
            }
        }
    }

    fn take_message(&mut self) -> Result<Option<Vec<u8>>, ControlError> {
        let Some((length, rest)) = self.received.split_first_chunk::<4>() else {
            return Ok(None);
        };
        let length = u32::from_le_bytes(*length) as usize;
        if length > MAX_MESSAGE {
            return Err(ControlError::Format(format!(
                "{length} bytes announced, at most {MAX_MESSAGE}"
            )));
        }
        if rest.len() < length {
            return Ok(None);
        }
        let message = rest[..length].to_vec();
        self.received.drain(..4 + length);
        Ok(Some(message))
    }

    /// Descriptors received so far.
    pub(crate) fn take_descriptors(&mut self) -> Vec<OwnedFd> {
        std::mem::take(&mut self.descriptors)
    }

    /// Ends the connection for both sides.
    pub(crate) fn shut_down(&self) {
        os::shut_down(self.socket.as_fd());
    }
}

impl AsFd for ControlSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

fn framed(message: &[u8]) -> Result<Vec<u8>, ControlError> {
    let length = u32::try_from(message.len())
        .ok()
        .filter(|length| *length as usize <= MAX_MESSAGE)
        .ok_or_else(|| {
            ControlError::Format(format!(
                "{} bytes to send, at most {MAX_MESSAGE}",
                message.len()
            ))
        })?;
    Ok([&length.to_le_bytes(), message].concat())
}
