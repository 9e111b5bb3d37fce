//! From logits to ids, and back into the next step.

use super::*;

/// Greedy and random rows, penalties and biases: with and without the fused argmax, for any number of threads.
fn outputs(settings: Settings) -> (Vec<i32>, Vec<i32>) {
    let mut driver = Driver::new(&model(48, Format::F32, false, true), settings);
    let ids = prompt(1, 40);
    let mut plan = driver.plan(&[(1, &ids[..20]), (4, &ids[3..23])], 0);
    for row in 0..40 {
        if row % 3 == 0 {
            plan.sampling.temperature[row] = 0.8;
        }
        if row % 7 == 1 {
            plan.sampling.penalty_offset[row] = 0;
            plan.sampling.repetition[row] = 1.7;
        }
        if row % 5 == 2 {
            plan.sampling.bias_offset[row] = 4;
        }
    }
    plan.sampling.side = vec![1, 1, 11, 12, 1, 13, 3.0_f32.to_bits()];
    let output = driver.engine.run(&plan.input(), &|| ()).unwrap();
    (output.status, output.ids)
}

#[test]
fn sampled_ids_depend_on_no_fusion_and_no_thread() {
    let wanted = outputs(settings());
    assert!(wanted.0.iter().all(|status| *status == 0));
    assert!(wanted.1.iter().all(|id| (0..90).contains(id)));
    for (threads, fusions) in [(1, Fusions::NONE), (3, Fusions::ALL), (2, Fusions::NONE)] {
        let found = outputs(Settings {
            threads,
            fusions,
            ..settings()
        });
        assert_eq!(found, wanted);
    }
}

#[test]
fn more_sampled_rows_than_logits_are_kept_at_once() {
    let settings = Settings {
        max_tokens: 200,
        max_model_len: 256,
        max_running: 2,
        threads: 2,
        ..settings()
    };
    let model = model(48, Format::F32, false, true);
    let ids = prompt(1, 150);
    let mut driver = Driver::new(&model, settings);
    let logits = driver.step(&[(1, &ids)], 0);
    let mut driver = Driver::new(&model, settings);
    let plan = driver.plan(&[(1, &ids)], 0);
    let found = driver.engine.run(&plan.input(), &|| ()).unwrap();
    for (row, id) in logits.iter().zip(&found.ids) {
        let best = row.iter().copied().fold(f32::MIN, f32::max);
        assert_eq!(
            row.iter()
                .position(|value| value.to_bits() == best.to_bits()),
            Some(*id as usize)
        );
    }
}

#[test]
fn a_placeholder_is_the_first_id_that_its_row_sampled_in_the_last_step() {
    let model = model(48, Format::Bf16, false, true);
    let ids = prompt(1, 12);
    let run = |placeholder: bool| {
        let mut driver = Driver::new(&model, settings());
        let mut plan = driver.plan(&[(3, &ids)], 0);
        let mut found = Vec::new();
        for _ in 0..10 {
            let output = driver.engine.run(&plan.input(), &|| ()).unwrap();
            let id = output.ids[0];
            found.push(id);
            plan = driver.plan(&[(3, &[if placeholder { -1 } else { id }])], 1);
        }
        driver.engine.reset();
        found
    };
    assert_eq!(run(true), run(false));
}

#[test]
fn a_placeholder_without_an_id_is_refused() {
    let model = model(48, Format::F32, false, true);
    let mut driver = Driver::new(&model, settings());
    let plan = driver.plan(&[(3, &[1, 2, 3])], 0);
    driver.engine.run(&plan.input(), &|| ()).unwrap();
    let plan = driver.plan(&[(3, &[-1])], 1);
    driver.engine.run(&plan.input(), &|| ()).unwrap();
    // The id that is sampled now is not lost: a refused step computes nothing.
    let mut twice = driver.plan(&[(2, &[-1])], 1);
    let error = driver.engine.run(&twice.input(), &|| ()).unwrap_err();
    assert!(error.to_string().contains("state row 2"), "{error}");
    twice = driver.plan(&[(3, &[-1])], 1);
    driver.engine.run(&twice.input(), &|| ()).unwrap();
}

#[test]
fn progress_is_told_after_every_layer() {
    use std::sync::atomic::{AtomicUsize, Ordering};
    let mut driver = Driver::new(&model(48, Format::F32, false, true), settings());
    let plan = driver.plan(&[(0, &[1, 2, 3])], 0);
    let layers = AtomicUsize::new(0);
    let count = || {
        layers.fetch_add(1, Ordering::Relaxed);
    };
    driver.engine.run(&plan.input(), &count).unwrap();
    assert_eq!(layers.into_inner(), 2);
}

/// Of the logits that the engine itself gives, for any number of threads and beside rows that ask for none.
#[test]
fn log_probabilities_are_those_of_the_logits() {
    let ids = prompt(1, 20);
    let model = model(48, Format::F32, false, true);
    let logits = Driver::new(&model, settings()).step(&[(1, &ids)], 0);
    for threads in [1, 3] {
        let settings = Settings {
            threads,
            ..settings()
        };
        let mut driver = Driver::new(&model, settings);
        let mut plan = driver.plan(&[(1, &ids)], 0);
        for row in 0..20 {
            plan.sampling.logprobs[row] = if row % 3 == 0 { -1 } else { 0 };
            plan.sampling.temperature[row] = if row % 2 == 0 { 0.0 } else { 1.3 };
        }
        let output = driver.engine.run(&plan.input(), &|| ()).unwrap();
        for (row, logits) in logits.iter().enumerate() {
            let sum: f64 = logits.iter().map(|logit| f64::from(*logit).exp()).sum();
            let wanted = f64::from(logits[output.ids[row] as usize]) - sum.ln();
            let found = f64::from(output.logprobs[row]);
            if row % 3 == 0 {
                assert!(found == 0.0);
            } else {
                assert!((found - wanted).abs() < 1e-5, "row {row}: {found} {wanted}");
            }
        }
    }
}

/// Of the logits that the engine itself gives, beside rows that ask for other numbers of them or for none.
#[test]
fn likeliest_ids_are_those_of_the_logits() {
    let ids = prompt(1, 20);
    let model = model(48, Format::F32, false, true);
    let logits = Driver::new(&model, settings()).step(&[(1, &ids)], 0);
    let mut driver = Driver::new(&model, settings());
    let mut plan = driver.plan(&[(1, &ids)], 0);
    for row in 0..20 {
        plan.sampling.logprobs[row] = [-1, 0, 1, 8][row % 4];
    }
    let output = driver.engine.run(&plan.input(), &|| ()).unwrap();
    let mut start = 0;
    for (row, logits) in logits.iter().enumerate() {
        let sum: f64 = logits.iter().map(|logit| f64::from(*logit).exp()).sum();
        let mut order: Vec<usize> = (0..logits.len()).collect();
        order.sort_by(|left, right| logits[*right].total_cmp(&logits[*left]));
        let count = [0, 0, 1, 8][row % 4];
        for (place, &id) in (start..start + count).zip(&order) {
            let wanted = f64::from(logits[id]) - sum.ln();
            let found = f64::from(output.candidate_logprobs[place]);
            assert_eq!(output.candidate_ids[place], id as i32, "row {row}");
            assert!((found - wanted).abs() < 1e-5, "row {row}: {found} {wanted}");
        }
        start += count;
    }
    assert_eq!(output.candidate_ids.len(), start);
}
