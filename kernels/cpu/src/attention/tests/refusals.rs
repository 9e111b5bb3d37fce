//! Plans that contradict themselves.

use super::*;

const GOOD: StepRows<'static> = StepRows {
    positions: &[5, 0, 1, 2],
    slots: &[37, 16, 17, 18],
    query_starts: &[0, 1, 4],
    sequence_lengths: &[6, 3],
    rows: &[1, 0],
    tables: &[1, 0, 2, 0],
    table_stride: 2,
    num_decode_rows: 1,
};

fn planned(rows: StepRows<'_>) -> Result<(), RowsError> {
    let shape = KvShape {
        blocks: 4,
        ..PLAIN.shape()
    };
    let mut plan = AttentionPlan::new(&shape, 6, 2).unwrap();
    let mut rope = Rope::new(&PLAIN.frequencies(), 64).unwrap();
    plan.plan(&rows, &mut rope)
}

fn refused(rows: StepRows<'_>, text: &str) {
    let error = planned(rows).unwrap_err().to_string();
    assert!(error.contains(text), "{error:?} does not say {text:?}");
}

#[test]
fn tokens_that_contradict_themselves_are_refused_with_the_value() {
    assert_eq!(planned(GOOD), Ok(()));
    let slots = &[64, 16, 17, 18];
    refused(StepRows { slots, ..GOOD }, "slots[0] of a step is 64");
    let slots = &[1, 2];
    refused(
        StepRows { slots, ..GOOD },
        "slots of a step has 2 values: 4 are needed",
    );
    let positions = &[5, 0, 2, 3];
    refused(
        StepRows { positions, ..GOOD },
        "positions[2] of a step is 2",
    );
    let positions = &[-1, 0, 1, 2];
    refused(
        StepRows { positions, ..GOOD },
        "positions[0] of a step is -1",
    );
}

#[test]
fn rows_that_contradict_their_tokens_or_the_pool_are_refused_with_the_value() {
    let sequence_lengths = &[6, 4];
    refused(
        StepRows {
            sequence_lengths,
            ..GOOD
        },
        "sequence_lengths[1] of a step is 4",
    );
    let query_starts = &[0, 2, 4];
    refused(
        StepRows {
            query_starts,
            ..GOOD
        },
        "query_starts[1] of a step is 2",
    );
    let query_starts = &[0, 1, 5];
    refused(
        StepRows {
            query_starts,
            ..GOOD
        },
        "query_starts[2] of a step is 5",
    );
    refused(
        StepRows {
            rows: &[2, 0],
            ..GOOD
        },
        "rows[0] of a step is 2",
    );
    let tables = &[1, 0, 4, 0];
    refused(StepRows { tables, ..GOOD }, "tables[2] of a step is 4");
    refused(
        StepRows {
            num_decode_rows: 3,
            ..GOOD
        },
        "num_decode_rows[0] of a step is 3",
    );
}
