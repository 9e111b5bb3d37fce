//! The columns of the public Azure traces of LLM inference: TIMESTAMP, `ContextTokens`, `GeneratedTokens`.

use super::generator::allowed;
use super::lines::TraceLines;
use super::{Arrival, Content, Source, Workload};
use crate::Error;
use crate::random::{Purpose, Stream};

struct Azure {
    lines: TraceLines,
    columns: [usize; 3],
    content: Content,
    tenants: Stream,
    workload: Workload,
}

const COLUMNS: [&str; 3] = ["TIMESTAMP", "ContextTokens", "GeneratedTokens"];

pub(super) fn open(
    path: &str,
    faster: f64,
    workload: &Workload,
    seed: u64,
) -> Result<Source, Error> {
    let mut lines = TraceLines::open(path, faster)?;
    let header = lines.next().transpose()?.unwrap_or_default();
    let names: Vec<&str> = header
        .trim_start_matches('\u{feff}')
        .split(',')
        .map(str::trim)
        .collect();
    let mut columns = [0; 3];
    for (column, wanted) in columns.iter_mut().zip(COLUMNS) {
        *column = names
            .iter()
            .position(|name| *name == wanted)
            .ok_or_else(|| lines.problem(format!("no column {wanted} in the header")))?;
    }
    Ok(Box::new(Azure {
        lines,
        columns,
        content: Content::new(workload.sharing, &workload.lengths, seed),
        tenants: Stream::new(seed, Purpose::Tenants),
        workload: workload.clone(),
    }))
}

impl Azure {
    fn arrival(&mut self, line: &str) -> Result<Arrival, Error> {
        let fields: Vec<&str> = line.split(',').map(str::trim).collect();
        let [time, context, generated] = self.columns.map(|column| fields.get(column).copied());
        let moment = time
            .and_then(unix_seconds)
            .ok_or_else(|| self.lines.problem("TIMESTAMP is no date and time"))?;
        let count = |field: Option<&str>| field?.parse::<u32>().ok();
        let (Some(prompt), Some(output)) = (count(context), count(generated)) else {
            let problem = "ContextTokens and GeneratedTokens must be counts";
            return Err(self.lines.problem(problem));
        };
        // A few rows of the public files have no output.
        let output = output.max(1);
        Ok(Arrival {
            at: self.lines.moment(moment)?,
            prompt: self.content.prompt(prompt.max(1)),
            output,
            max_tokens: allowed(&self.workload, output),
            tenant: 1 + self.tenants.below(self.workload.tenants),
            ..Arrival::default()
        })
    }
}

impl Iterator for Azure {
    type Item = Result<Arrival, Error>;

    fn next(&mut self) -> Option<Self::Item> {
        let line = self.lines.next()?;
        Some(line.and_then(|line| self.arrival(&line)))
    }
}

/// Seconds since 1970 of `2023-11-16 18:17:03.9799600`, or with `T` and a zone, which is ignored.
pub(super) fn unix_seconds(text: &str) -> Option<f64> {
    let (date, time) = text.split_once([' ', 'T'])?;
    let mut date = date.splitn(3, '-').map(|part| part.parse::<i64>().ok());
    let (year, month, day) = (date.next()??, date.next()??, date.next()??);
    let time = time.trim_end_matches('Z');
    let time = time.split_once('+').map_or(time, |(time, _zone)| time);
    let mut parts = time.splitn(3, ':');
    let hours: f64 = parts.next()?.parse().ok()?;
    let minutes: f64 = parts.next()?.parse().ok()?;
    let seconds: f64 = parts.next()?.parse().ok()?;
    let day_seconds = days(year, month, day) as f64 * 86_400.0;
    Some(day_seconds + hours * 3_600.0 + minutes * 60.0 + seconds)
}

/// Days since 1970-01-01 in the Gregorian calendar, the year counted from March.
fn days(year: i64, month: i64, day: i64) -> i64 {
    let year = if month <= 2 { year - 1 } else { year };
    let day_of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    365 * year + year.div_euclid(4) - year.div_euclid(100) + year.div_euclid(400) + day_of_year
        - 719_468
}
