//! A report as one HTML page with its drawings in it: nothing is loaded from anywhere.

use crate::metrics::{Sample, Summary};
use crate::report::{Report, Run};
use crate::table::{number, put, text};

const WIDTH: f64 = 560.0;
const HEIGHT: f64 = 260.0;
/// Room for the labels of the axes: left, top, right, bottom.
const MARGIN: (f64, f64, f64, f64) = (62.0, 30.0, 12.0, 34.0);
/// Told apart by people who do not see some colours (Okabe and Ito).
const COLOURS: [&str; 6] = [
    "#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9",
];
const STYLE: &str = "body{font:14px/1.5 system-ui,sans-serif;margin:2em auto;max-width:1180px;padding:0 1em;\
color-scheme:light dark}pre{overflow-x:auto}svg{width:560px;max-width:100%;height:auto}\
text{fill:currentColor;font:11px system-ui,sans-serif}.axis{stroke:currentColor;stroke-opacity:.25}\
polyline{fill:none;stroke-width:1.6}";

/// A line of a drawing.
struct Line {
    name: String,
    points: Vec<(f64, f64)>,
}

/// A drawing: lines over a common horizontal axis.
struct Chart {
    title: &'static str,
    lines: Vec<Line>,
    /// Labels at whole positions of the horizontal axis; none: numbers of seconds.
    labels: &'static [&'static str],
    logarithmic: bool,
}

/// The page.
#[must_use]
pub fn html(report: &Report) -> String {
    let mut out = format!(
        "<!doctype html>\n<html lang=\"en\"><meta charset=\"utf-8\"><title>diptych simulate</title><style>{STYLE}</style>\n<h1>diptych simulate</h1>\n<pre>{}</pre>\n",
        escaped(&text(report))
    );
    for chart in charts(&report.runs) {
        chart.draw(&mut out);
    }
    out += "</html>\n";
    out
}

fn charts(runs: &[Run]) -> [Chart; 6] {
    [
        percentiles("time to first token, ms", runs, |run| run.ttft_ms),
        percentiles("time between tokens, ms", runs, |run| run.itl_ms),
        course("waiting requests", runs, |sample, _| sample.waiting as f64),
        course("running requests", runs, |sample, _| sample.running as f64),
        course("KV blocks in use, %", runs, |sample, _| {
            100.0 * sample.used_share
        }),
        course("output tokens a second", runs, |sample, before| {
            let seconds = (sample.at_s - before.at_s).max(1e-9);
            (sample.generated - before.generated) as f64 / seconds
        }),
    ]
}

fn percentiles(title: &'static str, runs: &[Run], read: fn(&Run) -> Summary) -> Chart {
    let lines = runs.iter().map(|run| {
        let summary = read(run);
        let values = [
            summary.p50,
            summary.p90,
            summary.p99,
            summary.p999,
            summary.max,
        ];
        Line {
            name: run.policy.clone(),
            points: (0_u8..).map(f64::from).zip(values).collect(),
        }
    });
    Chart {
        title,
        lines: lines.collect(),
        labels: &["p50", "p90", "p99", "p99.9", "worst"],
        logarithmic: true,
    }
}

fn course(title: &'static str, runs: &[Run], read: fn(&Sample, &Sample) -> f64) -> Chart {
    let lines = runs.iter().map(|run| Line {
        name: run.policy.clone(),
        points: run
            .series
            .windows(2)
            .map(|pair| (pair[1].at_s, read(&pair[1], &pair[0])))
            .collect(),
    });
    Chart {
        title,
        lines: lines.collect(),
        labels: &[],
        logarithmic: false,
    }
}

/// From values to places on the page.
struct Scale {
    from: f64,
    to: f64,
    start: f64,
    length: f64,
    logarithmic: bool,
}

impl Scale {
    fn place(&self, value: f64) -> f64 {
        let share = if self.logarithmic {
            (value.max(self.from) / self.from).ln() / (self.to / self.from).ln()
        } else {
            (value - self.from) / (self.to - self.from)
        };
        self.start + self.length * share
    }

    /// Round values between the ends, a handful.
    fn ticks(&self) -> Vec<f64> {
        if self.logarithmic {
            let first = self.from.log10().ceil() as i32;
            let last = self.to.log10().floor() as i32;
            return (first..=last).map(|power| 10_f64.powi(power)).collect();
        }
        let rough = (self.to - self.from) / 5.0;
        let power = 10_f64.powf(rough.log10().floor());
        let step = [1.0, 2.0, 5.0, 10.0]
            .map(|factor| factor * power)
            .into_iter()
            .find(|step| *step >= rough)
            .unwrap_or(rough);
        let first = (self.from / step).ceil();
        let count = ((self.to / step).floor() - first) as u32 + 1;
        (0..count)
            .map(|tick| (first + f64::from(tick)) * step)
            .collect()
    }
}

impl Chart {
    fn draw(&self, out: &mut String) {
        let (left, top, right, bottom) = MARGIN;
        let (across, up) = self.scales();
        put(
            out,
            format_args!(
                "<svg viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\" aria-label=\"{}\">",
                self.title
            ),
        );
        put(
            out,
            format_args!(
                "<text x=\"{left}\" y=\"14\" font-weight=\"600\">{}</text>",
                self.title
            ),
        );
        for value in up.ticks() {
            let y = up.place(value);
            put(
                out,
                format_args!(
                    "<line class=\"axis\" x1=\"{left}\" x2=\"{}\" y1=\"{y:.1}\" y2=\"{y:.1}\"/><text x=\"{}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>",
                    WIDTH - right,
                    left - 6.0,
                    y + 4.0,
                    tick_label(value)
                ),
            );
        }
        self.label_across(&across, out);
        self.draw_lines(&across, &up, out);
        put(
            out,
            format_args!(
                "<line class=\"axis\" x1=\"{left}\" x2=\"{left}\" y1=\"{top}\" y2=\"{}\"/></svg>\n",
                HEIGHT - bottom
            ),
        );
    }

    fn draw_lines(&self, across: &Scale, up: &Scale, out: &mut String) {
        let (left, top, ..) = MARGIN;
        for (index, line) in self.lines.iter().enumerate() {
            let colour = COLOURS[index % COLOURS.len()];
            let mut points = String::new();
            for &(x, y) in &line.points {
                put(
                    &mut points,
                    format_args!("{:.1},{:.1} ", across.place(x), up.place(y)),
                );
            }
            put(
                out,
                format_args!("<polyline stroke=\"{colour}\" points=\"{points}\"/>"),
            );
            put(
                out,
                format_args!(
                    "<text x=\"{:.1}\" y=\"{}\" style=\"fill:{colour}\">{}</text>",
                    left + 90.0 * index as f64,
                    top - 3.0,
                    escaped(&line.name)
                ),
            );
        }
    }

    fn label_across(&self, across: &Scale, out: &mut String) {
        let y = HEIGHT - 14.0;
        let named = (0_u8..)
            .map(f64::from)
            .zip(self.labels.iter().map(|&label| label.to_owned()));
        let labels: Vec<(f64, String)> = if self.labels.is_empty() {
            let seconds = |value: f64| (value, format!("{} s", tick_label(value)));
            across.ticks().into_iter().map(seconds).collect()
        } else {
            named.collect()
        };
        for (value, label) in labels {
            let x = across.place(value);
            put(
                out,
                format_args!("<text x=\"{x:.1}\" y=\"{y}\" text-anchor=\"middle\">{label}</text>"),
            );
        }
    }

    fn scales(&self) -> (Scale, Scale) {
        let (left, top, right, bottom) = MARGIN;
        let points = || self.lines.iter().flat_map(|line| &line.points);
        let most = |values: &mut dyn Iterator<Item = f64>| values.fold(0.0, f64::max);
        let widest = most(&mut points().map(|&(x, _)| x));
        let highest = most(&mut points().map(|&(_, y)| y));
        let positive = points().map(|&(_, y)| y).filter(|&y| y > 0.0);
        let lowest = positive.fold(highest.max(1.0), f64::min);
        let across = Scale {
            from: 0.0,
            to: if widest > 0.0 { widest } else { 1.0 },
            start: left + if self.labels.is_empty() { 0.0 } else { 20.0 },
            length: WIDTH - left - right - if self.labels.is_empty() { 0.0 } else { 40.0 },
            logarithmic: false,
        };
        let up = Scale {
            from: if self.logarithmic { lowest / 1.5 } else { 0.0 },
            to: if highest > 0.0 { highest * 1.1 } else { 1.0 },
            start: HEIGHT - bottom,
            length: -(HEIGHT - bottom - top),
            logarithmic: self.logarithmic,
        };
        (across, up)
    }
}

fn tick_label(value: f64) -> String {
    if value.abs() >= 1.0 && value.fract().abs() < 1e-9 {
        format!("{value:.0}")
    } else if value == 0.0 {
        "0".into()
    } else {
        number(value)
    }
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
}
