use std::sync::Arc;

use diptych_core::scoring::ScoringRow;

use super::*;
use crate::arena::scoring::ONLY;
use crate::os::EventFd;
use crate::worker::{Step, WorkerArenas};

const CAPACITIES: Capacities = Capacities {
    copies: 2,
    tokens: 8,
    rows: 3,
    deltas: 6,
    delta_blocks: 12,
    block_copies: 3,
    sampling: 3,
    side_words: 20,
    mask_words: 16,
};

fn plan(step: u64) -> StepPlan {
    StepPlan {
        epoch: 3,
        step,
        num_decode_rows: 1,
        token_ids: vec![7, 8, 9],
        positions: vec![4, 0, 1],
        slots: vec![1 << 40, 5, 6],
        rows: vec![2, 0],
        query_starts: vec![0, 1, 3],
        sequence_lengths: vec![5, 2],
        delta_rows: vec![0],
        delta_starts: vec![0],
        delta_counts: vec![2],
        delta_blocks: vec![1, 2],
        block_copies: vec![[1, 2, 3, 4]],
        sampling: vec![SamplingRow {
            token: 2,
            row: 0,
            output_index: 0,
            choice_index: 0,
            submission: 11,
            seed: u64::MAX,
            temperature: 0.5,
            top_k: 40,
            top_p: 0.9,
            min_p: 0.1,
            presence_penalty: 1.0,
            frequency_penalty: 0.25,
            repetition_penalty: 1.5,
            logprob: false,
            candidates: 0,
            masked: false,
            penalty_offset: None,
            bias_offset: Some(4),
        }],
        scoring: Vec::new(),
        side: vec![0, 0, 0, 0, 1, 9, 0],
    }
}

/// Host and worker on the same arenas.
fn pair() -> (HostArenas, Arc<WorkerArenas>) {
    let (host, [plan, side, result]) = HostArenas::create(CAPACITIES, 50, Arc::default()).unwrap();
    let layout = Layout::new(CAPACITIES);
    let open = |fd: &OwnedFd, bytes: usize| SharedMemory::open(fd, bytes * 2).unwrap();
    let worker = WorkerArenas {
        plan: open(&plan, layout.plan_bytes),
        side: open(&side, layout.side_bytes),
        result: open(&result, layout.result_bytes),
        results: EventFd::new().unwrap(),
        layout,
    };
    (host, Arc::new(worker))
}

fn launch(host: &mut HostArenas, worker: &Arc<WorkerArenas>, launch: u64, step: u64) -> Step {
    host.write_plan(&plan(step), false, |_| None).unwrap();
    assert_eq!(worker.published(launch, step - 1), Some(step));
    Step::take(worker, 3, launch, step).unwrap()
}

fn takes_rows(host: &mut HostArenas, found: &mut Outcomes) -> bool {
    matches!(host.take_result(3, found).1, Outcome::Rows { .. })
}

#[test]
fn a_worker_whose_times_are_in_no_order_says_nothing_about_duration() {
    for (start, end) in [(0, 5), (7, 5), (7, 7)] {
        let (mut host, worker) = pair();
        let step = launch(&mut host, &worker, 0, 1);
        step.publish(&[0], &[1], None).unwrap();
        for (index, time) in [(0, start), (3, end)] {
            let word = worker.result.word(0, result_word::TIMES + index);
            word.store(time, Ordering::Relaxed);
        }
        let outcome = host.take_result(3, &mut Outcomes::default()).1;
        assert_eq!(outcome, Outcome::Rows { duration_ns: None });
    }
}

#[test]
fn every_array_arrives_as_it_was_planned() {
    let (mut host, worker) = pair();
    for (index, number) in [9, 10, 14].into_iter().enumerate() {
        assert_eq!(worker.published(index as u64, number - 1), None);
        let step = launch(&mut host, &worker, index as u64, number);
        assert_eq!((step.epoch(), step.step()), (3, number));
        assert_eq!(
            (step.num_tokens(), step.num_rows(), step.num_decode_rows()),
            (3, 2, 1)
        );
        assert_eq!(step.slice::<i64>("slots"), [1 << 40, 5, 6]);
        assert_eq!(step.slice::<i32>("query_starts"), [0, 1, 3]);
        assert_eq!(step.slice::<i32>("delta_blocks"), [1, 2]);
        assert_eq!(step.slice::<i32>("block_copies"), [1, 2, 3, 4]);
        assert_eq!(step.slice::<i64>("seed"), [-1]);
        assert_eq!(step.slice::<f32>("repetition_penalty"), [1.5]);
        assert_eq!(step.slice::<i32>("penalty_offset"), [-1]);
        assert_eq!(step.slice::<i32>("bias_offset"), [4]);
        assert_eq!(step.slice::<i32>("logprobs"), [-1]);
        assert_eq!(step.slice::<u32>("side"), plan(number).side);
        assert!(step.array("nonsense").is_none());
        let mut found = Outcomes::default();
        assert_eq!(host.take_result(3, &mut found), (number, Outcome::Pending));
        std::thread::sleep(std::time::Duration::from_millis(1));
        step.publish(&[0], &[49], None).unwrap();
        assert!(step.publish(&[0], &[49], None).is_err(), "published twice");
        let (retired, outcome) = host.take_result(3, &mut found);
        let Outcome::Rows { duration_ns } = outcome else {
            panic!("step {number}: {outcome:?}");
        };
        assert!(retired == number && duration_ns.is_some_and(|duration| duration >= 1_000_000));
        assert_eq!(found.rows, [(RowStatus::Ok, 49)]);
        assert_eq!(host.take_result(3, &mut found), (0, Outcome::Pending));
    }
}

#[test]
fn two_steps_in_flight_retire_in_order() {
    let (mut host, worker) = pair();
    let (first, second) = (
        launch(&mut host, &worker, 0, 1),
        launch(&mut host, &worker, 1, 2),
    );
    let mut found = Outcomes::default();
    second.publish(&[0], &[2], None).unwrap();
    assert_eq!(host.take_result(3, &mut found), (1, Outcome::Pending));
    first.publish(&[0], &[1], None).unwrap();
    assert!(takes_rows(&mut host, &mut found));
    assert_eq!(found.rows, [(RowStatus::Ok, 1)]);
    assert!(takes_rows(&mut host, &mut found));
    assert_eq!(found.rows, [(RowStatus::Ok, 2)]);
}

#[test]
fn nothing_is_planned_over_a_step_that_computes_prompts() {
    let (mut host, worker) = pair();
    assert!(host.may_plan_ahead());
    let step = launch(&mut host, &worker, 0, 1);
    assert!(!host.may_plan_ahead());
    step.publish(&[0], &[1], None).unwrap();
    host.take_result(3, &mut Outcomes::default());
    assert!(host.may_plan_ahead());
    let decodes = StepPlan {
        num_decode_rows: 2,
        ..plan(2)
    };
    host.write_plan(&decodes, true, |_| None).unwrap();
    assert!(host.may_plan_ahead() && host.in_flight());
}

#[test]
fn a_gap_is_what_the_worker_waited_for_a_plan() {
    let (mut host, worker) = pair();
    // (planned at once or beside another, start, end of the step), gap
    let steps = [
        ((true, 100, 150), None),
        ((true, 180, 200), Some(30)),
        ((false, 900, 950), None),
        ((true, 940, 990), None),
        ((true, 990, 995), Some(0)),
    ];
    for (index, ((at_once, start, end), gap)) in steps.into_iter().enumerate() {
        let (launch, number) = (index as u64, index as u64 + 1);
        host.write_plan(&plan(number), at_once, |_| None).unwrap();
        let step = Step::take(&worker, 3, launch, number).unwrap();
        step.publish(&[0], &[1], None).unwrap();
        let header = worker.layout.image(launch) * worker.layout.result_bytes;
        for (mark, time) in [(0, start), (3, end)] {
            let word = worker.result.word(header, result_word::TIMES + mark);
            word.store(time, Ordering::Relaxed);
        }
        host.take_result(3, &mut Outcomes::default());
        assert_eq!(host.gap_ns(), gap, "step {number}");
    }
}

#[test]
fn statuses_and_impossible_ids_are_told_apart() {
    let cases = [
        (0, 50, RowStatus::BadId),
        (0, -1, RowStatus::BadId),
        (1, 3, RowStatus::Nan),
        (2, 3, RowStatus::BadId),
    ];
    for (status, id, expected) in cases {
        let (mut host, worker) = pair();
        let step = launch(&mut host, &worker, 0, 1);
        step.publish(&[status], &[id], None).unwrap();
        let mut found = Outcomes::default();
        assert!(takes_rows(&mut host, &mut found));
        assert_eq!(found.rows[0].0, expected, "{status} {id}");
    }
}

#[test]
fn tokens_of_prompts_are_scored_as_rows_that_leave_one_id() {
    for (id, taken) in [(5, true), (6, false)] {
        let (mut host, worker) = pair();
        let mut asking = plan(1);
        asking.scoring.push(ScoringRow {
            token: 1,
            row: 0,
            submission: 11,
            position: 1,
            id: 5,
            candidates: 0,
        });
        host.write_plan(&asking, false, |_| None).unwrap();
        let step = Step::take(&worker, 3, 0, 1).unwrap();
        assert_eq!(step.slice::<i32>("sampling_tokens"), [2, 1]);
        assert_eq!(step.slice::<i32>("logprobs"), [-1, 0]);
        let offset = step.slice::<i32>("bias_offset")[1] as usize;
        let side = step.slice::<u32>("side");
        assert_eq!(side[offset..], [1, 5, ONLY.to_bits()]);
        assert_eq!(side[..offset], asking.side);
        step.publish(&[0, 0], &[7, id], Some(&[0.0, -1.5])).unwrap();
        let mut found = Outcomes::default();
        assert_eq!(takes_rows(&mut host, &mut found), taken);
        if taken {
            let drawn = Drawn {
                request: 11,
                choice: Drawn::PROMPT,
                index: 1,
            };
            assert_eq!(found.scores[0].0, drawn);
            assert_eq!(found.rows, [(RowStatus::Ok, 7)]);
        }
    }
}

#[test]
fn likeliest_ids_come_with_what_they_stand_beside() {
    for (second, taken) in [(-2.0, true), (f32::NEG_INFINITY, true), (f32::NAN, false)] {
        let (mut host, worker) = pair();
        let mut asking = plan(1);
        asking.sampling[0].logprob = true;
        asking.sampling[0].candidates = 2;
        host.write_plan(&asking, false, |_| None).unwrap();
        let step = Step::take(&worker, 3, 0, 1).unwrap();
        assert_eq!(step.slice::<i32>("logprobs"), [2]);
        let likeliest: (&[i32], &[f32]) = (&[9, 4], &[-0.25, second]);
        step.publish_all(&[0], &[7], Some(&[-3.0]), likeliest)
            .unwrap();
        let mut found = Outcomes::default();
        assert_eq!(takes_rows(&mut host, &mut found), taken, "{second}");
        assert!(found.candidates.is_empty(), "they are no beam's");
        let expected = Score {
            logprob: -3.0,
            likeliest: vec![(9, -0.25), (4, second)],
        };
        let scores: Vec<&Score> = found.scores.iter().map(|(_, score)| score).collect();
        assert_eq!(scores, if taken { vec![&expected] } else { vec![] });
    }
}

#[test]
fn log_probabilities_come_with_what_they_are_of() {
    for (logprob, taken) in [
        (-1.5, Some(-1.5)),
        (1e-7, Some(0.0)),
        (0.5, None),
        (f32::NAN, None),
    ] {
        let (mut host, worker) = pair();
        let mut asking = plan(1);
        asking.sampling[0].logprob = true;
        host.write_plan(&asking, false, |_| None).unwrap();
        let step = Step::take(&worker, 3, 0, 1).unwrap();
        assert_eq!(step.slice::<i32>("logprobs"), [0]);
        assert!(step.publish(&[0], &[7], None).is_err(), "it is asked for");
        step.publish(&[0], &[7], Some(&[logprob])).unwrap();
        let mut found = Outcomes::default();
        let (_, outcome) = host.take_result(3, &mut found);
        let rows = matches!(outcome, Outcome::Rows { .. });
        assert_eq!(rows, taken.is_some(), "{logprob}");
        let drawn = Drawn {
            request: 11,
            choice: 0,
            index: 0,
        };
        let score = |logprob| Score {
            logprob,
            likeliest: Vec::new(),
        };
        let expected: Vec<(Drawn, Score)> =
            taken.into_iter().map(|it| (drawn, score(it))).collect();
        assert_eq!(found.scores, expected);
    }
}

#[test]
fn continuations_come_with_their_log_probabilities() {
    let (mut host, worker) = pair();
    let mut asking = plan(1);
    asking.sampling[0].candidates = 3;
    host.write_plan(&asking, false, |_| None).unwrap();
    let step = Step::take(&worker, 3, 0, 1).unwrap();
    assert_eq!(step.slice::<i32>("logprobs"), [3]);
    assert!(
        step.publish(&[0], &[7], None).is_err(),
        "they are asked for"
    );
    let few = step.publish_all(&[0], &[7], None, (&[7, 8], &[-0.5, -1.5]));
    assert!(few.is_err(), "three are asked for");
    let all: (&[i32], &[f32]) = (&[7, 8, 2], &[-0.5, -1.5, -3.0]);
    step.publish_all(&[0], &[7], None, all).unwrap();
    let mut found = Outcomes::default();
    let (_, Outcome::Rows { .. }) = host.take_result(3, &mut found) else {
        panic!("not taken");
    };
    assert_eq!(found.candidates, [(7, -0.5), (8, -1.5), (2, -3.0)]);
}

#[test]
fn an_error_arrives_with_its_class_and_as_much_of_its_message_as_fits() {
    let (mut host, worker) = pair();
    let step = launch(&mut host, &worker, 0, 1);
    step.publish_error("RuntimeError", &"ü".repeat(5000))
        .unwrap();
    let (1, Outcome::Raised { class, message }) = host.take_result(3, &mut Outcomes::default())
    else {
        panic!("not raised");
    };
    assert_eq!(class, "RuntimeError");
    assert!(message.chars().all(|letter| letter == 'ü') && message.len() > 4000);
}

fn garbage(spoil: impl Fn(&WorkerArenas, &Layout), words: &str) {
    let (mut host, worker) = pair();
    let step = launch(&mut host, &worker, 0, 1);
    step.publish(&[0], &[1], None).unwrap();
    spoil(&worker, &worker.layout);
    let (_, Outcome::Garbage(why)) = host.take_result(3, &mut Outcomes::default()) else {
        panic!("taken in spite of {words}");
    };
    assert!(why.contains(words), "{why}");
}

#[test]
fn what_no_worker_writes_is_refused() {
    let set = |index: usize, value: u64| {
        move |worker: &WorkerArenas, _: &Layout| {
            let word = worker.result.word(0, index);
            word.store(value, Ordering::Relaxed);
        }
    };
    garbage(set(result_word::PUBLISHED, 99), "published step 99");
    garbage(set(result_word::EPOCH, 2), "of epoch 2");
    garbage(set(result_word::ERROR, 5), "error code 5");
    let status =
        |worker: &WorkerArenas, layout: &Layout| worker.result.write(layout.status, &[17_i32]);
    garbage(status, "status 17");
    let unsampled =
        |worker: &WorkerArenas, layout: &Layout| worker.result.write(layout.status, &[3_i32]);
    garbage(unsampled, "waits for no mask");
    let lengths = |worker: &WorkerArenas, _: &Layout| {
        for (index, value) in [(result_word::ERROR, 1), (result_word::CLASS_BYTES, 1 << 60)] {
            worker.result.word(0, index).store(value, Ordering::Relaxed);
        }
    };
    garbage(lengths, "a text of");
}

#[test]
fn a_plan_that_changes_in_flight_is_noticed() {
    let token =
        |worker: &WorkerArenas, layout: &Layout| worker.plan.write(layout.offsets[0], &[6_i32]);
    garbage(token, "changed in flight");
    let side = |worker: &WorkerArenas, _: &Layout| worker.side.write(8, &[1_u32]);
    garbage(side, "changed in flight");
}

#[test]
fn a_plan_that_does_not_fit_is_refused_before_anything_is_written() {
    let (mut host, worker) = pair();
    let large = StepPlan {
        token_ids: vec![0; 9],
        ..plan(1)
    };
    let error = host
        .write_plan(&large, false, |_| None)
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("9 Tokens") && error.contains("holds 8"),
        "{error}"
    );
    assert_eq!(worker.published(0, 0), None);
}

#[test]
fn a_header_past_the_capacities_is_refused_by_the_worker() {
    let (mut host, worker) = pair();
    host.write_plan(&plan(1), false, |_| None).unwrap();
    let rows = worker.plan.word(0, plan_word::COUNTS + 1);
    rows.store(4, Ordering::Relaxed);
    let error = Step::take(&worker, 3, 0, 1).unwrap_err().to_string();
    assert!(error.contains("4 Rows"), "{error}");
    rows.store(2, Ordering::Relaxed);
    assert!(Step::take(&worker, 4, 0, 1).is_err(), "another epoch");
}
