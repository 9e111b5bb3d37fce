//! Packing once, for all who serve the same model from the same cache.

use std::fs::{File, TryLockError};
use std::path::{Path, PathBuf};

use super::error::PackedError;
use super::file::PackedFile;
use super::pack::{Packing, Plan, fill_region, write_plan};
use super::source::ModelSource;

/// A packed model kept in a file of a cache folder.
pub struct CachedModel<'a> {
    /// The checkpoint.
    pub source: &'a ModelSource,
    /// How it is packed if it has to be.
    pub packing: Packing<'a>,
    /// Where the packed model is kept; its folder is made if need be.
    pub file: &'a Path,
    /// Whether the weights are read into huge pages.
    pub huge: bool,
    /// Told what happens.
    pub log: &'a (dyn Fn(&str) + Sync),
}

impl CachedModel<'_> {
    /// The packed model: from its file if that fits the checkpoint, packed anew otherwise. Of several processes one packs and
    /// the others wait. Where the file cannot be written, the model is packed into memory.
    ///
    /// # Errors
    /// If the checkpoint cannot be read or packed.
    pub fn open(&self) -> Result<PackedFile, PackedError> {
        let digest = self.source.digest(self.packing.threads)?;
        let plan = Plan::new(self.source, self.packing.formats, digest)?;
        match self.open_file(&plan) {
            Err(error) if error.asks_for_packing() => {}
            // A file of somebody else that cannot be read, say: it can still be packed.
            Err(PackedError::Io { .. }) => {}
            result => return result,
        }
        match self.pack(&plan) {
            Err(error @ PackedError::Write { .. }) => {
                (self.log)(&format!(
                    "{error}; packing into memory, and again at the next start"
                ));
                let region = fill_region(&plan, &self.packing, self.huge)?;
                Ok(PackedFile::in_memory(plan.header, region))
            }
            result => result,
        }
    }

    fn open_file(&self, plan: &Plan) -> Result<PackedFile, PackedError> {
        let file = PackedFile::open(self.file, self.huge, self.packing.threads)?;
        file.check_origin(
            self.source.shape(),
            self.packing.formats,
            &plan.header.source,
        )?;
        Ok(file)
    }

    fn pack(&self, plan: &Plan) -> Result<PackedFile, PackedError> {
        // The system drops the lock when its holder dies, so whatever unfinished file lies there then is nobody's.
        let _lock = self.lock()?;
        match self.open_file(plan) {
            Err(error) if self.file.exists() => (self.log)(&format!("{error}; packing")),
            Err(_) => (self.log)(&format!("packing the weights into {}", self.file.display())),
            result => return result,
        }
        self.remove_partial();
        write_plan(plan, &self.packing, self.file)?;
        self.open_file(plan)
    }

    fn lock(&self) -> Result<File, PackedError> {
        let failed = |source| PackedError::Write {
            path: self.file.to_path_buf(),
            source,
        };
        std::fs::create_dir_all(self.folder()).map_err(failed)?;
        let lock =
            File::create(self.folder().join(format!(".{}.lock", self.name()))).map_err(failed)?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                (self.log)("another process is packing these weights; waiting for it");
                lock.lock().map_err(failed)?;
            }
            Err(TryLockError::Error(error)) => return Err(failed(error)),
        }
        Ok(lock)
    }

    fn folder(&self) -> &Path {
        let folder = self
            .file
            .parent()
            .filter(|folder| !folder.as_os_str().is_empty());
        folder.unwrap_or(Path::new("."))
    }

    fn name(&self) -> String {
        self.file
            .file_name()
            .unwrap_or_default()
            .to_string_lossy()
            .into_owned()
    }

    fn remove_partial(&self) {
        let start = format!(".{}.", self.name());
        let left = |path: &PathBuf| {
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            name.starts_with(&start) && name.ends_with(".partial")
        };
        let entries = std::fs::read_dir(self.folder())
            .into_iter()
            .flatten()
            .flatten();
        for path in entries.map(|entry| entry.path()).filter(left) {
            // What cannot be removed is only in the way of space.
            let _ = std::fs::remove_file(path);
        }
    }
}
