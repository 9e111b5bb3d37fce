//! JSON that stays on one line to every parser.

const CONTROLS: [&[u8]; 32] = [
    br"\u0000", br"\u0001", br"\u0002", br"\u0003", br"\u0004", br"\u0005", br"\u0006", br"\u0007",
    br"\b", br"\t", br"\n", br"\u000b", br"\f", br"\r", br"\u000e", br"\u000f", br"\u0010",
    br"\u0011", br"\u0012", br"\u0013", br"\u0014", br"\u0015", br"\u0016", br"\u0017", br"\u0018",
    br"\u0019", br"\u001a", br"\u001b", br"\u001c", br"\u001d", br"\u001e", br"\u001f",
];

/// Bytes that must not stand as they are, by their number, and what stands for them.
type Replacement = Option<(usize, &'static [u8])>;

/// Appends `text` as a JSON string.
pub(super) fn push_string(out: &mut Vec<u8>, text: &str) {
    out.push(b'"');
    push_replacing(out, text.as_bytes(), in_string);
    out.push(b'"');
}

/// Appends encoded JSON. A bare line feed in it stands between tokens, where a space says the same.
pub(super) fn push_value(out: &mut Vec<u8>, json: &[u8]) {
    push_replacing(out, json, in_value);
}

pub(super) fn push_number(out: &mut Vec<u8>, number: impl Into<u64>) {
    let mut rest = number.into();
    // u64::MAX has twenty digits.
    let mut digits = [0; 20];
    let mut at = digits.len();
    while at == digits.len() || rest > 0 {
        at -= 1;
        digits[at] = b'0' + (rest % 10) as u8;
        rest /= 10;
    }
    out.extend_from_slice(&digits[at..]);
}

pub(super) fn push_numbers(out: &mut Vec<u8>, numbers: &[u32]) {
    out.push(b'[');
    for (index, &number) in numbers.iter().enumerate() {
        if index > 0 {
            out.push(b',');
        }
        push_number(out, number);
    }
    out.push(b']');
}

/// Replaces what `replacement` finds at the start of each rest of `bytes`.
fn push_replacing(out: &mut Vec<u8>, bytes: &[u8], replacement: impl Fn(&[u8]) -> Replacement) {
    let (mut copied, mut at) = (0, 0);
    while at < bytes.len() {
        match replacement(&bytes[at..]) {
            None => at += 1,
            Some((length, instead)) => {
                out.extend_from_slice(&bytes[copied..at]);
                out.extend_from_slice(instead);
                at += length;
                copied = at;
            }
        }
    }
    out.extend_from_slice(&bytes[copied..]);
}

fn in_string(rest: &[u8]) -> Replacement {
    match rest {
        [control @ ..0x20, ..] => Some((1, CONTROLS[usize::from(*control)])),
        [b'"', ..] => Some((1, br#"\""#)),
        [b'\\', ..] => Some((1, br"\\")),
        _ => line_end(rest),
    }
}

fn in_value(rest: &[u8]) -> Replacement {
    match rest {
        [b'\n' | b'\r', ..] => Some((1, b" ")),
        _ => line_end(rest),
    }
}

/// Line ends to some parsers, in UTF-8.
fn line_end(rest: &[u8]) -> Replacement {
    match rest {
        [0xC2, 0x85, ..] => Some((2, br"\u0085")),
        [0xE2, 0x80, 0xA8, ..] => Some((3, br"\u2028")),
        [0xE2, 0x80, 0xA9, ..] => Some((3, br"\u2029")),
        _ => None,
    }
}
