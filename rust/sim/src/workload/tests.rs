//! Generators are what their names say, and traces are read exactly.

use std::collections::HashSet;
use std::path::PathBuf;

use super::azure::unix_seconds;
use super::{Arrival, Arrivals, Lengths, Sharing, Workload};
use crate::Error;

fn arrivals(workload: &Workload) -> Vec<Arrival> {
    let source = workload.source(7).expect("a workload that can be made");
    source.collect::<Result<_, _>>().expect("no bad line")
}

fn generated(kind: Arrivals, requests: u64) -> Vec<Arrival> {
    arrivals(&Workload {
        arrivals: kind,
        requests,
        lengths: Lengths {
            prompt: 20,
            output: 5,
            ..Lengths::default()
        },
        tenants: 4,
        ..Workload::default()
    })
}

fn count(arrivals: &[Arrival], from_s: f64, to_s: f64) -> usize {
    let within = |arrival: &&Arrival| (from_s..to_s).contains(&(arrival.at as f64 / 1e9));
    arrivals.iter().filter(within).count()
}

/// Mean and coefficient of variation of the gaps, in seconds.
fn gaps(arrivals: &[Arrival]) -> (f64, f64) {
    let gap = |pair: &[Arrival]| (pair[1].at - pair[0].at) as f64 / 1e9;
    let gaps: Vec<f64> = arrivals.windows(2).map(gap).collect();
    let mean = gaps.iter().sum::<f64>() / gaps.len() as f64;
    let squares: f64 = gaps.iter().map(|gap| (gap - mean).powi(2)).sum();
    (mean, (squares / gaps.len() as f64).sqrt() / mean)
}

fn assert_near(seen: f64, expected: f64, share: f64) {
    assert!(
        (seen / expected - 1.0).abs() < share,
        "{seen}, expected about {expected}"
    );
}

#[test]
fn gaps_have_the_mean_and_the_burstiness_asked_for() {
    let (mean, cv) = gaps(&generated(Arrivals::Poisson { rate: 4.0 }, 20_000));
    assert_near(mean, 0.25, 0.05);
    assert_near(cv, 1.0, 0.05);
    let (mean, cv) = gaps(&generated(Arrivals::Gamma { rate: 4.0, cv: 5.0 }, 20_000));
    assert_near(mean, 0.25, 0.15);
    assert_near(cv, 5.0, 0.15);
}

#[test]
fn rates_rise_and_fall_as_asked_for() {
    let crowd = Arrivals::FlashCrowd {
        rate: 10.0,
        at: 20.0,
        lasting: 10.0,
        factor: 10.0,
    };
    let arrivals = generated(crowd, 1_500);
    assert_near(count(&arrivals, 0.0, 20.0) as f64, 200.0, 0.25);
    assert_near(count(&arrivals, 20.0, 30.0) as f64, 1_000.0, 0.15);
    let day = Arrivals::Diurnal {
        rate: 50.0,
        period: 40.0,
        depth: 1.0,
    };
    let arrivals = generated(day, 2_000);
    assert!(count(&arrivals, 5.0, 15.0) > 5 * count(&arrivals, 25.0, 35.0));
}

#[test]
fn one_tenant_floods_and_can_be_left_out() {
    let flood = Workload {
        arrivals: Arrivals::TenantFlood {
            rate: 1.0,
            factor: 20.0,
        },
        requests: 4_000,
        tenants: 5,
        ..Workload::default()
    };
    let all = arrivals(&flood);
    let of = |tenant| {
        all.iter()
            .filter(|arrival| arrival.tenant == tenant)
            .count() as f64
    };
    for other in 2..=5 {
        assert_near(of(1) / of(other), 20.0, 0.35);
    }
    let without = arrivals(&Workload {
        without_tenant: Some(1),
        ..flood
    });
    let others: Vec<Arrival> = all
        .into_iter()
        .filter(|arrival| arrival.tenant != 1)
        .collect();
    assert_eq!(without, others);
}

#[test]
fn special_requests_come_when_they_should() {
    let attack = Arrivals::LongPromptAttack {
        rate: 5.0,
        every: 10.0,
        tokens: 30_000,
    };
    let long: Vec<u64> = generated(attack, 500)
        .iter()
        .filter(|arrival| arrival.prompt.len() == 30_000 && arrival.tenant == 1)
        .map(|arrival| arrival.at)
        .collect();
    assert_eq!(long[..3], [10_000_000_000, 20_000_000_000, 30_000_000_000]);
    let herd = Arrivals::SamePrefixHerd {
        rate: 1.0,
        every: 10.0,
        size: 6,
        tokens: 1_000,
    };
    let herd: Vec<Arrival> = generated(herd, 50)
        .into_iter()
        .filter(|arrival| arrival.at == 10_000_000_000)
        .collect();
    assert_eq!(herd.len(), 6);
    assert!(
        herd.iter()
            .all(|one| one.prompt[..1_000] == herd[0].prompt[..1_000])
    );
    let ends: HashSet<&[u32]> = herd.iter().map(|one| &one.prompt[1_000..]).collect();
    assert_eq!(ends.len(), 6);
    let storm = Arrivals::AbortStorm {
        rate: 20.0,
        at: 10.0,
        lasting: 5.0,
        share: 0.5,
    };
    let storm = generated(storm, 500);
    let leaving: Vec<&Arrival> = storm
        .iter()
        .filter(|one| one.abort_after.is_some())
        .collect();
    assert_near(leaving.len() as f64, 50.0, 0.4);
    for one in leaving {
        let leaves = one.at + one.abort_after.expect("it leaves");
        assert!(leaves.abs_diff(15_000_000_000) <= 1, "{leaves}");
    }
}

#[test]
fn a_later_turn_repeats_the_earlier_one_with_its_answer() {
    let talk = Workload {
        requests: 200,
        lengths: Lengths {
            prompt: 40,
            output: 10,
            ..Lengths::default()
        },
        sharing: Sharing {
            turns: 8.0,
            ..Sharing::default()
        },
        ..Workload::default()
    };
    let all = arrivals(&talk);
    let goes_on = |later: &Arrival| {
        all.iter().any(|earlier| {
            let length = earlier.prompt.len();
            earlier.at < later.at
                && later.prompt.len() > length + earlier.output as usize - 1
                && later.prompt[..length] == earlier.prompt
                && crate::oracle::answers(&earlier.prompt, earlier.output - 1)
                    == later.prompt[length..length + earlier.output as usize - 1]
        })
    };
    let turns = all.iter().filter(|arrival| goes_on(arrival)).count();
    assert!(turns > 120, "{turns} of 200 go on");
}

#[test]
fn no_prompt_holds_the_end_of_sequence() {
    let all = generated(Arrivals::Poisson { rate: 1.0 }, 300);
    assert!(
        all.iter()
            .all(|arrival| !arrival.prompt.is_empty() && !arrival.prompt.contains(&0))
    );
}

struct TraceFile(PathBuf);

impl TraceFile {
    fn new(name: &str, content: &str) -> Self {
        let path = std::env::temp_dir().join(format!("diptych-sim-{}-{name}", std::process::id()));
        std::fs::write(&path, content).expect("a temporary file");
        Self(path)
    }

    fn path(&self) -> String {
        self.0.to_string_lossy().into_owned()
    }
}

impl Drop for TraceFile {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

fn azure(file: &TraceFile, speed: f64) -> Workload {
    Workload {
        arrivals: Arrivals::Azure {
            path: file.path(),
            speed,
        },
        ..Workload::default()
    }
}

#[test]
fn azure_columns_are_read_by_name_and_sped_up() {
    let file = TraceFile::new(
        "azure.csv",
        "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 23:59:59.5000000,374,44\n2023-11-17 00:00:01.5000000,396,0\n",
    );
    let all = arrivals(&azure(&file, 2.0));
    let seen: Vec<(u64, usize, u32)> = all
        .iter()
        .map(|arrival| (arrival.at, arrival.prompt.len(), arrival.output))
        .collect();
    assert_eq!(seen, [(0, 374, 44), (1_000_000_000, 396, 1)]);
    assert_eq!(azure(&file, 2.0).expected().expect("a file"), 2);
}

#[test]
fn days_follow_the_calendar() {
    let day = |text: &str| unix_seconds(&format!("{text} 00:00:00")).expect("a date") / 86_400.0;
    assert_eq!(day("1970-01-01").to_bits(), 0.0_f64.to_bits());
    assert_eq!(day("2000-03-01").to_bits(), 11_017.0_f64.to_bits());
    assert_eq!(day("2024-02-29").to_bits(), 19_782.0_f64.to_bits());
    assert_eq!(
        unix_seconds("2024-05-10T00:00:01.5+00:00"),
        Some(1_715_299_201.5)
    );
}

#[test]
fn mooncake_blocks_are_shared_by_their_ids() {
    let line = |time: u32, tokens: u32, ids: &str| {
        format!(
            "{{\"timestamp\": {time}, \"input_length\": {tokens}, \"output_length\": 7, \"hash_ids\": [{ids}]}}\n"
        )
    };
    let content = line(100, 1_000, "0, 1") + &line(350, 1_500, "0, 1, 9") + &line(400, 600, "0, 8");
    let file = TraceFile::new("mooncake.jsonl", &content);
    let all = arrivals(&Workload {
        arrivals: Arrivals::Mooncake {
            path: file.path(),
            speed: 1.0,
        },
        ..Workload::default()
    });
    let seen: Vec<(u64, usize)> = all.iter().map(|one| (one.at, one.prompt.len())).collect();
    assert_eq!(seen, [(0, 1_000), (250_000_000, 1_500), (300_000_000, 600)]);
    assert_eq!(all[0].prompt, all[1].prompt[..1_000]);
    assert_eq!(all[0].prompt[..512], all[2].prompt[..512]);
    assert_ne!(all[0].prompt[512..600], all[2].prompt[512..]);
}

#[test]
fn a_bad_line_is_named() {
    let cases = [
        (
            "no-column.csv",
            "TIMESTAMP,Context\n",
            "line 1: no column ContextTokens",
        ),
        (
            "no-time.csv",
            "TIMESTAMP,ContextTokens,GeneratedTokens\nsoon,1,1\n",
            "line 2: TIMESTAMP",
        ),
        (
            "no-count.csv",
            "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 00:00:00,1,x\n",
            "line 2: ContextTokens",
        ),
        (
            "backwards.csv",
            "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 00:00:01,1,1\n2023-11-16 00:00:00,1,1\n",
            "line 3: a time before",
        ),
    ];
    for (name, content, expected) in cases {
        let file = TraceFile::new(name, content);
        let problem = match azure(&file, 1.0).source(0) {
            Err(error) => error,
            Ok(mut source) => source
                .find_map(Result::err)
                .expect("a line that cannot be read"),
        };
        assert!(matches!(problem, Error::TraceLine { .. }));
        assert!(problem.to_string().contains(expected), "{problem}");
    }
}
