//! Grammars of tool calls and of reasoning, case by case.

use diptych_text::{
    AnswerFormats, Function, Grammar, Matcher, Rendered, TextError, tool_format_names,
};
use serde_json::json;

use crate::calls::{Tokens, allowed, formats, functions, prompt, read, read_calls};

#[test]
fn calls_are_whole_where_all_arguments_are_complete() {
    let are_whole = |format: &str, answer: &str| {
        let formats = formats(format, "none");
        read(&formats, &prompt(""), answer).1
    };
    let whole = "<tool_call>{\"name\": \"add\", \"arguments\": {\"a\": 1}";
    for end in [
        "}</tool_call>",
        "}</tool_call> Done.",
        "}",
        "",
        "\n</tool_call>",
        "}<tool_cal",
    ] {
        assert!(are_whole("hermes", &format!("{whole}{end}")), "{end}");
    }
    for answer in [
        "Nothing",
        "<tool_call>{\"name\": \"add\"",
        "<tool_call>{\"name\": \"add\", \"arguments\": ",
        "<tool_call>{\"name\": \"add\", \"arguments\": {\"a\": 1",
        "<tool_call>{\"name\": \"add\", \"arguments\": {\"a\": 1</tool_call>",
    ] {
        assert!(!are_whole("hermes", answer), "{answer}");
        assert!(
            !are_whole("hermes", &format!("{whole}}}</tool_call>{answer}")) || answer == "Nothing"
        );
    }
    assert!(are_whole("mistral", "[TOOL_CALLS]add[ARGS]{}"));
    assert!(!are_whole("mistral", "[TOOL_CALLS]add[ARGS]{\"a\": "));
    assert!(!are_whole("mistral", "[TOOL_CALLS]add{\"a\"; 1} more"));
}

#[test]
fn reasoning_comes_first_as_far_as_the_prompt_leaves_it_open() {
    let formats = formats("none", "think");
    let asked = Grammar::JsonObject;
    let with = |text: &str, answer_start: usize| {
        let prompt = Rendered {
            answer_start,
            ..prompt(text)
        };
        formats.after_reasoning(&prompt, asked.clone())
    };
    // Switched off, ended, or within the answer's text.
    for (text, start) in [
        ("<assistant><think>\n\n</think>\n\n", 32),
        ("<assistant><think>so</think>", 11),
        ("<assistant>The answer is", 11),
    ] {
        assert_eq!(with(text, start.min(text.len())), asked, "{text}");
    }
    let open = with("<assistant>", 11);
    let begun = with("<assistant><think>\n", 19);
    assert!(open != asked && begun != asked && open != begun);
    assert_eq!(with("<assistant><think>I was", 11), begun);
    let without = AnswerFormats::choose("none", "none", None).unwrap();
    assert_eq!(
        without.after_reasoning(&prompt("x<think>"), asked.clone()),
        asked
    );
    // The first tokens of each.
    let tokens = Tokens::new(false);
    let first = |grammar: &Grammar| allowed(&mut tokens.compiler().compile(grammar).unwrap());
    let think = tokens.first_mark + 6;
    let brace = u32::from(b'{' - 0x20);
    assert!(first(&open).contains(&think) && first(&open).contains(&brace));
    assert!(!first(&open).contains(&u32::from(b'a' - 0x20)));
    assert!(
        first(&begun).contains(&u32::from(b'a' - 0x20)) && first(&begun).contains(&(think + 1))
    );
    assert!(!first(&begun).contains(&tokens.end));
}

#[test]
fn marks_that_are_special_tokens_stand_where_they_belong_and_nowhere_else() {
    let tokens = Tokens::new(true);
    let table = tokens.table();
    let push = |matcher: &mut Matcher, text: &str| {
        for character in text.bytes() {
            matcher.push(u32::from(character - 0x20)).unwrap();
        }
    };
    let special = |matcher: &mut Matcher| -> Vec<String> {
        let of = |id: u32| String::from_utf8(table.bytes(id).unwrap().to_vec()).unwrap();
        let all = allowed(matcher).into_iter();
        all.filter(|id| table.is_special(*id)).map(of).collect()
    };
    let formats = formats("hermes", "think");
    assert_eq!(formats.mark_ids(&table).len(), 4);
    let forced = formats.calls(functions(), true, true).unwrap();
    let mut matcher = tokens.compiler().compile(&forced).unwrap();
    assert_eq!(special(&mut matcher), ["<tool_call>"]);
    matcher.push(tokens.first_mark).unwrap();
    push(&mut matcher, "{\"name\": \"get\"");
    assert!(special(&mut matcher).is_empty());
    push(&mut matcher, ", \"arguments\": {}}");
    assert_eq!(special(&mut matcher), ["</tool_call>"]);
    let free = formats.calls(functions(), false, true).unwrap();
    let free = formats.after_reasoning(&prompt("p"), free);
    let mut matcher = tokens.compiler().compile(&free).unwrap();
    assert_eq!(special(&mut matcher), ["<tool_call>", "<think>", "<|end|>"]);
    push(&mut matcher, "1 < 2 <tool_call");
    // The parser would take it for the mark.
    assert!(!allowed(&mut matcher).contains(&u32::from(b'>' - 0x20)));
    assert_eq!(special(&mut matcher), ["<tool_call>", "<|end|>"]);
}

#[test]
fn functions_that_cannot_be_compiled_are_told_apart() {
    let tokens = Tokens::new(false);
    let compiler = tokens.compiler();
    let formats = formats("llama3_json", "none");
    let attempt = |schema: &str| {
        let mut all = functions();
        all.insert(
            1,
            Function {
                name: "wrong".to_owned(),
                parameters: Some(schema.to_owned()),
            },
        );
        compiler.compile(&formats.calls(all, true, true).unwrap())
    };
    for (schema, why) in [
        (
            r#"{"type": "object", "properties": {"a": {"type": "objekt"}}}"#,
            "objekt",
        ),
        (r#"{"type": "string"}"#, "object"),
        (r##"{"$ref": "#/$defs/none"}"##, "none"),
        (r#"{"properties": {"a": {"pattern": "("}}}"#, "("),
        ("true", "object"),
        ("{", "EOF"),
    ] {
        match attempt(schema) {
            Err(TextError::InvalidFunction {
                name,
                index,
                reason,
            }) => {
                assert_eq!((name.as_str(), index), ("wrong", 1));
                assert!(reason.contains(why), "{schema}: {reason}");
            }
            other => panic!("{schema}: {other:?}"),
        }
    }
    for schema in [
        "{}",
        r#"{"type": ["object", "null"]}"#,
        r##"{"$ref": "#/$defs/a", "$defs": {"a": {"type": "object"}}}"##,
        r#"{"anyOf": [{"required": ["a"]}, {"required": ["b"]}]}"#,
    ] {
        assert!(attempt(schema).is_ok(), "{schema}: {:?}", attempt(schema));
    }
    let error = attempt(&format!("{{\"description\": \"{}\"}}", "x".repeat(300_000)));
    assert!(matches!(error, Err(TextError::GrammarTooLarge { .. })));
}

#[test]
fn functions_of_one_name_are_one_with_either_schema() {
    let tokens = Tokens::new(false);
    let twice = ["1", "2"].map(|value| Function {
        name: "get".to_owned(),
        parameters: Some(format!(
            r#"{{"properties": {{"a": {{"enum": [{value}]}}}}, "required": ["a"], "additionalProperties": false}}"#
        )),
    });
    let formats = formats("hermes", "none");
    let grammar = formats.calls(twice.to_vec(), true, false).unwrap();
    let compiled = tokens.compiler().compile(&grammar).unwrap();
    for number in 0..24_u16 {
        let picks: Vec<u16> = (0..300_u16)
            .map(|pick| (pick + number).wrapping_mul(7919))
            .collect();
        let answer = tokens.walk(&mut compiled.clone(), &picks).unwrap();
        let (delta, _) = read(&formats, &prompt("p"), &answer);
        let (name, arguments) = &read_calls(&delta)[0];
        assert!(
            name == "get" && (arguments["a"] == 1 || arguments["a"] == 2),
            "{answer}"
        );
    }
}

#[test]
fn as_many_tools_as_a_request_may_have_are_followed() {
    let tokens = Tokens::new(true);
    let compiler = tokens.compiler();
    let many: Vec<Function> = (0..1024)
        .map(|number| Function {
            name: format!("tool_{number}"),
            parameters: Some(
                json!({"type": "object", "properties": {"value": {"enum": [number]}},
                                    "required": ["value"], "additionalProperties": false})
                .to_string(),
            ),
        })
        .collect();
    for format in tool_format_names() {
        let formats = formats(format, "none");
        let prompt = Rendered {
            tool_names: many.iter().map(|function| function.name.clone()).collect(),
            ..prompt("p")
        };
        let grammar = formats.calls(many.clone(), true, false).unwrap();
        let mut matcher = compiler.compile(&grammar).unwrap();
        let picks: Vec<u16> = (0..400_u16).map(|pick| pick.wrapping_mul(7919)).collect();
        let answer = tokens.walk(&mut matcher, &picks).unwrap();
        let (delta, _) = read(&formats, &prompt, &answer);
        let (name, arguments) = &read_calls(&delta)[0];
        assert_eq!(format!("tool_{}", arguments["value"]), *name, "{answer}");
    }
}
