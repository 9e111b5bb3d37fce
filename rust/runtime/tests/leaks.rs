//! A closed engine gives every thread, descriptor and mapping back. Alone in its process, so that nothing else opens any.

mod common;

use std::time::Duration;

use common::{Rig, expected};
use diptych_runtime::Prompt;
use serde_json::json;

/// Threads, descriptors, and mappings of our memfds.
fn held() -> (usize, usize, usize) {
    let count = |folder: &str| std::fs::read_dir(folder).unwrap().count();
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let ours = maps
        .lines()
        .filter(|line| line.contains("diptych-"))
        .filter(|line| line.contains("memfd"))
        .count();
    (count("/proc/self/task"), count("/proc/self/fd"), ours)
}

fn use_engine(kind: &str) {
    let mut rig = Rig::new(kind, json!({"faults": {"die_step": 5}}), json!({}));
    let requests: Vec<u64> = (0..16).map(|index| rig.ids(&[index], 30)).collect();
    let aborted = rig.submit(Prompt::Text("x".to_owned()), json!({"max_tokens": 200}));
    rig.engine.abort(aborted).unwrap();
    rig.finish(&requests);
    assert_eq!(rig.answers[&requests[0]].ids, expected(&[0], 30));
    let open = rig.ids(&[1, 2, 3], 200);
    assert!(open > 0);
    rig.engine.close(Duration::from_secs(5));
}

#[test]
fn closing_leaves_no_thread_descriptor_or_mapping() {
    for kind in ["scripted_thread", "scripted"] {
        use_engine(kind);
        let before = held();
        assert_eq!(before.2, 0);
        use_engine(kind);
        use_engine(kind);
        assert_eq!(held(), before, "{kind}");
    }
}
