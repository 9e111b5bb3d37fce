//! Plans that contradict themselves or the settings.

use super::*;

fn refused(change: impl FnOnce(&mut Plan)) -> String {
    let mut driver = Driver::new(&model(48, Format::F32, false, true), settings());
    let mut plan = driver.plan(&[(1, &[4]), (3, &[5, 6, 7])], 1);
    assert!(driver.engine.run(&plan.input(), &|| ()).is_ok());
    change(&mut plan);
    driver
        .engine
        .run(&plan.input(), &|| ())
        .unwrap_err()
        .to_string()
}

type Change = fn(&mut Plan);
type Setting = fn(&mut Settings);

#[test]
fn bad_block_copies_are_refused_with_what_is_wrong() {
    let cases: [(&str, &[i32]); 6] = [
        ("block_copies has 3", &[0, 1, 2]),
        ("block copy [1, 0, 2, 0]", &[1, 0, 2, 0]),
        ("block copy [4, 4, 2, 0]", &[4, 4, 2, 0]),
        ("block copy [64, 1, 2, 0]", &[64, 1, 2, 0]),
        ("block copy [1, 2, 17, 0]", &[1, 2, 17, 0]),
        ("block copy [1, 2, 3, 1]", &[1, 2, 3, 1]),
    ];
    for (part, copies) in cases {
        let message = refused(|plan| plan.block_copies = copies.to_vec());
        assert!(message.contains(part), "{message} (wanted: {part})");
    }
}

#[test]
fn bad_plans_are_refused_with_what_is_wrong() {
    let cases: [(&str, Change); 32] = [
        ("0 tokens", |plan| plan.token_ids.clear()),
        ("65 tokens", |plan| plan.token_ids = vec![1; 65]),
        ("token_ids from 4 to 90", |plan| plan.token_ids[3] = 90),
        ("token_ids from -2", |plan| plan.token_ids[0] = -2),
        ("placeholder", |plan| plan.token_ids[2] = -1),
        ("positions has 3", |plan| plan.positions.truncate(3)),
        ("positions from 0 to 64", |plan| plan.positions[1] = 64),
        ("positions: token 2", |plan| plan.positions[2] = 5),
        ("slots has 5", |plan| plan.slots.push(0)),
        ("slots from", |plan| plan.slots[0] = 64 * 16),
        ("slots from -1", |plan| plan.slots[0] = -1),
        ("rows from 1 to 8", |plan| plan.rows[1] = 8),
        ("state row 3 stands twice", |plan| plan.rows[0] = 3),
        ("query_starts has 2", |plan| plan.query_starts.truncate(2)),
        ("query_starts go from 1", |plan| plan.query_starts[0] = 1),
        ("query_starts 1 and 1 of row 1", |plan| {
            plan.query_starts = vec![0, 1, 1, 4];
            plan.rows.push(6);
            plan.sequence_lengths.push(3);
        }),
        ("query_starts 0 and 9", |plan| plan.query_starts[1] = 9),
        ("sequence_lengths has 1", |plan| {
            plan.sequence_lengths.truncate(1);
        }),
        ("sequence_lengths from 1 to 65", |plan| {
            plan.sequence_lengths[1] = 65;
        }),
        ("brings 3 tokens", |plan| plan.sequence_lengths[1] = 2),
        ("3 decode rows", |plan| plan.num_decode_rows = 3),
        ("decode row 1", |plan| plan.num_decode_rows = 2),
        ("delta_rows from", |plan| plan.delta_rows[0] = -1),
        ("delta_starts + delta_counts", |plan| {
            plan.delta_starts[0] = 4;
        }),
        ("announce 3 blocks and bring 2", |plan| {
            plan.delta_counts[0] = 2;
        }),
        ("delta_blocks from", |plan| plan.delta_blocks[0] = 64),
        ("sampling_tokens from", |plan| plan.sampling.tokens[0] = 4),
        ("sampling_rows from", |plan| plan.sampling.rows[0] = 8),
        ("logprobs from -1 to 1048576", |plan| {
            plan.sampling.logprobs[1] = 1 << 20;
        }),
        ("temperature has 3", |plan| {
            plan.sampling.temperature.truncate(3);
        }),
        ("side data", |plan| plan.sampling.penalty_offset[0] = 3),
        ("logit bias", |plan| {
            plan.sampling.bias_offset[0] = 0;
            plan.sampling.side = vec![1, 90, 0];
        }),
    ];
    for (part, change) in cases {
        let message = refused(change);
        assert!(message.contains(part), "{message} (wanted: {part})");
    }
}

#[test]
fn settings_and_weights_that_do_not_fit_are_refused() {
    let model = model(48, Format::F32, false, true);
    let cases: [(&str, Setting); 5] = [
        ("block_size is 3", |settings| settings.block_size = 3),
        ("vocabulary is 98", |settings| settings.vocabulary = 98),
        ("max_tokens is 0", |settings| settings.max_tokens = 0),
        ("num_blocks is 0", |settings| settings.num_blocks = 0),
        ("0 threads", |settings| settings.threads = 0),
    ];
    for (part, change) in cases {
        let mut settings = settings();
        change(&mut settings);
        let error = Engine::new(model.clone(), settings)
            .err()
            .unwrap()
            .to_string();
        assert!(error.contains(part), "{error}");
    }
    let mut shape = shape(48);
    shape.intermediate = 72;
    let error = shape.check().unwrap_err().to_string();
    assert!(error.contains("intermediate is 72"), "{error}");
}

#[test]
fn a_row_is_drawn_under_its_mask_or_not_at_all() {
    let mut driver = Driver::new(&model(48, Format::F32, false, true), settings());
    let mut plan = driver.plan(&[(1, &[4]), (3, &[5, 6, 7])], 1);
    let free = driver.engine.run(&plan.input(), &|| ()).unwrap();
    let words = 1 + driver.engine.settings().vocabulary.div_ceil(32);
    let chosen = (free.ids[1] + 1) % 32;
    let mut masks = vec![0; plan.sampling.rows.len() * words];
    masks[words + 1] = 1 << chosen;
    plan.sampling.masked[1] = 1;
    let masks = |ready: u32| {
        let mut masks = masks.clone();
        masks[words] = ready;
        Arc::new(masks.into_iter().map(AtomicU32::new).collect::<Vec<_>>())
    };
    plan.sampling.masks = masks(0);
    let late = driver.engine.run(&plan.input(), &|| ()).unwrap();
    assert_eq!((late.status[0], late.ids[0]), (0, free.ids[0]));
    assert_eq!(late.status[1], 3);
    plan.sampling.masks = masks(1);
    let drawn = driver.engine.run(&plan.input(), &|| ()).unwrap();
    assert_eq!((drawn.status[0], drawn.ids[0]), (0, free.ids[0]));
    assert_eq!((drawn.status[1], drawn.ids[1]), (0, chosen));
    plan.sampling.masks = Arc::new(vec![AtomicU32::new(0), AtomicU32::new(0)]);
    let error = driver.engine.run(&plan.input(), &|| ()).unwrap_err();
    assert!(error.to_string().contains("masks has 2 words"), "{error}");
}
