//! Answers of all formats, whole and in any pieces.

use proptest::prelude::*;

use super::*;

const TOOLS: [&str; 2] = ["get_weather", "add"];

fn rendered(text: &str, answer_start: usize) -> Rendered {
    Rendered {
        text: text.to_owned(),
        answer_start,
        tool_names: TOOLS.map(str::to_owned).to_vec(),
    }
}

fn parser_after(prompt: &str, tools: &str, reasoning: &str, limit: Option<u32>) -> AnswerParser {
    let formats = AnswerFormats::choose(tools, reasoning, None).unwrap();
    let prompt = rendered(prompt, prompt.len());
    formats.parser(&prompt, limit).unwrap()
}

/// The answer in pieces of the given lengths, over and over.
fn pieces<'a>(answer: &'a str, lengths: &'a [usize]) -> impl Iterator<Item = &'a str> {
    let mut rest = answer;
    let mut lengths = lengths.iter().cycle();
    std::iter::from_fn(move || {
        if rest.is_empty() {
            return None;
        }
        let length = *lengths.next().unwrap();
        let end = (length..rest.len()).find(|&end| rest.is_char_boundary(end));
        let (piece, after) = rest.split_at(end.unwrap_or(rest.len()));
        rest = after;
        Some(piece)
    })
}

fn parse_with(mut parser: AnswerParser, answer: &str, lengths: &[usize]) -> AnswerDelta {
    let mut whole = AnswerDelta::default();
    for piece in pieces(answer, lengths) {
        let mut delta = AnswerDelta::default();
        parser.push(piece, &mut delta);
        whole.merge(delta);
    }
    let mut delta = AnswerDelta::default();
    parser.finish(&mut delta);
    whole.merge(delta);
    whole
}

/// The same result for the whole answer and for every character alone, or the test fails.
fn parse(format: &str, answer: &str) -> AnswerDelta {
    let whole = parse_with(parser_after("", format, "none", None), answer, &[1000]);
    let single = parse_with(parser_after("", format, "none", None), answer, &[1]);
    assert_eq!(whole, single, "{answer}");
    whole
}

fn calls(delta: &AnswerDelta) -> Vec<(&str, &str)> {
    let named = |call: &'_ CallDelta| call.name.is_some();
    assert!(delta.calls.iter().all(named));
    delta
        .calls
        .iter()
        .map(|call| (call.name.as_deref().unwrap(), call.arguments.as_str()))
        .collect()
}

fn think(answer: &str) -> (String, String) {
    let tags = |prompt: &str| parser_after(prompt, "none", "think", None);
    let whole = parse_with(tags("p"), answer, &[1000]);
    assert_eq!(whole, parse_with(tags("p"), answer, &[1]), "{answer}");
    (whole.reasoning, whole.text)
}

#[test]
fn hermes_calls_stand_between_tags() {
    let answer = "Let me see.\n<tool_call>\n{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Köln }</tool_call>\"}}\n\
                  </tool_call>\n<tool_call>\n{\"arguments\": {\"a\": [1, {}]}, \"name\": \"add\"}\n</tool_call>";
    let delta = parse("hermes", answer);
    assert_eq!(delta.text, "Let me see.\n");
    assert_eq!(
        calls(&delta),
        [
            ("get_weather", "{\"city\": \"Köln }</tool_call>\"}"),
            ("add", "{\"a\": [1, {}]}")
        ]
    );
}

#[test]
fn arguments_are_passed_on_as_they_come() {
    let mut parser = parser_after("", "hermes", "none", None);
    let mut delta = AnswerDelta::default();
    parser.push(
        "<tool_call>{\"name\": \"add\", \"arguments\": {\"a\"",
        &mut delta,
    );
    assert_eq!(calls(&delta), [("add", "{\"a\"")]);
    delta = AnswerDelta::default();
    parser.push(": 1", &mut delta);
    let more = CallDelta {
        index: 0,
        name: None,
        arguments: ": 1".to_owned(),
    };
    assert_eq!(delta.calls, [more]);
}

#[test]
fn what_is_no_call_comes_back_as_it_was_written() {
    for (format, answer) in [
        ("hermes", "<tool_call>add(1, 2)</tool_call> and"),
        ("hermes", "<tool_call>{\"tool\": \"add\"}</tool_call>"),
        ("hermes", "<tool_call>{\"name\": \"ad"),
        ("hermes", "a <tool_cal"),
        ("hermes", "1 < 2 <tool_box>"),
        ("llama3_json", "{\"city\": \"Köln\"} is an object"),
        ("llama3_json", "{\"name\": \"Ada\", \"parameters\": {}}"),
        ("llama3_json", "Hello {\"name\": \"add\"}"),
        ("llama3_json", " {"),
        ("mistral", "[TOOL_CALLS] nothing here"),
        ("mistral", "[TOOL_CALLS][1, 2]"),
        ("json", "[1, 2, 3]"),
        ("json", "{\"name\": 7}"),
        ("json", "[{\"name\": \"Ada\"}]"),
        ("json", ""),
    ] {
        let delta = parse(format, answer);
        assert_eq!(
            (delta.text.as_str(), delta.calls.len()),
            (answer, 0),
            "{format}"
        );
    }
}

#[test]
fn llama_calls_are_the_answer_itself() {
    let delta = parse(
        "llama3_json",
        "{\"name\": \"add\", \"parameters\": {\"a\": 1}}; {\"type\": \"function\", \"name\": \"get_weather\", \
         \"parameters\": {}}\n",
    );
    assert_eq!(
        calls(&delta),
        [("add", "{\"a\": 1}"), ("get_weather", "{}")]
    );
    assert_eq!(delta.text, "");
    let tagged = parse(
        "llama3_json",
        "<|python_tag|>{\"name\": \"add\", \"parameters\": {}}",
    );
    assert_eq!(calls(&tagged), [("add", "{}")]);
    let after = parse(
        "llama3_json",
        "{\"name\": \"add\", \"parameters\": {}} That was it.",
    );
    assert_eq!(
        (calls(&after).len(), after.text.as_str()),
        (1, "That was it.")
    );
}

#[test]
fn mistral_calls_are_a_list_or_names_with_arguments() {
    let list = "[TOOL_CALLS] [{\"name\": \"add\", \"arguments\": {\"a\": 1}}, {\"name\": \"get_weather\", \"arguments\": {}}]";
    let names = "[TOOL_CALLS]add{\"a\": 1}[TOOL_CALLS]get_weather{}";
    let marked = "[TOOL_CALLS]add[CALL_ID]abc123def[ARGS]{\"a\": 1}[TOOL_CALLS]get_weather[ARGS]{}";
    for answer in [list, names, marked] {
        let delta = parse("mistral", answer);
        assert_eq!(
            calls(&delta),
            [("add", "{\"a\": 1}"), ("get_weather", "{}")]
        );
        assert_eq!(delta.text, "");
    }
    let text = parse("mistral", "Sure. [TOOL_CALLS]add{}");
    assert_eq!(
        (text.text.as_str(), calls(&text)),
        ("Sure. ", vec![("add", "{}")])
    );
}

#[test]
fn plain_json_calls_name_a_tool_that_was_given() {
    let one = parse("json", " {\"name\": \"add\", \"arguments\": {\"a\": 1}}\n");
    assert_eq!(calls(&one), [("add", "{\"a\": 1}")]);
    let two = parse(
        "json",
        "[{\"name\": \"add\", \"parameters\": {}}, {\"name\": \"get_weather\"}]",
    );
    assert_eq!(calls(&two), [("add", "{}"), ("get_weather", "{}")]);
}

#[test]
fn calls_that_models_get_wrong_are_read_as_far_as_they_go() {
    // A brace too few, a brace too many, arguments as a string, no arguments, an end that never comes.
    for (body, arguments) in [
        (
            "{\"name\": \"add\", \"arguments\": {\"a\": 1}\n</tool_call>",
            "{\"a\": 1}",
        ),
        (
            "{\"name\": \"add\", \"arguments\": {\"a\": 1}}}\n</tool_call>",
            "{\"a\": 1}",
        ),
        (
            "{\"name\": \"add\", \"arguments\": \"{\\\"a\\\": 1}\"}</tool_call>",
            "{\"a\": 1}",
        ),
        ("{\"name\": \"add\"}</tool_call>", "{}"),
        ("{\"name\": \"add\", \"arguments\": null}</tool_call>", "{}"),
        (
            "{\"name\": \"add\", \"arguments\": {\"a\": 1</tool_call>",
            "{\"a\": 1",
        ),
        (
            "{\"name\": \"add\", \"arguments\": {\"a\": 1}, \"id\": 3}</tool_call>",
            "{\"a\": 1}",
        ),
    ] {
        let delta = parse("hermes", &format!("<tool_call>{body} Done."));
        assert_eq!(calls(&delta), [("add", arguments)], "{body}");
        assert_eq!(delta.text, "Done.", "{body}");
    }
    let forgotten = parse(
        "hermes",
        "<tool_call>{\"name\": \"add\"}<tool_call>{\"name\": \"get_weather\"}",
    );
    assert_eq!(calls(&forgotten), [("add", "{}"), ("get_weather", "{}")]);
    let unclosed = parse("hermes", "<tool_call>{\"name\": \"add\"}\nThat is all.");
    assert_eq!(
        (calls(&unclosed).len(), unclosed.text.as_str()),
        (1, "That is all.")
    );
}

#[test]
fn a_limit_ends_the_answer_with_its_last_call() {
    let answer = "<tool_call>{\"name\": \"add\"}</tool_call><tool_call>{\"name\": \"get_weather\"}</tool_call> more";
    let mut parser = parser_after("", "hermes", "none", Some(1));
    let mut delta = AnswerDelta::default();
    parser.push(&answer[..20], &mut delta);
    assert!(!parser.is_complete());
    parser.push(&answer[20..], &mut delta);
    parser.finish(&mut delta);
    assert!(parser.is_complete());
    assert_eq!(
        (calls(&delta), delta.text.as_str()),
        (vec![("add", "{}")], "")
    );
}

#[test]
fn reasoning_stands_between_tags_at_the_beginning() {
    let split = |reasoning: &str, text: &str| (reasoning.to_owned(), text.to_owned());
    assert_eq!(
        think("<think>\nHm\n\nso\n</think>\n\nYes\n"),
        split("Hm\n\nso", "Yes\n")
    );
    assert_eq!(think("\n<think></think>Yes"), split("", "Yes"));
    assert_eq!(
        think("Yes <think>no</think>"),
        split("", "Yes <think>no</think>")
    );
    assert_eq!(think("<thinking>"), split("", "<thinking>"));
    assert_eq!(think("<thin"), split("", "<thin"));
    assert_eq!(think("<think>cut off\n</thi"), split("cut off\n</thi", ""));
    assert_eq!(
        think("<think>a </thin> b</think>c"),
        split("a </thin> b", "c")
    );
}

#[test]
fn reasoning_that_the_prompt_began_is_reasoning() {
    let after = |prompt: &str| {
        parse_with(
            parser_after(prompt, "none", "think", None),
            "Hm</think>\nYes",
            &[3],
        )
    };
    let inside = after("<user>x<assistant><think>\n");
    assert_eq!(
        (inside.reasoning.as_str(), inside.text.as_str()),
        ("Hm", "Yes")
    );
    let outside = after("<assistant><think>\n\n</think>\n\n");
    assert_eq!(
        (outside.reasoning.as_str(), outside.text.as_str()),
        ("", "Hm</think>\nYes")
    );
    let formats = AnswerFormats::choose("none", "think", None).unwrap();
    let inside = |text: &str, start| {
        let parser = formats.parser(&rendered(text, start), None).unwrap();
        parser.is_reasoning()
    };
    assert!(inside("<think>quoted</think><assistant><think>I was", 32));
    assert!(!inside("<think>asked by the user", 24));
    assert!(!inside("<assistant><think>x</think>so", 11));
}

#[test]
fn calls_within_reasoning_are_thoughts() {
    let answer = "<think>maybe <tool_call>{\"name\": \"add\"}</tool_call></think>\n<tool_call>{\"name\": \"get_weather\"}</tool_call>";
    let delta = parse_with(parser_after("", "hermes", "think", None), answer, &[5]);
    assert_eq!(calls(&delta), [("get_weather", "{}")]);
    assert!(delta.reasoning.starts_with("maybe <tool_call>"));
    assert_eq!(delta.text, "");
}

#[test]
fn formats_are_told_from_names_or_refused_with_those_there_are() {
    assert!(
        AnswerFormats::choose("none", "none", None)
            .unwrap()
            .tools()
            .is_none()
    );
    assert!(
        AnswerFormats::choose("auto", "auto", None)
            .unwrap()
            .reasoning()
            .is_none()
    );
    let error = AnswerFormats::choose("hermess", "none", None)
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("hermess") && error.contains("hermes, llama3_json"),
        "{error}"
    );
    let error = AnswerFormats::choose("none", "thinking", None)
        .unwrap_err()
        .to_string();
    assert!(error.contains("think, magistral"), "{error}");
    let formats = AnswerFormats::choose("none", "none", None).unwrap();
    assert!(formats.parser(&rendered("x", 1), None).is_none());
    let formats = AnswerFormats::choose("hermes", "none", None).unwrap();
    let without_tools = Rendered {
        tool_names: Vec::new(),
        ..rendered("x", 1)
    };
    assert!(formats.parser(&without_tools, None).is_none());
}

/// Text made of everything that the parsers look at.
fn answers() -> impl Strategy<Value = String> {
    let piece = prop::sample::select(vec![
        "<tool_call>",
        "</tool_call>",
        "<think>",
        "</think>",
        "[TOOL_CALLS]",
        "[ARGS]",
        "<|python_tag|>",
        "{",
        "}",
        "[",
        "]",
        "\"name\"",
        "\"add\"",
        "\"arguments\"",
        "\"parameters\"",
        ":",
        ",",
        ";",
        " ",
        "\n",
        "\\\"",
        "1",
        "null",
        "é",
        "x <",
        "{\"name\": \"add\", \"arguments\": {\"a\": \"}\"}}",
    ]);
    prop::collection::vec(piece, 0..24).prop_map(|pieces| pieces.concat())
}

proptest! {
    #[test]
    fn pieces_do_not_change_the_answer(
        answer in answers(),
        format in prop::sample::select(tool_format_names()),
        lengths in prop::collection::vec(1_usize..9, 1..6),
    ) {
        let parser = || parser_after("", format, "think", None);
        let whole = parse_with(parser(), &answer, &[100_000]);
        prop_assert_eq!(&parse_with(parser(), &answer, &lengths), &whole);
        for (index, call) in whole.calls.iter().enumerate() {
            prop_assert_eq!(call.index as usize, index);
            prop_assert!(call.name.as_ref().is_some_and(|name| !name.is_empty()));
        }
    }

    #[test]
    fn text_without_marks_is_passed_on_whole(answer in "[a-zA-Zé .,;:!?\n]{0,80}", format in prop::sample::select(tool_format_names())) {
        let delta = parse_with(parser_after("", format, "think", None), &answer, &[3]);
        prop_assert_eq!(delta.text, answer);
        prop_assert!(delta.calls.is_empty() && delta.reasoning.is_empty());
    }
}
