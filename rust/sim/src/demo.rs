//! Four requests under static and continuous batching, drawn in text.

use crate::core_scheduler::CoreScheduler;
use crate::reference::{Eviction, POLICIES, Reference};
use crate::scheduler::{END_OF_SEQUENCE, Job, Outcome, Scheduler, Step};
use crate::table::put;
use crate::{Engine, Error, PrefillOrder};

const SLOTS: usize = 2;
/// Name, step of arrival, tokens of output.
const REQUESTS: [(char, u64, u32); 4] = [('A', 0, 3), ('B', 0, 8), ('C', 1, 4), ('D', 2, 2)];
const IDLE: char = '·';

/// What each slot did, and who waited, step by step.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Timeline {
    slots: [Vec<Option<char>>; SLOTS],
    waiting: Vec<String>,
}

impl Timeline {
    fn steps(&self) -> usize {
        self.waiting.len()
    }

    fn idle(&self) -> usize {
        self.slots
            .iter()
            .flatten()
            .filter(|slot| slot.is_none())
            .count()
    }

    fn waited(&self) -> usize {
        self.waiting.iter().map(String::len).sum()
    }

    fn draw(&self, title: &str) -> String {
        let cells = |line: &mut dyn Iterator<Item = String>| -> String {
            line.fold(String::new(), |drawn, cell| drawn + &format!("{cell:<3}"))
        };
        let mut out = format!("{title}\n");
        let mut line = |name: &str, cells: String| {
            out += format!("  {name:<9}{cells}").trim_end();
            out.push('\n');
        };
        let mut numbers = (1..=self.steps()).map(|step| step.to_string());
        line("step", cells(&mut numbers));
        for (number, slot) in self.slots.iter().enumerate() {
            let mut drawn = slot.iter().map(|name| name.unwrap_or(IDLE).to_string());
            line(&format!("slot {}", number + 1), cells(&mut drawn));
        }
        line("waiting", cells(&mut self.waiting.iter().cloned()));
        out + &format!(
            "  {} steps, {} of {} slot-steps idle, {} request-steps waited\n",
            self.steps(),
            self.idle(),
            SLOTS * self.steps(),
            self.waited()
        )
    }
}

/// The drawing, with what it shows in words.
///
/// # Errors
/// [`Error`] if a scheduler breaks its rules.
pub fn batching() -> Result<String, Error> {
    let policy = POLICIES[0];
    let mut fixed = Reference::new(policy, Eviction::Lru, &engine());
    let mut core = CoreScheduler::new(&engine())?;
    let apart = timeline(&mut fixed).map_err(violation)?;
    let together = timeline(&mut core).map_err(violation)?;
    let mut out = String::from(
        "Four requests, two slots. A letter is one step of that request, · an idle slot.\n\n",
    );
    for (name, at, tokens) in REQUESTS {
        let line = format_args!("  {name} arrives before step {}, {tokens} tokens\n", at + 1);
        put(&mut out, line);
    }
    out += "\n";
    out += &apart.draw("Static batching: nobody joins before the whole batch has ended.");
    out += "\n";
    out += &together
        .draw("Continuous batching, by Diptych's core: whoever ends makes room at the next step.");
    Ok(out)
}

fn violation(violation: String) -> Error {
    Error::Violation {
        policy: "the demonstration".into(),
        replica: 0,
        now_ns: 0,
        violation,
    }
}

fn engine() -> Engine {
    Engine {
        block_size: 16,
        blocks: 64,
        max_running: SLOTS as u32,
        max_batched_tokens: 64,
        max_prefill_tokens: None,
        max_model_len: 64,
        max_queued_requests: 8,
        overlap_depth: 0,
        prefix_cache: true,
        target_itl_ns: None,
        prefill_tile: 1,
        prefill_order: PrefillOrder::Fcfs,
        max_ttft_ns: None,
    }
}

/// The four requests on their way.
#[derive(Default)]
struct Play {
    slots: [Option<u64>; SLOTS],
    waiting: Vec<u64>,
    tokens: [u32; REQUESTS.len()],
    ended: usize,
    outcomes: Vec<Outcome>,
}

/// Runs the four requests, one step at a time.
fn timeline(scheduler: &mut dyn Scheduler) -> Result<Timeline, String> {
    let mut timeline = Timeline::default();
    let mut play = Play::default();
    for now in 0.. {
        play.arrive(scheduler, now)?;
        let mut step = Step::default();
        if !scheduler.plan(now, &mut step) {
            return Err("nothing was planned while requests are open".into());
        }
        play.hear(scheduler)?;
        let name = |submission: u64| REQUESTS[submission as usize].0;
        for (line, slot) in timeline.slots.iter_mut().zip(play.slots) {
            line.push(slot.map(name));
        }
        let waiting = play.waiting.iter().copied().map(name).collect();
        timeline.waiting.push(waiting);
        let ids: Vec<u32> = step.samples.iter().map(|&one| play.sample(one)).collect();
        scheduler.complete(&ids, 1, now)?;
        play.hear(scheduler)?;
        if play.ended == REQUESTS.len() {
            break;
        }
    }
    Ok(timeline)
}

impl Play {
    fn arrive(&mut self, scheduler: &mut dyn Scheduler, now: u64) -> Result<(), String> {
        for (submission, &(_, at, output)) in (0..).zip(&REQUESTS) {
            if at == now {
                self.waiting.push(submission);
                let job = Job {
                    submission,
                    prompt: vec![submission as u32 + 1; 4],
                    max_tokens: output,
                    tenant: 1,
                    ..Job::default()
                };
                let submitted = scheduler.submit(job, now);
                submitted.map_err(|refusal| format!("{refusal:?}"))?;
            }
        }
        Ok(())
    }

    fn sample(&mut self, submission: u64) -> u32 {
        let count = &mut self.tokens[submission as usize];
        *count += 1;
        let last = *count == REQUESTS[submission as usize].2;
        if last { END_OF_SEQUENCE } else { *count }
    }

    fn hear(&mut self, scheduler: &mut dyn Scheduler) -> Result<(), String> {
        scheduler.take_outcomes(&mut self.outcomes);
        for outcome in self.outcomes.drain(..) {
            match outcome {
                Outcome::Admitted { submission, .. } => {
                    self.waiting.retain(|&other| other != submission);
                    let free = self.slots.iter().position(Option::is_none);
                    self.slots[free.ok_or("no slot is free")?] = Some(submission);
                }
                Outcome::Ended { submission, .. } => {
                    self.ended += 1;
                    let slot = self
                        .slots
                        .iter_mut()
                        .find(|slot| **slot == Some(submission));
                    *slot.ok_or("who ended had no slot")? = None;
                }
                Outcome::Token { .. } | Outcome::Preempted { .. } => {}
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_show_idle_slots_and_waiting_and_continuous_batching_has_less_of_both() {
        let mut fixed = Reference::new(POLICIES[0], Eviction::Lru, &engine());
        let apart = timeline(&mut fixed).unwrap();
        let together = timeline(&mut CoreScheduler::new(&engine()).unwrap()).unwrap();
        assert_eq!((apart.steps(), apart.idle(), apart.waited()), (12, 7, 13));
        assert_eq!(
            (together.steps(), together.idle(), together.waited()),
            (9, 1, 7)
        );
    }

    #[test]
    fn the_drawing_names_everybody_and_draws_every_step() {
        let drawn = batching().unwrap();
        assert!(drawn.contains("  slot 1   A  A  A  ·"), "{drawn}");
        assert!(drawn.contains("  slot 1   A  A  A  C"), "{drawn}");
        assert_eq!(drawn.matches("waiting").count(), 2);
    }
}
