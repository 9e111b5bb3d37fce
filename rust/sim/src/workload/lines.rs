//! A trace file line by line, with the place of what is wrong in it.

use std::fs::File;
use std::io::{BufRead, BufReader, Lines};

use crate::Error;

pub(super) struct TraceLines {
    path: String,
    lines: Lines<BufReader<File>>,
    number: usize,
    latest: f64,
    first: Option<f64>,
    speed: f64,
}

impl TraceLines {
    pub(super) fn open(path: &str, speed: f64) -> Result<Self, Error> {
        let file = File::open(path).map_err(|source| Error::Trace {
            path: path.into(),
            source,
        })?;
        Ok(Self {
            path: path.into(),
            lines: BufReader::new(file).lines(),
            number: 0,
            latest: 0.0,
            first: None,
            speed,
        })
    }

    /// The next line that is not empty.
    pub(super) fn next(&mut self) -> Option<Result<String, Error>> {
        loop {
            let line = self.lines.next()?;
            self.number += 1;
            match line {
                Ok(line) if line.trim().is_empty() => {}
                Ok(line) => return Some(Ok(line)),
                Err(source) => {
                    let path = self.path.clone();
                    return Some(Err(Error::Trace { path, source }));
                }
            }
        }
    }

    /// Nanoseconds from the first line's time to this line's, which was `seconds`, divided by the speed.
    pub(super) fn moment(&mut self, seconds: f64) -> Result<u64, Error> {
        let first = *self.first.get_or_insert(seconds);
        let since = seconds - first;
        if since < self.latest {
            return Err(self.problem("a time before that of the line above: sort the trace"));
        }
        self.latest = since;
        Ok((since / self.speed * 1e9).round() as u64)
    }

    pub(super) fn problem(&self, problem: impl Into<String>) -> Error {
        Error::TraceLine {
            path: self.path.clone(),
            line: self.number,
            problem: problem.into(),
        }
    }
}

/// Lines of a file that are not empty.
pub(super) fn count(path: &str) -> Result<u64, Error> {
    let mut lines = TraceLines::open(path, 1.0)?;
    let mut count = 0;
    while lines.next().transpose()?.is_some() {
        count += 1;
    }
    Ok(count)
}
