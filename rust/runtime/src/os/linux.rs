//! Every operating-system call of the runtime, for Linux.

use std::ffi::c_int;
use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::process::{Child, Command, Stdio};
use std::ptr::NonNull;
use std::thread::JoinHandle;
use std::time::Duration;

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec};
use rustix::fs::{MemfdFlags, SealFlags};
use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, ProtFlags};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, Shutdown, SocketFlags, SocketType,
};
use rustix::process::{Pid, PidfdFlags, Signal as ProcessSignal};

/// Result of a system call.
pub(crate) type Result<T> = std::result::Result<T, std::io::Error>;

/// `CLOCK_MONOTONIC` in nanoseconds: Python's `time.monotonic_ns()`.
#[must_use]
pub fn now_ns() -> u64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// A counter that threads and processes can wait for with `poll`.
#[derive(Debug)]
pub(crate) struct EventFd(OwnedFd);

impl EventFd {
    pub(crate) fn new() -> Result<Self> {
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        Ok(Self(rustix::event::eventfd(0, flags)?))
    }

    /// Takes over a descriptor that was received.
    pub(crate) fn from_fd(descriptor: OwnedFd) -> Self {
        Self(descriptor)
    }

    pub(crate) fn try_clone(&self) -> Result<OwnedFd> {
        self.0.try_clone()
    }

    /// Makes the descriptor readable. A full counter is readable already.
    pub(crate) fn raise(&self) {
        let written = retry(|| rustix::io::write(&self.0, &1_u64.to_ne_bytes()));
        debug_assert!(
            matches!(written, Ok(8) | Err(Errno::AGAIN)),
            "eventfd write: {written:?}"
        );
    }

    /// Makes the descriptor unreadable until the next [`Self::raise`].
    pub(crate) fn clear(&self) {
        let mut count = [0_u8; 8];
        let read = retry(|| rustix::io::read(&self.0, &mut count));
        debug_assert!(
            matches!(read, Ok(8) | Err(Errno::AGAIN)),
            "eventfd read: {read:?}"
        );
    }

    /// Whether it became readable within `timeout` (`None`: no limit).
    pub(crate) fn wait(&self, timeout: Option<Duration>) -> bool {
        poll_readable(&[self.0.as_fd()], timeout)[0]
    }
}

impl AsFd for EventFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl AsRawFd for EventFd {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}

fn retry<T>(
    mut call: impl FnMut() -> std::result::Result<T, Errno>,
) -> std::result::Result<T, Errno> {
    loop {
        match call() {
            Err(Errno::INTR) => {}
            other => return other,
        }
    }
}

/// Waits until one of `descriptors` is readable or hung up, or the time is over; says for each whether it is.
pub(crate) fn poll_readable(
    descriptors: &[BorrowedFd<'_>],
    timeout: Option<Duration>,
) -> Vec<bool> {
    poll(descriptors, None, timeout)
}

/// As [`poll_readable`]; waits for room to write to `writable` too.
pub(crate) fn poll(
    descriptors: &[BorrowedFd<'_>],
    writable: Option<BorrowedFd<'_>>,
    timeout: Option<Duration>,
) -> Vec<bool> {
    let mut polled: Vec<PollFd<'_>> = descriptors
        .iter()
        .map(|descriptor| PollFd::from_borrowed_fd(*descriptor, PollFlags::IN))
        .chain(writable.map(|socket| PollFd::from_borrowed_fd(socket, PollFlags::OUT)))
        .collect();
    let timeout = timeout.map(|limit| Timespec {
        tv_sec: i64::try_from(limit.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: i64::from(limit.subsec_nanos()),
    });
    match rustix::event::poll(&mut polled, timeout.as_ref()) {
        Ok(_) => polled
            .iter()
            .take(descriptors.len())
            .map(|fd| !fd.revents().is_empty())
            .collect(),
        // An interrupted wait is an early time-out: every caller looks again.
        Err(Errno::INTR) => vec![false; descriptors.len()],
        Err(error) => panic!("poll of {} descriptors: {error}", descriptors.len()),
    }
}

/// Memory shared between host and worker, zeroed when created, kept out of forked children.
#[derive(Debug)]
pub(crate) struct SharedMemory {
    address: NonNull<u8>,
    length: usize,
    owner: u32,
}

// SAFETY: the mapping is plain memory owned by this value; all access goes through raw pointers whose users say why it is sound.
unsafe impl Send for SharedMemory {}
// SAFETY: as above; the value itself is never changed after its construction.
unsafe impl Sync for SharedMemory {}

impl SharedMemory {
    /// A fresh memfd of `length` bytes, sealed against every change of its size, and its mapping.
    pub(crate) fn create(name: &str, length: usize) -> Result<(Self, OwnedFd)> {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let descriptor = rustix::fs::memfd_create(name, flags)?;
        rustix::fs::ftruncate(&descriptor, length as u64)?;
        let seals = SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL;
        rustix::fs::fcntl_add_seals(&descriptor, seals)?;
        Ok((Self::map(&descriptor, length)?, descriptor))
    }

    /// Maps a received memfd, which must have exactly `length` bytes and be sealed.
    pub(crate) fn open(descriptor: &OwnedFd, length: usize) -> Result<Self> {
        let size = rustix::fs::fstat(descriptor)?.st_size;
        let seals = rustix::fs::fcntl_get_seals(descriptor)?;
        if size != length as i64 || !seals.contains(SealFlags::SHRINK) {
            return Err(std::io::Error::other(format!(
                "shared memory of {size} bytes with seals {seals:?}, expected {length} bytes sealed against shrinking"
            )));
        }
        Self::map(descriptor, length)
    }

    fn map(descriptor: &OwnedFd, length: usize) -> Result<Self> {
        // SAFETY: a new mapping at an address of the kernel's choice touches no memory of ours.
        let address = unsafe {
            rustix::mm::mmap(
                std::ptr::null_mut(),
                length,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::SHARED,
                descriptor,
                0,
            )
        }?;
        let address = NonNull::new(address.cast::<u8>())
            .ok_or_else(|| std::io::Error::other("mmap gave a null address"))?;
        let memory = Self {
            address,
            length,
            owner: std::process::id(),
        };
        // SAFETY: the range is the mapping made above.
        unsafe { rustix::mm::madvise(address.as_ptr().cast(), length, Advice::LinuxDontFork) }?;
        Ok(memory)
    }

    pub(crate) fn address(&self) -> *mut u8 {
        self.address.as_ptr()
    }

    pub(crate) fn length(&self) -> usize {
        self.length
    }
}

impl Drop for SharedMemory {
    fn drop(&mut self) {
        // In a forked child the range was never mapped and may be somebody else's by now.
        if std::process::id() == self.owner {
            // SAFETY: the range was mapped by us and nobody holds a reference into it.
            let unmapped = unsafe { rustix::mm::munmap(self.address.as_ptr().cast(), self.length) };
            debug_assert!(unmapped.is_ok(), "munmap: {unmapped:?}");
        }
    }
}

/// A connected pair of stream sockets.
pub(crate) fn socket_pair() -> Result<(OwnedFd, OwnedFd)> {
    Ok(rustix::net::socketpair(
        AddressFamily::UNIX,
        SocketType::STREAM,
        SocketFlags::CLOEXEC,
        None,
    )?)
}

/// Most descriptors in one message.
const MAX_DESCRIPTORS: usize = 8;

/// Sends `bytes` from their start, with `descriptors` attached; says how many went. Never raises SIGPIPE.
pub(crate) fn send(
    socket: BorrowedFd<'_>,
    bytes: &[u8],
    descriptors: &[BorrowedFd<'_>],
    wait: bool,
) -> Result<usize> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_DESCRIPTORS))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !descriptors.is_empty() && !control.push(SendAncillaryMessage::ScmRights(descriptors)) {
        return Err(std::io::Error::other("too many descriptors in one message"));
    }
    let mut flags = SendFlags::NOSIGNAL;
    if !wait {
        flags |= SendFlags::DONTWAIT;
    }
    let sent = retry(|| rustix::net::sendmsg(socket, &[IoSlice::new(bytes)], &mut control, flags))?;
    Ok(sent)
}

/// Receives what is there into `buffer`; 0 is the end of the stream. Received descriptors are appended and close on exec.
pub(crate) fn receive(
    socket: BorrowedFd<'_>,
    buffer: &mut [u8],
    descriptors: &mut Vec<OwnedFd>,
    wait: bool,
) -> Result<usize> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_DESCRIPTORS))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut flags = RecvFlags::CMSG_CLOEXEC;
    if !wait {
        flags |= RecvFlags::DONTWAIT;
    }
    let received = retry(|| {
        rustix::net::recvmsg(socket, &mut [IoSliceMut::new(buffer)], &mut control, flags)
    })?;
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(received) = message {
            descriptors.extend(received);
        }
    }
    Ok(received.bytes)
}

/// Ends a connection in both directions while other threads may still hold it.
pub(crate) fn shut_down(socket: BorrowedFd<'_>) {
    // Only a peer that is gone already makes this fail.
    let _ = rustix::net::shutdown(socket, Shutdown::Both);
}

/// A descriptor that becomes readable when process `pid` ends.
pub(crate) fn open_process(pid: u32) -> Result<OwnedFd> {
    let pid =
        Pid::from_raw(pid.cast_signed()).ok_or_else(|| std::io::Error::other("process id 0"))?;
    Ok(rustix::process::pidfd_open(pid, PidfdFlags::empty())?)
}

/// A worker process, leader of its own process group.
#[derive(Debug)]
pub(crate) struct Process {
    child: Child,
    ended: OwnedFd,
}

impl Process {
    /// Starts `python -P -m diptych.worker` with `control` as its standard input and our standard error as both of its outputs.
    pub(crate) fn spawn(
        python: &str,
        environment_remove: &[String],
        control: OwnedFd,
    ) -> Result<Self> {
        use std::os::unix::process::CommandExt;
        let output = std::io::stderr().as_fd().try_clone_to_owned()?;
        let mut command = Command::new(python);
        command
            .args(["-P", "-m", "diptych.worker"])
            .stdin(Stdio::from(control))
            .stdout(Stdio::from(output))
            .stderr(Stdio::inherit())
            .process_group(0);
        for name in environment_remove {
            command.env_remove(name);
        }
        let mut child = command.spawn()?;
        match open_process(child.id()) {
            Ok(ended) => Ok(Self { child, ended }),
            Err(error) => {
                let _ = child.kill();
                let _ = child.wait();
                Err(error)
            }
        }
    }

    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    /// Kills the whole process group.
    pub(crate) fn kill(&self) {
        if let Some(pid) = Pid::from_raw(self.child.id().cast_signed()) {
            // ESRCH means that it ended by itself.
            let _ = rustix::process::kill_process_group(pid, ProcessSignal::KILL);
        }
    }

    /// Whether it ended within `timeout`.
    pub(crate) fn ended_within(&self, timeout: Duration) -> bool {
        poll_readable(&[self.ended.as_fd()], Some(timeout))[0]
    }

    /// Collects an ended process and says how it ended. Somebody else may have collected it (ECHILD): that is an end too.
    pub(crate) fn reap(&mut self) -> String {
        match self.child.wait() {
            Ok(status) => status.to_string(),
            Err(error) => format!("ended, status unknown: {error}"),
        }
    }
}

impl AsFd for Process {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.ended.as_fd()
    }
}

/// Starts a thread that no signal is ever delivered to: the host's handlers run on the host's threads.
pub(crate) fn spawn_thread(
    name: &str,
    life: impl FnOnce() + Send + 'static,
) -> Result<JoinHandle<()>> {
    spawn(std::thread::Builder::new(), name, life)
}

/// As [`spawn_thread`], with a stack of so many bytes, of which only those that are used take memory.
pub(crate) fn spawn_thread_with_stack(
    name: &str,
    bytes: usize,
    life: impl FnOnce() + Send + 'static,
) -> Result<JoinHandle<()>> {
    spawn(std::thread::Builder::new().stack_size(bytes), name, life)
}

/// Lets the calling thread take the processor from no thread of ordinary priority.
pub(crate) fn yield_to_others() {
    const NICE: c_int = 10;
    // What can fail is to make a thread less nice than its host: then it stays as nice as that.
    // SAFETY: 0 is the calling thread, of which nothing but its priority changes.
    let _ = unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, NICE) };
}

fn spawn(
    builder: std::thread::Builder,
    name: &str,
    life: impl FnOnce() + Send + 'static,
) -> Result<JoinHandle<()>> {
    let previous = set_signal_mask(&signal_set(libc::sigfillset));
    let spawned = builder.name(name.to_owned()).spawn(life);
    set_signal_mask(&previous);
    spawned
}

fn signal_set(fill: unsafe extern "C" fn(*mut libc::sigset_t) -> c_int) -> libc::sigset_t {
    let mut set = MaybeUninit::uninit();
    // SAFETY: `fill` is `sigfillset` or `sigemptyset`, which initialise the set that they are given.
    unsafe {
        fill(set.as_mut_ptr());
        set.assume_init()
    }
}

/// Sets the calling thread's signal mask and gives the one before.
fn set_signal_mask(mask: &libc::sigset_t) -> libc::sigset_t {
    let mut previous = MaybeUninit::uninit();
    // SAFETY: the new mask is initialised and the old one valid for writes, which initialise it.
    unsafe {
        let failed = libc::pthread_sigmask(libc::SIG_SETMASK, mask, previous.as_mut_ptr());
        assert_eq!(failed, 0, "pthread_sigmask with a valid request");
        previous.assume_init()
    }
}

/// Sets up the signals of a worker process: SIGINT and SIGTERM, which reach the whole group of its host, are ignored, and nothing stays
/// blocked of what the thread that started it had blocked.
pub(crate) fn worker_signals() {
    set_signal_mask(&signal_set(libc::sigemptyset));
    for signal in [libc::SIGINT, libc::SIGTERM] {
        // SAFETY: SIG_IGN is a valid disposition for both signals.
        unsafe { libc::signal(signal, libc::SIG_IGN) };
    }
}

/// Ends this process at once, running nothing.
pub(crate) fn exit_now(status: c_int) -> ! {
    // SAFETY: `_exit` has no precondition.
    unsafe { libc::_exit(status) }
}

/// Takes the descriptor 0 of this process for itself and leaves `/dev/null` in its place.
pub(crate) fn take_standard_input() -> Result<OwnedFd> {
    let taken = std::io::stdin().as_fd().try_clone_to_owned()?;
    let null = std::fs::File::open("/dev/null")?;
    // SAFETY: descriptor 0 is open (it was just duplicated) and std never closes it.
    let mut standard_input = std::mem::ManuallyDrop::new(unsafe { OwnedFd::from_raw_fd(0) });
    rustix::io::dup2(&null, &mut standard_input)?;
    Ok(taken)
}
