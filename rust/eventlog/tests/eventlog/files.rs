//! Files as disks and dying processes leave them.

use diptych_eventlog::{Ending, LogReader, LogWriter, ReadError, Record, ReplayError, replay};

use crate::driver::{Driver, config, request};

fn records() -> Vec<Record> {
    let mut driver = Driver::new(&config());
    driver.submit(request(1, 9, 3));
    driver.submit(request(2, 5, 3));
    driver.finish();
    driver.records
}

fn written(records: &[Record], limit: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut writer = LogWriter::new(&mut bytes, limit).expect("memory takes it");
    for record in records {
        writer.write(record).expect("memory takes it");
    }
    bytes
}

fn whole() -> Vec<u8> {
    written(&records(), u64::MAX)
}

fn read(bytes: &[u8]) -> Result<(Vec<Record>, Ending), ReadError> {
    let mut reader = LogReader::new(bytes)?;
    let mut records = Vec::new();
    while let Some(record) = reader.next_record()? {
        records.push(record);
    }
    Ok((records, reader.ending().expect("it has ended").clone()))
}

#[test]
fn what_was_written_is_read() {
    let (read, ending) = read(&whole()).expect("a whole log");
    assert_eq!(read, records());
    assert_eq!(ending, Ending::Whole);
    let report = replay(whole().as_slice()).expect("a whole log");
    assert_eq!((report.difference, report.cores), (None, 1));
    assert!(report.plans > 2);
}

/// Whatever byte a log is cut at, the records before are read and replayed.
#[test]
fn a_torn_end_is_tolerated() {
    let whole = whole();
    let mut torn = 0;
    for length in 16..whole.len() {
        let (records, ending) = read(&whole[..length]).expect("torn, not damaged");
        assert_eq!(records, self::records()[..records.len()]);
        torn += u32::from(ending != Ending::Whole);
        let report = replay(&whole[..length]).expect("torn, not damaged");
        assert_eq!(report.difference, None);
    }
    assert!(torn > 100);
    assert!(matches!(read(&whole[..15]), Err(ReadError::NoLog)));
}

/// A changed byte is either found by the checksum or within the last record, which is torn then.
#[test]
fn a_changed_byte_is_found() {
    let whole = whole();
    for position in 0..whole.len() {
        let mut bytes = whole.clone();
        bytes[position] ^= 0x10;
        match read(&bytes) {
            Err(_) => {}
            Ok((read, ending)) => {
                assert!(matches!(ending, Ending::Torn { .. }), "byte {position}");
                assert_eq!(read, records()[..read.len()]);
            }
        }
    }
}

#[test]
fn a_full_log_says_so_and_replays_up_to_there() {
    let records = records();
    for limit in [600, 1_400, 1_900] {
        let bytes = written(&records, limit);
        assert!(bytes.len() as u64 <= limit, "{} of {limit}", bytes.len());
        let (read, ending) = read(&bytes).expect("a whole log");
        assert!(read.len() < records.len());
        assert!(
            matches!(&ending, Ending::Said(why) if why.contains("limit")),
            "{ending:?}"
        );
        assert_eq!(read, records[..read.len()]);
    }
}

#[test]
fn a_replay_names_step_and_field_of_the_first_difference() {
    let mut records = records();
    let mut plans = records.iter_mut().filter_map(|record| match record {
        Record::Planned { plan } => plan.as_mut(),
        _ => None,
    });
    let changed = plans.nth(1).expect("a second plan");
    changed.hashes[3] ^= 1;
    let step = changed.step;
    let report = replay(written(&records, u64::MAX).as_slice()).expect("a whole log");
    let difference = report.difference.expect("a hash was changed");
    assert_eq!(
        (difference.step, difference.field.as_str()),
        (step, "positions")
    );
    assert_eq!(report.ending, None);
}

/// A budget that differs shows at the first step that it changes.
#[test]
fn another_configuration_gives_another_plan() {
    let mut records = records();
    let Record::Core { config, .. } = &mut records[0] else {
        panic!("the first record builds the core");
    };
    config.max_batched_tokens = 4;
    let report = replay(written(&records, u64::MAX).as_slice()).expect("a whole log");
    let difference = report.difference.expect("the step is smaller");
    assert_eq!(
        (difference.step, difference.field.as_str()),
        (1, "token_ids")
    );
    assert!(difference.logged.contains("14 tokens"), "{difference:?}");
}

#[test]
fn other_files_are_refused() {
    assert!(matches!(
        read(b"GGUF and so on and so forth"),
        Err(ReadError::NoLog)
    ));
    let mut bytes = whole();
    bytes[12] = 9;
    assert!(matches!(read(&bytes), Err(ReadError::Version(9))));
    let headless = written(&records()[1..], u64::MAX);
    assert!(matches!(
        replay(headless.as_slice()),
        Err(ReplayError::NoCore { record: 0 })
    ));
}
