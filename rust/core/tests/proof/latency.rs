//! The latency model, and what a target makes of it.

use diptych_core::latency::{Coefficients, LatencyModel, StepKind, Work};
use diptych_core::{Core, CoreConfig, Error, Request};

use crate::clocked::{CPU, Clocked, GPU, MILLISECOND, Random};

/// A step as a server has them: prefill, decode, or both, of random sizes.
fn random_work(random: &mut Random, kind: StepKind) -> Work {
    let mut work = Work::default();
    if kind != StepKind::Prefill {
        for _ in 0..=random.below(30) {
            work.add_decode(20 + random.below(3_000) as u32);
            work.logit_rows += 1;
        }
    }
    if kind != StepKind::Decode {
        for _ in 0..=random.below(3) {
            work.add_chunk(random.below(4_000) as u32, 1 + random.below(300) as u32);
        }
        work.logit_rows += random.below(2) as u32;
    }
    work
}

/// Observes steps whose time is off by up to a tenth, every fortieth by a factor of 10.
fn train(model: &mut LatencyModel, truth: &Coefficients, random: &mut Random, steps: usize) {
    for step in 0..steps {
        let kind = StepKind::ALL[random.below(3) as usize];
        let work = random_work(random, kind);
        let noise = 0.9 + random.below(200) as f64 / 1_000.0;
        let outlier = if step % 40 == 7 { 10.0 } else { 1.0 };
        model.observe(&work, (truth.step_ns(&work) * noise * outlier) as u64);
    }
}

/// Relative errors of predictions for fresh steps: median and 19 of 20.
fn errors(model: &LatencyModel, truth: &Coefficients, random: &mut Random) -> (f64, f64) {
    let mut errors: Vec<f64> = (0..600)
        .map(|step| {
            let work = random_work(random, StepKind::ALL[step % 3]);
            (model.predict(&work) as f64 / truth.step_ns(&work) - 1.0).abs()
        })
        .collect();
    errors.sort_by(f64::total_cmp);
    (errors[300], errors[570])
}

#[test]
fn the_model_finds_the_truth_among_outliers() {
    for truth in [CPU, GPU] {
        let mut random = Random(5);
        let mut model = LatencyModel::default();
        train(&mut model, &truth, &mut random, 400);
        let (median, most) = errors(&model, &truth, &mut random);
        assert!(median < 0.05 && most < 0.15, "median {median}, 95 % {most}");
        for kind in StepKind::ALL {
            assert!(
                (1.0..1.4).contains(&model.margin(kind)),
                "{:?}",
                model.margin(kind)
            );
        }
    }
}

#[test]
fn one_step_that_takes_ten_times_as_long_moves_predictions_by_less_than_a_twentieth() {
    let mut random = Random(9);
    let mut model = LatencyModel::default();
    train(&mut model, &CPU, &mut random, 400);
    let work = random_work(&mut random, StepKind::Mixed);
    let before = model.predict(&work);
    model.observe(&work, (CPU.step_ns(&work) * 10.0) as u64);
    let change = model.predict(&work) as f64 / before as f64;
    assert!((0.95..1.05).contains(&change), "{change}");
}

#[test]
fn predictions_follow_a_machine_that_becomes_slower() {
    let mut random = Random(3);
    let mut model = LatencyModel::default();
    train(&mut model, &CPU, &mut random, 400);
    let slower = |work: &Work| CPU.step_ns(work) * 2.5;
    let mut within = 0;
    for step in 0..400 {
        let kind = StepKind::ALL[random.below(3) as usize];
        let work = random_work(&mut random, kind);
        within += u32::from(step >= 60 && model.predict_upper(&work) as f64 >= slower(&work));
        model.observe(&work, slower(&work) as u64);
    }
    assert!(within > 300, "{within} of 340 steps kept their margin");
    let work = random_work(&mut random, StepKind::Mixed);
    let ratio = model.predict(&work) as f64 / slower(&work);
    assert!((0.85..1.15).contains(&ratio), "{ratio}");
}

#[test]
fn an_hour_of_decoding_takes_nothing_away_from_what_is_known_of_prompts() {
    let mut random = Random(11);
    let mut model = LatencyModel::default();
    train(&mut model, &CPU, &mut random, 400);
    let prompt = random_work(&mut random, StepKind::Prefill);
    for step in 0..100_000_u32 {
        let mut work = Work::default();
        for _ in 0..4 {
            work.add_decode(100 + step % 4_000);
            work.logit_rows += 1;
        }
        let noise = 0.95 + random.below(100) as f64 / 1_000.0;
        model.observe(&work, (CPU.step_ns(&work) * noise) as u64);
    }
    let ratio = |model: &LatencyModel| model.predict(&prompt) as f64 / CPU.step_ns(&prompt);
    assert!((0.9..1.1).contains(&ratio(&model)), "{}", ratio(&model));
    model.observe(&prompt, (CPU.step_ns(&prompt) * 10.0) as u64);
    assert!(ratio(&model) < 2.0, "{}", ratio(&model));
    model.observe(&prompt, CPU.step_ns(&prompt) as u64);
    assert!(ratio(&model) < 1.3, "{}", ratio(&model));
}

#[test]
fn a_few_steps_give_a_useful_model_and_none_gives_a_sane_one() {
    let mut model = LatencyModel::default();
    let mut work = Work::default();
    work.add_chunk(0, 512);
    assert!((10 * MILLISECOND..1_000 * MILLISECOND).contains(&model.predict(&work)));
    for truth in [CPU, GPU] {
        let mut model = model.clone();
        for tokens in [30, 512, 200] {
            let mut work = Work::default();
            work.add_chunk(0, tokens);
            work.logit_rows = 1;
            model.observe(&work, truth.step_ns(&work) as u64);
        }
        let ratio = model.predict(&work) as f64 / truth.step_ns(&work);
        assert!((0.6..1.6).contains(&ratio), "{ratio}");
    }
    model.observe(&Work::default(), 5);
    model.observe(&work, 0);
    assert_eq!(StepKind::ALL.map(|kind| model.observations(kind)), [0; 3]);
}

#[test]
fn equal_observations_give_equal_bits() {
    let trained = || {
        let mut random = Random(21);
        let mut model = LatencyModel::default();
        train(&mut model, &GPU, &mut random, 3_000);
        model
    };
    let (one, other) = (format!("{:?}", trained()), format!("{:?}", trained()));
    assert_eq!(one, other);
}

fn config(target_ms: Option<u64>) -> CoreConfig {
    CoreConfig {
        num_blocks: 1_200,
        max_running: 32,
        target_itl_ns: target_ms.map(|target| target * MILLISECOND),
        vocabulary: 1_000,
        ..CoreConfig::default()
    }
}

/// Four streams decode, then a prompt of 4,000 tokens comes: the worst gap of the four from then on
/// and the prompt's TTFT, in milliseconds.
fn long_prompt(target_ms: Option<u64>, outlier_every: u64) -> (f64, f64) {
    let mut engine = Clocked::new(config(target_ms), CPU);
    let streams: Vec<u64> = (0..4).map(|_| engine.submit(64, 2_000, None)).collect();
    engine.steps(60);
    engine.outlier_every = outlier_every;
    let arrival = engine.now;
    let long = engine.submit(4_000, 4, None);
    engine.until_first_token(long);
    engine.steps(3);
    let gaps = streams
        .iter()
        .map(|stream| engine.streams[stream].worst_gap(arrival));
    let worst = gaps.max().unwrap_or(0);
    let ttft = engine.streams[&long].ttft();
    (worst as f64 / 1e6, ttft as f64 / 1e6)
}

#[test]
fn a_target_bounds_the_gaps_of_streams_and_costs_the_prompt_less_than_double() {
    let (free_gap, free_ttft) = long_prompt(None, 0);
    let (gap, ttft) = long_prompt(Some(50), 0);
    assert!(free_gap > 300.0, "without a target {free_gap} ms");
    assert!(gap <= 1.5 * 50.0, "worst gap {gap} ms");
    assert!(
        ttft <= 2.0 * free_ttft,
        "{ttft} ms, {free_ttft} without a target"
    );
}

#[test]
fn steps_hit_by_the_system_do_not_close_the_budget() {
    let (_, free_ttft) = long_prompt(None, 0);
    let (_, ttft) = long_prompt(Some(50), 25);
    assert!(
        ttft <= 4.0 * free_ttft,
        "{ttft} ms, {free_ttft} without a target"
    );
}

/// Prefill tokens of the last steps.
fn prefill_tokens(engine: &Clocked, steps: usize) -> Vec<u32> {
    let plans = engine.plans.iter().rev().take(steps);
    plans.map(|plan| Work::of(plan).prefill_tokens).collect()
}

#[test]
fn a_target_that_decoding_misses_leaves_prompts_a_tile_in_every_step() {
    let mut engine = Clocked::new(config(Some(2)), CPU);
    engine.submit(10, 3_000, None);
    engine.steps(30);
    let prompt = engine.submit(320, 2, None);
    let steps = engine.until_first_token(prompt);
    assert_eq!(steps, 20);
    assert!(
        prefill_tokens(&engine, 20)
            .iter()
            .all(|&tokens| tokens == 16)
    );
}

#[test]
fn a_target_with_no_room_for_a_tile_leaves_prompts_a_tile_in_every_fifth_step() {
    // Decoding takes 10 ms with its margin, a tile of 16 tokens 10 more.
    let mut engine = Clocked::new(config(Some(14)), CPU);
    engine.submit(10, 3_000, None);
    engine.steps(400);
    let prompt = engine.submit(160, 2, None);
    let steps = engine.until_first_token(prompt);
    assert!((40..=60).contains(&steps), "{steps} steps for ten tiles");
    assert!(
        prefill_tokens(&engine, steps)
            .iter()
            .all(|&tokens| tokens <= 16)
    );
}

#[test]
fn the_strictest_running_row_decides_and_a_request_may_ask_for_its_own() {
    let gap = |engine_ms, own_ms: [Option<u64>; 2]| {
        let mut engine = Clocked::new(config(engine_ms), CPU);
        let own = own_ms.map(|own| own.map(|own| own * MILLISECOND));
        let streams = own.map(|own| engine.submit(64, 2_000, own));
        engine.steps(60);
        let arrival = engine.now;
        let long = engine.submit(3_000, 2, Some(1));
        engine.until_first_token(long);
        let worst = streams.map(|stream| engine.streams[&stream].worst_gap(arrival));
        worst.into_iter().max().unwrap_or(0) / MILLISECOND
    };
    assert!(gap(None, [None, None]) > 300);
    assert!((40..75).contains(&gap(Some(50), [None, None])));
    assert!((24..45).contains(&gap(Some(50), [None, Some(30)])));
    assert!((24..45).contains(&gap(None, [Some(200), Some(30)])));
    assert!((90..150).contains(&gap(Some(50), [Some(100), Some(100)])));
}

#[test]
fn a_giant_prompt_does_not_close_the_door_for_a_short_one() {
    for target in [None, Some(50), Some(14), Some(2)] {
        let mut engine = Clocked::new(config(target), CPU);
        engine.submit(10, 1_500, None);
        engine.steps(200);
        let giant = engine.submit(8_000, 2, None);
        engine.steps(3);
        let second = engine.submit(6_000, 2, None);
        engine.steps(2);
        let short = engine.submit(48, 2, None);
        let steps = engine.until_first_token(short);
        let bound = if target == Some(14) { 400 } else { 80 };
        assert!(steps <= bound, "target {target:?}: {steps} steps");
        for waiting in [giant, second] {
            assert!(
                engine.streams[&waiting].tokens.is_empty(),
                "target {target:?}"
            );
        }
    }
}

#[test]
fn without_a_target_times_change_no_plan() {
    let plans = |truth, tells, outlier_every| {
        let mut engine = Clocked::new(config(None), truth);
        engine.tells = tells;
        engine.outlier_every = outlier_every;
        for length in [700, 20, 3, 900, 40] {
            engine.submit(length, 30, None);
            engine.steps(2);
        }
        while engine.step() {}
        engine.plans
    };
    let first = plans(CPU, true, 3);
    assert_eq!(first, plans(GPU, true, 0));
    assert_eq!(first, plans(CPU, false, 0));
}

#[test]
fn equal_times_give_equal_plans_under_a_target() {
    let plans = || {
        let mut engine = Clocked::new(config(Some(30)), CPU);
        engine.outlier_every = 11;
        for length in [700, 20, 3, 900, 40, 2_000] {
            engine.submit(length, 60, None);
            engine.steps(7);
        }
        while engine.step() {}
        engine.plans
    };
    assert_eq!(plans(), plans());
}

#[test]
fn the_achieved_gaps_stand_beside_the_target() {
    let mut engine = Clocked::new(config(Some(50)), CPU);
    for _ in 0..4 {
        engine.submit(64, 400, None);
    }
    engine.steps(60);
    let long = engine.submit(4_000, 4, None);
    engine.until_first_token(long);
    while engine.step() {}
    let mut gaps: Vec<u64> = engine
        .streams
        .values()
        .flat_map(|stream| stream.tokens.windows(2).map(|pair| pair[1] - pair[0]))
        .collect();
    gaps.sort_unstable();
    let stats = engine.core.stats();
    let close = |shown: u64, place: usize| {
        let real = gaps[gaps.len() * place / 1_000] as f64;
        (0.9..1.1).contains(&(shown as f64 / real))
    };
    assert!(close(stats.itl_p50_ns, 500), "{stats:?}");
    assert!(close(stats.itl_p99_ns, 990), "{stats:?}");
    assert_eq!(stats.paced_tokens, gaps.len() as u64);
    assert_eq!(
        stats.late_tokens, 0,
        "ahead of their deadlines all the time"
    );
    assert!(stats.itl_p99_ns <= 65 * MILLISECOND);
}

#[test]
fn a_lost_step_teaches_nothing() {
    let mut engine = Clocked::new(config(Some(50)), CPU);
    engine.submit(64, 400, None);
    engine.steps(5);
    let known = format!("{:?}", engine.core.latency());
    engine.core.plan(engine.now).expect("a step");
    engine
        .core
        .worker_lost(1, false, engine.now + 60_000 * MILLISECOND)
        .expect("the present epoch");
    assert_eq!(format!("{:?}", engine.core.latency()), known);
}

#[test]
fn targets_of_zero_are_refused() {
    let refused = Core::new(config(Some(0)), 1).map(|_| ());
    assert!(matches!(
        refused,
        Err(Error::Config {
            field: "target_itl_ns",
            ..
        })
    ));
    let mut core = Core::new(config(None), 1).expect("a usable configuration");
    let request = Request {
        prompt: vec![1],
        max_tokens: 1,
        target_itl_ns: Some(0),
        ..Request::default()
    };
    assert_eq!(core.submit(request, 0), Err(Error::NoTime));
    let no_tile = CoreConfig {
        prefill_tile: 0,
        ..config(None)
    };
    let refused = Core::new(no_tile, 1).map(|_| ());
    assert!(matches!(
        refused,
        Err(Error::Config {
            field: "prefill_tile",
            ..
        })
    ));
}
