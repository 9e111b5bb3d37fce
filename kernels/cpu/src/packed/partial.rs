//! Files that appear when they are complete.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};

use super::error::{PackedError, cannot_write};

/// A file being written, which goes away unless it is published.
pub(super) struct Partial {
    path: PathBuf,
    pub(super) file: File,
    published: bool,
}

impl Partial {
    pub(super) fn create(out: &Path) -> Result<Self, PackedError> {
        let name = out.file_name().unwrap_or_default().to_string_lossy();
        let path = out.with_file_name(format!(".{name}.{}.partial", std::process::id()));
        let file = File::options()
            .read(true)
            .write(true)
            .create(true)
            .truncate(true)
            .open(&path)
            .map_err(cannot_write(&path))?;
        Ok(Self {
            path,
            file,
            published: false,
        })
    }

    /// Asks for the whole space at once, so that a full disk is noticed before the work.
    pub(super) fn reserve(&self, bytes: u64) -> io::Result<()> {
        // SAFETY: a call on a descriptor that is open.
        let refused = unsafe { libc::fallocate(self.file.as_raw_fd(), 0, 0, bytes as i64) } != 0;
        let error = io::Error::last_os_error();
        match error.raw_os_error() {
            // Not every file system can; then writing tells.
            Some(libc::EOPNOTSUPP | libc::ENOSYS) if refused => self.file.set_len(bytes),
            _ if refused => Err(error),
            _ => Ok(()),
        }
    }

    pub(super) fn publish(mut self, out: &Path) -> io::Result<()> {
        std::fs::rename(&self.path, out)?;
        self.published = true;
        let folder = out.parent().filter(|folder| !folder.as_os_str().is_empty());
        File::open(folder.unwrap_or(Path::new(".")))?.sync_all()
    }
}

impl Drop for Partial {
    fn drop(&mut self) {
        if !self.published {
            // Whoever packs next removes what stays.
            let _ = std::fs::remove_file(&self.path);
        }
    }
}
