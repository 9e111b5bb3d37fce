//! Who has grammars compiled: each on a thread of its own, because nothing can end a thread that computes.
//!
//! What a grammar may cost is bounded by the compiler's own limits. Should those fail, a request is answered after
//! [`COMPILE_LIMIT`] all the same: its thread is given up and ends when it ends. Only so many may be given up at once; then no grammar
//! is compiled that is not known already.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use diptych_text::{Grammar, GrammarCompiler, Matcher, TextError};

use crate::frame::FailureKind;
use crate::grammar::{Compiled, delay, wanted};
use crate::messages::{Problem, Submission};
use crate::now_ns;
use crate::os;
use crate::shared::Shared;

/// Time for one grammar.
const COMPILE_LIMIT: Duration = Duration::from_secs(5);

/// Grammars that are compiled at once.
const AT_ONCE: usize = 2;

/// Threads that may be given up at once.
const GIVEN_UP: usize = 4;

/// Grammars that are kept compiled, the last used ones.
const KEPT: usize = 64;

/// What the clerk is told.
#[derive(Debug)]
pub(super) enum Message {
    Compile(Box<Submission>),
    /// A limit may have passed.
    TimePassed,
    /// A thread has ended, with what it made.
    Made(u64, Box<Made>),
    Close,
}

type Made = Result<(Matcher, Vec<u32>), Refusal>;

/// Why a grammar was not compiled.
#[derive(Clone, Debug)]
pub(super) struct Refusal {
    kind: FailureKind,
    message: String,
    /// The tool whose arguments are at fault.
    function: Option<usize>,
}

impl Refusal {
    fn new(kind: FailureKind, message: String) -> Self {
        Self {
            kind,
            message,
            function: None,
        }
    }
}

/// A grammar that is being compiled.
struct Compiling {
    number: u64,
    until: Instant,
    grammar: Grammar,
    thread: JoinHandle<()>,
    /// `None`: it was given up.
    submission: Option<Box<Submission>>,
}

struct Clerk<'a> {
    shared: &'a Shared,
    waiting: VecDeque<Box<Submission>>,
    compiling: Vec<Compiling>,
    /// The last used one first.
    kept: VecDeque<(Grammar, Made)>,
    numbers: u64,
}

/// The life of the clerk's thread.
pub(crate) fn run_clerk(shared: &Shared) {
    let Some(receiver) = shared.grammars.take_receiver() else {
        return;
    };
    let mut clerk = Clerk {
        shared,
        waiting: VecDeque::new(),
        compiling: Vec::new(),
        kept: VecDeque::new(),
        numbers: 0,
    };
    while let Some(message) = clerk.wait(&receiver) {
        match message {
            Message::Compile(submission) => clerk.take(submission),
            Message::Made(number, made) => clerk.made(number, *made),
            Message::TimePassed => {}
            Message::Close => break,
        }
        clerk.give_up_late_ones();
        clerk.start();
    }
    clerk.close();
}

impl Clerk<'_> {
    /// The next message, if there will be one.
    fn wait(&self, receiver: &Receiver<Message>) -> Option<Message> {
        let counting = self.compiling.iter();
        let counting = counting.filter(|compiling| compiling.submission.is_some());
        let Some(until) = counting.map(|compiling| compiling.until).min() else {
            return receiver.recv().ok();
        };
        match receiver.recv_timeout(until.saturating_duration_since(Instant::now())) {
            Ok(message) => Some(message),
            Err(RecvTimeoutError::Timeout) => Some(Message::TimePassed),
            Err(RecvTimeoutError::Disconnected) => None,
        }
    }

    fn take(&mut self, submission: Box<Submission>) {
        let Some(grammar) = submission.grammar.clone() else {
            return self.shared.hand_to_core(submission);
        };
        if let Some(place) = self.kept.iter().position(|(kept, _)| *kept == grammar)
            && let Some(entry) = self.kept.remove(place)
        {
            self.kept.push_front(entry);
            return self.answer(submission, &self.kept[0].1);
        }
        let given_up = self.compiling.iter();
        let given_up = given_up.filter(|compiling| compiling.submission.is_none());
        if given_up.count() >= GIVEN_UP {
            let busy = Refusal::new(
                FailureKind::GrammarsBusy,
                format!(
                    "{GIVEN_UP} grammars that took more than {} seconds are still being compiled: retry later",
                    COMPILE_LIMIT.as_secs()
                ),
            );
            return self.refuse(&submission, &busy);
        }
        self.waiting.push_back(submission);
    }

    fn start(&mut self) {
        loop {
            let counting = self.compiling.iter();
            let counting = counting.filter(|compiling| compiling.submission.is_some());
            if counting.count() >= AT_ONCE {
                return;
            }
            let Some(submission) = self.waiting.pop_front() else {
                return;
            };
            if submission.open.has_left_prompt() {
                continue;
            }
            if is_late(&submission) {
                let late = "the request's timeout passed before its grammar was compiled";
                let late = Problem::new(FailureKind::Timeout, late);
                self.shared.fail_prompt(&submission.open, late);
                continue;
            }
            let Some(grammar) = submission.grammar.clone() else {
                continue;
            };
            self.numbers += 1;
            match self.spawn(self.numbers, &grammar, &submission) {
                Ok(thread) => self.compiling.push(Compiling {
                    number: self.numbers,
                    until: Instant::now() + COMPILE_LIMIT,
                    grammar,
                    thread,
                    submission: Some(submission),
                }),
                Err(error) => {
                    let refusal = Refusal::new(
                        FailureKind::GrammarsBusy,
                        format!("no thread can be started to compile the grammar: {error}"),
                    );
                    self.refuse(&submission, &refusal);
                }
            }
        }
    }

    fn spawn(
        &self,
        number: u64,
        grammar: &Grammar,
        submission: &Submission,
    ) -> std::io::Result<JoinHandle<()>> {
        let compiler = Arc::clone(&self.shared.grammars.compiler);
        let sender = self.shared.grammars.sender.clone();
        let fault = self.shared.options.test_faults.slow_compile;
        let (grammar, request) = (grammar.clone(), submission.open.number);
        let life = move || {
            os::yield_to_others();
            delay(fault, request);
            // The clerk of a closed engine has left.
            let _ = sender.send(Message::Made(number, Box::new(make(&compiler, &grammar))));
        };
        os::spawn_thread_with_stack("diptych-grammar", GrammarCompiler::STACK_BYTES, life)
    }

    fn made(&mut self, number: u64, made: Made) {
        let place = self.compiling.iter().position(|it| it.number == number);
        let Some(compiling) = place.map(|place| self.compiling.swap_remove(place)) else {
            return;
        };
        // It has said its last word.
        let ended = compiling.thread.join();
        debug_assert!(ended.is_ok(), "a thread that compiles catches its panics");
        if let Some(submission) = compiling.submission {
            self.answer(submission, &made);
        }
        self.kept.push_front((compiling.grammar, made));
        self.kept.truncate(KEPT);
    }

    fn answer(&self, submission: Box<Submission>, made: &Made) {
        match made {
            Ok((matcher, mask)) => {
                let choices = submission.request.choices as usize;
                let compiled = Compiled {
                    matchers: vec![matcher.clone(); choices],
                    mask: mask.clone(),
                };
                let mut submission = submission;
                submission.compiled = Some(compiled);
                self.shared.hand_to_core(submission);
            }
            Err(refusal) => self.refuse(&submission, refusal),
        }
    }

    fn refuse(&self, submission: &Submission, refusal: &Refusal) {
        let field = wanted::field(&submission.open.params, refusal.function);
        let mut problem = Problem::new(refusal.kind, format!("{field}: {}", refusal.message))
            .with("param", field);
        if refusal.kind == FailureKind::GrammarsBusy {
            // Nobody can tell when those threads end, but one of them took so long already.
            problem = problem.with("retry_after_s", COMPILE_LIMIT.as_secs());
        }
        self.shared.fail_prompt(&submission.open, problem);
    }

    fn give_up_late_ones(&mut self) {
        let now = Instant::now();
        let mut late = Vec::new();
        for compiling in &mut self.compiling {
            if compiling.until <= now {
                late.extend(compiling.submission.take());
            }
        }
        let refusal = Refusal::new(
            FailureKind::InvalidGrammar,
            format!(
                "the grammar takes more than {} seconds to compile: make it simpler",
                COMPILE_LIMIT.as_secs()
            ),
        );
        for submission in late {
            self.refuse(&submission, &refusal);
        }
    }

    /// Fails what waits, and waits for the threads that were not given up: their work is bounded.
    fn close(self) {
        let closed = Problem::new(FailureKind::EngineClosed, "the engine was closed");
        for submission in &self.waiting {
            self.shared.fail_prompt(&submission.open, closed.clone());
        }
        for compiling in self.compiling {
            if let Some(submission) = compiling.submission {
                self.shared.fail_prompt(&submission.open, closed.clone());
                let ended = compiling.thread.join();
                debug_assert!(ended.is_ok(), "a thread that compiles catches its panics");
            }
        }
    }
}

fn is_late(submission: &Submission) -> bool {
    let request = &submission.request;
    let moments = [request.deadline, request.first_token_deadline];
    let now = now_ns();
    moments.into_iter().flatten().any(|moment| moment <= now)
}

/// A matcher, and the mask that it begins with.
fn make(compiler: &GrammarCompiler, grammar: &Grammar) -> Made {
    let refused = |error: TextError| Refusal {
        kind: FailureKind::InvalidGrammar,
        message: error.to_string(),
        function: match error {
            TextError::InvalidFunction { index, .. } => Some(index),
            _ => None,
        },
    };
    let mut matcher = compiler.compile(grammar).map_err(refused)?;
    let mut mask = Vec::new();
    matcher.mask(&[], &mut mask).map_err(refused)?;
    Ok((matcher, mask))
}
