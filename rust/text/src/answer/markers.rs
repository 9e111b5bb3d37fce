//! Marks such as `<tool_call>` in text that comes in pieces.

use std::cmp::Reverse;

/// Looks for the first of a few markers. What may still become one is held back, and nothing else.
#[derive(Clone, Debug)]
pub(super) struct MarkerSearch {
    markers: &'static [&'static str],
    held: String,
}

impl MarkerSearch {
    pub(super) fn new(markers: &'static [&'static str]) -> Self {
        Self {
            markers,
            held: String::new(),
        }
    }

    /// Appends to `before` what is sure to stand before any marker. `Some`: the marker that was found, and what follows it.
    pub(super) fn push(
        &mut self,
        text: &str,
        before: &mut String,
    ) -> Option<(&'static str, String)> {
        self.held.push_str(text);
        let first = self
            .markers
            .iter()
            .filter_map(|&marker| Some((self.held.find(marker)?, marker)))
            .min_by_key(|&(start, marker)| (start, Reverse(marker.len())));
        if let Some((start, marker)) = first {
            before.push_str(&self.held[..start]);
            let rest = self.held[start + marker.len()..].to_owned();
            self.held.clear();
            return Some((marker, rest));
        }
        let sure = self.held.len() - self.begun();
        before.push_str(&self.held[..sure]);
        self.held.drain(..sure);
        None
    }

    /// Appends what was held back: no marker will come of it.
    pub(super) fn flush(&mut self, out: &mut String) {
        out.push_str(&self.held);
        self.held.clear();
    }

    /// Length of the longest end of the text that a marker begins with.
    fn begun(&self) -> usize {
        self.markers
            .iter()
            .flat_map(|marker| (1..marker.len()).map(move |length| (marker, length)))
            .filter(|(marker, length)| {
                marker.is_char_boundary(*length) && self.held.ends_with(&marker[..*length])
            })
            .map(|(_, length)| length)
            .max()
            .unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_beginning_of_a_marker_is_held_back() {
        let mut search = MarkerSearch::new(&["<tool_call>", "[TOOL]"]);
        let mut before = String::new();
        assert_eq!(search.push("a < b <tool", &mut before), None);
        assert_eq!(before, "a < b ");
        assert_eq!(search.push("s> [TOO", &mut before), None);
        assert_eq!(before, "a < b <tools> ");
        assert_eq!(
            search.push("L]rest<", &mut before),
            Some(("[TOOL]", "rest<".to_owned()))
        );
        assert_eq!(before, "a < b <tools> ");
        assert_eq!(search.push("x<", &mut before), None);
        search.flush(&mut before);
        assert_eq!(before, "a < b <tools> x<");
    }
}
