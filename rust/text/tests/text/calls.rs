//! Grammars of tool calls and of reasoning: what they let a model write is read as exactly that.

use std::sync::Arc;

use diptych_text::{
    AnswerDelta, AnswerFormats, Function, Grammar, GrammarCompiler, Matcher, Rendered, TokenTable,
    tool_format_names,
};
use proptest::prelude::*;
use serde_json::{Deserializer, Value};

use crate::common::cases;
use crate::grammar::ids;

const MARKS: [&str; 10] = [
    "<tool_call>",
    "</tool_call>",
    "[TOOL_CALLS]",
    "[CALL_ID]",
    "[ARGS]",
    "<|python_tag|>",
    "<think>",
    "</think>",
    "[THINK]",
    "[/THINK]",
];

/// Tokens of a model: characters, a few longer ones, the marks, a special token of no use here, and one that ends.
pub(crate) struct Tokens {
    all: Vec<(Vec<u8>, bool)>,
    pub(crate) first_mark: u32,
    pub(crate) end: u32,
    /// The mark to hurry to.
    closing: &'static str,
}

impl Tokens {
    pub(crate) fn new(marks_are_special: bool) -> Self {
        let characters = (0x20..0x7F).map(|byte| (vec![byte], false));
        let longer = [
            "\n",
            "{\"name\": \"",
            "\"}}",
            "\": ",
            "add",
            ">{",
            "é",
            "\n\n",
        ];
        let longer = longer.map(|text| (text.as_bytes().to_vec(), false));
        let mut all: Vec<_> = characters.chain(longer).collect();
        let first_mark = all.len() as u32;
        let marks = MARKS.map(|mark| (mark.as_bytes().to_vec(), marks_are_special));
        all.extend(marks);
        all.push((b"<|other|>".to_vec(), true));
        let end = all.len() as u32;
        all.push((b"<|end|>".to_vec(), true));
        Self {
            all,
            first_mark,
            end,
            closing: "</tool_call>",
        }
    }

    pub(crate) fn table(&self) -> Arc<TokenTable> {
        Arc::new(TokenTable::new(self.all.iter().cloned().map(Some)))
    }

    pub(crate) fn compiler(&self) -> GrammarCompiler {
        GrammarCompiler::new(self.table(), self.end + 1, &[self.end])
    }

    fn is_mark(&self, id: u32) -> bool {
        (self.first_mark..self.first_mark + MARKS.len() as u32).contains(&id)
    }

    /// How soon a token brings an output to its end.
    fn haste(&self, id: u32) -> u32 {
        match self.all[id as usize].0[0] {
            _ if id == self.end => 0,
            _ if self.all[id as usize].0 == self.closing.as_bytes() => 1,
            b'"' | b'}' | b']' => 2,
            b' ' | b'\n' => 4,
            _ => 3,
        }
    }

    /// A random output that hurries to its end once half of the picks are used; `None` if it did not get there.
    pub(crate) fn walk(&self, matcher: &mut Matcher, picks: &[u16]) -> Option<String> {
        let mut text = Vec::new();
        for (index, &pick) in picks.iter().enumerate() {
            let allowed = allowed(matcher);
            let next = if index * 2 > picks.len() {
                *allowed.iter().min_by_key(|id| self.haste(**id)).unwrap()
            } else {
                // Marks are rare among so many tokens.
                let marks: Vec<u32> = allowed
                    .iter()
                    .copied()
                    .filter(|id| self.is_mark(*id))
                    .collect();
                let all = if pick % 7 == 0 && !marks.is_empty() {
                    &marks
                } else {
                    &allowed
                };
                all[usize::from(pick / 7) % all.len()]
            };
            if next == self.end {
                return Some(String::from_utf8(text).expect("whole characters"));
            }
            matcher.push(next).expect("it was in the mask");
            text.extend(&self.all[next as usize].0);
        }
        None
    }
}

pub(crate) fn allowed(matcher: &mut Matcher) -> Vec<u32> {
    let mut mask = Vec::new();
    matcher.mask(&[], &mut mask).expect("within the limits");
    ids(&mask)
}

const WEATHER: &str = r##"{"type": "object", "properties": {"city": {"$ref": "#/$defs/city"},
    "days": {"type": "array", "items": {"enum": [1, 2]}, "maxItems": 2}}, "required": ["city"],
    "additionalProperties": false, "$defs": {"city": {"enum": ["Rome", "}] é"]}}}"##;
const ADD: &str = r#"{"properties": {"a": {"type": "integer", "minimum": 0, "maximum": 12}}, "required": ["a"],
    "additionalProperties": false}"#;
const NOTHING: &str = r#"{"type": "object", "properties": {}, "additionalProperties": false}"#;

/// Names that a head cannot hold, and one that begins like another.
pub(crate) fn functions() -> Vec<Function> {
    let of = |(name, schema): (&str, &str)| Function {
        name: name.to_owned(),
        parameters: Some(schema.to_owned()),
    };
    let all = [
        ("get_weather", WEATHER),
        ("get", NOTHING),
        ("add", ADD),
        ("say \"é\" {", NOTHING),
    ];
    all.map(of).to_vec()
}

fn is_call(name: &str, arguments: &Value) -> bool {
    let Some(object) = arguments.as_object() else {
        return false;
    };
    match name {
        "get_weather" => {
            let days = object
                .get("days")
                .map_or(Some(0), |days| Some(days.as_array()?.len()));
            (object["city"] == "Rome" || object["city"] == "}] é")
                && days.is_some_and(|days| days <= 2)
                && object.keys().all(|key| key == "city" || key == "days")
        }
        "add" => object.len() == 1 && object["a"].as_u64().is_some_and(|a| a <= 12),
        "get" | "say \"é\" {" => object.is_empty(),
        _ => false,
    }
}

pub(crate) fn prompt(text: &str) -> Rendered {
    Rendered {
        text: text.to_owned(),
        answer_start: text.len(),
        tool_names: functions()
            .into_iter()
            .map(|function| function.name)
            .collect(),
    }
}

pub(crate) fn formats(tools: &str, reasoning: &str) -> AnswerFormats {
    AnswerFormats::choose(tools, reasoning, None).unwrap()
}

/// The answer as the parser takes it apart, and whether it says that all of its calls are whole.
pub(crate) fn read(
    formats: &AnswerFormats,
    prompt: &Rendered,
    answer: &str,
) -> (AnswerDelta, bool) {
    let mut parser = formats.parser(prompt, None).unwrap();
    let mut delta = AnswerDelta::default();
    parser.push(answer, &mut delta);
    parser.finish(&mut delta);
    (delta, parser.has_whole_calls())
}

pub(crate) fn read_calls(delta: &AnswerDelta) -> Vec<(String, Value)> {
    let call = |call: &diptych_text::CallDelta| {
        let arguments = serde_json::from_str(&call.arguments).expect(&call.arguments);
        (call.name.clone().unwrap(), arguments)
    };
    delta.calls.iter().map(call).collect()
}

/// The calls of an answer that is nothing else, by the definition of the format.
fn defined(format: &str, answer: &str) -> Vec<(String, Value)> {
    let of_object = |value: &Value| {
        let key = if format == "llama3_json" {
            "parameters"
        } else {
            "arguments"
        };
        assert_eq!(value.as_object().unwrap().len(), 2, "{answer}");
        (
            value["name"].as_str().unwrap().to_owned(),
            value[key].clone(),
        )
    };
    let of_json = |text: &str| -> Vec<(String, Value)> {
        let values: Vec<Value> = Deserializer::from_str(text)
            .into_iter()
            .map(Result::unwrap)
            .collect();
        let flat = values.iter().flat_map(|value| match value {
            Value::Array(items) => items.clone(),
            other => vec![other.clone()],
        });
        flat.map(|value| of_object(&value)).collect()
    };
    match format {
        "hermes" => of_json(
            &answer
                .replace("<tool_call>", " ")
                .replace("</tool_call>", " "),
        ),
        "llama3_json" => of_json(&answer.replace("<|python_tag|>", " ").replace(';', " ")),
        "json" => of_json(answer),
        _ => {
            let units = answer.split("[TOOL_CALLS]").skip(1);
            let unit = |unit: &str| {
                if unit.trim_start().starts_with('[') {
                    return of_json(unit);
                }
                let (head, arguments) = unit.split_at(unit.find('{').unwrap());
                let name = head.split('[').next().unwrap().to_owned();
                vec![(name, serde_json::from_str(arguments).unwrap())]
            };
            units.flat_map(unit).collect()
        }
    }
}

proptest! {
    #![proptest_config(cases(160))]

    #[test]
    fn forced_calls_are_read_as_they_were_written(
        format in prop::sample::select(tool_format_names()),
        special in any::<bool>(),
        several in any::<bool>(),
        picks in prop::collection::vec(any::<u16>(), 500),
    ) {
        let tokens = Tokens::new(special);
        let formats = formats(format, "none");
        let grammar = formats.calls(functions(), true, several).unwrap();
        let mut matcher = tokens.compiler().compile(&grammar).unwrap();
        let answer = tokens.walk(&mut matcher, &picks).expect("its parts are bounded");
        let (delta, are_whole) = read(&formats, &prompt("p"), &answer);
        let calls = read_calls(&delta);
        prop_assert_eq!(&calls, &defined(format, &answer), "{}", answer);
        prop_assert!(!calls.is_empty() && (several || calls.len() == 1), "{}", answer);
        prop_assert!(are_whole && delta.text.is_empty(), "{}", answer);
        for (name, arguments) in &calls {
            prop_assert!(is_call(name, arguments), "{}", answer);
        }
    }

    #[test]
    fn calls_in_free_text_are_calls_of_given_tools(
        format in prop::sample::select(tool_format_names()),
        special in any::<bool>(),
        several in any::<bool>(),
        strict in any::<bool>(),
        picks in prop::collection::vec(any::<u16>(), 600),
    ) {
        let tokens = Tokens::new(special);
        let formats = formats(format, "none");
        let mut functions = functions();
        if !strict {
            for function in &mut functions {
 function.parameters = None;
}
        }
        let grammar = formats.calls(functions, false, several).unwrap();
        let mut matcher = tokens.compiler().compile(&grammar).unwrap();
        let Some(answer) = tokens.walk(&mut matcher, &picks) else {
            // Objects of any kind may nest as deeply as that.
            return Ok(());
        };
        let (delta, are_whole) = read(&formats, &prompt("p"), &answer);
        for call in &delta.calls {
            let name = call.name.as_deref().unwrap();
            match serde_json::from_str(&call.arguments) {
                Ok(arguments) if strict => prop_assert!(is_call(name, &arguments), "{}", answer),
                Ok(arguments) => prop_assert!(Value::is_object(&arguments), "{}", answer),
                // JSON knows no largest number.
                Err(error) => prop_assert!(error.to_string().contains("out of range"), "{}", answer),
            }
        }
        prop_assert!(several || delta.calls.len() <= 1, "{}", answer);
        prop_assert_eq!(are_whole, !delta.calls.is_empty());
        if delta.calls.is_empty() {
            prop_assert_eq!(delta.text, answer);
        }
    }

    #[test]
    fn what_follows_reasoning_is_what_was_asked_for(
        reasoning in prop::sample::select(vec!["think", "magistral"]),
        special in any::<bool>(),
        is_begun in any::<bool>(),
        which in 0_usize..5,
        picks in prop::collection::vec(any::<u16>(), 500),
    ) {
        let (open, closing) = if reasoning == "think" { ("<think>", "</think>") } else { ("[THINK]", "[/THINK]") };
        let tokens = Tokens { closing, ..Tokens::new(special) };
        let formats = formats("hermes", reasoning);
        let prompt = prompt(&if is_begun { format!("p{open}\n") } else { "p".to_owned() });
        let asked = [
            formats.calls(functions(), true, true).unwrap(),
            Grammar::JsonSchema(WEATHER.to_owned()),
            Grammar::Regex("(?s:.){0,40}".to_owned()),
            Grammar::Choice(vec!["yes".to_owned(), "né".to_owned()]),
            Grammar::Lark("start: \"a\" | \"b\" start".to_owned()),
        ];
        let grammar = formats.after_reasoning(&prompt, asked[which].clone());
        let mut matcher = tokens.compiler().compile(&grammar).unwrap();
        let answer = tokens.walk(&mut matcher, &picks).expect("its parts are bounded");
        let (delta, _) = read(&formats, &prompt, &answer);
        let text = delta.text.as_str();
        let fits = match which {
            0 => text.is_empty() && read_calls(&delta).iter().all(|(name, it)| is_call(name, it)) && !delta.calls.is_empty(),
            1 => is_call("get_weather", &serde_json::from_str(text).expect(text)),
            2 => text.chars().count() <= 40,
            3 => text == "yes" || text == "né",
            _ => text.trim_start_matches('b') == "a",
        };
        prop_assert!(fits, "{:?} in {:?}", text, answer);
        if !is_begun && !answer.starts_with(open) {
            prop_assert!(delta.reasoning.is_empty());
            prop_assert!(which == 0 || text == answer);
        }
    }
}
