//! Where a JSON value ends, in text that comes a character at a time.

/// Follows one value. It knows strings and brackets, which is what the end depends on; it is no validator.
#[derive(Clone, Debug, Default)]
pub(super) struct ValueEnd {
    depth: usize,
    in_string: bool,
    escaped: bool,
    /// A number, true, false or null has begun outside of any bracket.
    scalar: bool,
}

/// What a character is to the value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    Inside,
    /// The last one of it.
    Last,
    /// It stands behind the value, which has ended.
    Behind,
    /// No JSON has such a character here.
    Invalid,
}

impl ValueEnd {
    /// Whether nothing of the value was seen yet, so that white space stands before it.
    pub(super) fn is_unbegun(&self) -> bool {
        self.depth == 0 && !self.in_string && !self.scalar
    }

    pub(super) fn push(&mut self, character: char) -> Step {
        if self.in_string {
            return self.push_in_string(character);
        }
        match character {
            '"' if !self.scalar => {
                self.in_string = true;
                Step::Inside
            }
            '{' | '[' if !self.scalar => {
                self.depth += 1;
                Step::Inside
            }
            '}' | ']' if self.depth > 0 => {
                self.depth -= 1;
                self.inside_or_last()
            }
            ',' | ':' | ' ' | '\t' | '\n' | '\r' if self.depth > 0 => Step::Inside,
            ',' | '}' | ']' | ' ' | '\t' | '\n' | '\r' if self.scalar => Step::Behind,
            'a'..='z' | 'E' | '0'..='9' | '+' | '-' | '.' => {
                self.scalar = self.depth == 0;
                Step::Inside
            }
            _ => Step::Invalid,
        }
    }

    fn push_in_string(&mut self, character: char) -> Step {
        match character {
            _ if self.escaped => self.escaped = false,
            '\\' => self.escaped = true,
            '"' => {
                self.in_string = false;
                return self.inside_or_last();
            }
            _ => {}
        }
        Step::Inside
    }

    fn inside_or_last(&self) -> Step {
        if self.depth == 0 {
            Step::Last
        } else {
            Step::Inside
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// How many characters the value at the beginning has; `None` if a character is invalid.
    fn length(text: &str) -> Option<usize> {
        let mut end = ValueEnd::default();
        for (index, character) in text.chars().enumerate() {
            match end.push(character) {
                Step::Inside => {}
                Step::Last => return Some(index + 1),
                Step::Behind => return Some(index),
                Step::Invalid => return None,
            }
        }
        panic!("{text} does not end");
    }

    #[test]
    fn values_end_where_json_says() {
        assert_eq!(length(r#"{"a": {"b": [1, 2]}} x"#), Some(20));
        assert_eq!(length(r#"{"brace }": "\"}{"}}"#), Some(19));
        assert_eq!(length(r#""a\\"b"#), Some(5));
        assert_eq!(length("-1.5E+3,"), Some(7));
        assert_eq!(length("null}"), Some(4));
        assert_eq!(length("[]]"), Some(2));
        assert_eq!(length("{\"a\": 1</tool_call>"), None);
        assert_eq!(length("12\"x\""), None);
    }
}
