//! What is no grammar, and what a grammar may cost.

use std::time::Instant;

use diptych_text::{Grammar, GrammarCompiler, MAX_GRAMMAR_BYTES, TextError};

use crate::grammar::{PIECES, Vocabulary, ids, json_vocabulary};

/// What is wrong is named.
#[test]
fn what_is_no_grammar_is_refused_with_the_reason() {
    let compiler = Vocabulary::new(PIECES).compiler();
    let schema = |text: &str| Grammar::JsonSchema(text.to_owned());
    for (grammar, wanted) in [
        (schema("{"), "EOF"),
        (schema("[1]"), "a schema is an object"),
        (schema(r#"{"type": "objekt"}"#), "objekt"),
        (schema(r##"{"$ref": "#/$defs/none"}"##), "none"),
        (
            schema(r#"{"type": "integer", "minimum": 3, "maximum": 2}"#),
            "minimum",
        ),
        (Grammar::Regex("(".to_owned()), "unclosed"),
        (Grammar::Regex(String::new()), "empty"),
        (Grammar::Choice(Vec::new()), "0 choices"),
        (
            Grammar::Choice(vec!["a".to_owned(), String::new()]),
            "choice 1 is empty",
        ),
        (Grammar::Lark("start: unknown".to_owned()), "unknown"),
        (Grammar::Lark(String::new()), "start"),
    ] {
        let error = compiler.compile(&grammar).unwrap_err().to_string();
        assert!(error.contains(wanted), "{grammar:?}: {error}");
        assert!(error.len() < 700 && !error.contains('\n'), "{error}");
    }
    let large = Grammar::JsonSchema(" ".repeat(MAX_GRAMMAR_BYTES + 1));
    let error = compiler.compile(&large).unwrap_err();
    assert!(
        matches!(error, TextError::GrammarTooLarge { .. }),
        "{error}"
    );
}

/// The library would crash on some of these, and round others or let through what they exclude.
#[test]
fn numbers_that_cannot_be_followed_exactly_are_refused_by_name() {
    let compiler = json_vocabulary().compiler();
    for (schema, wanted) in [
        (r#"{"const": -9223372036854775808}"#, "-9223372036854775808"),
        (r#"{"const": -9223372036854775807}"#, "-9223372036854775807"),
        (
            r#"{"enum": [{"a": [-9223372036854775808]}]}"#,
            "-9223372036854775808",
        ),
        (
            r##"{"$defs": {"n": {"type": "integer", "minimum": -1e30}}, "$ref": "#/$defs/n"}"##,
            "minimum: -1e+30",
        ),
        (
            r##"{"default": {"maximum": -1e30}, "$ref": "#/default"}"##,
            "maximum: -1e+30",
        ),
        (r#"{"const": 9007199254740992}"#, "9007199254740992"),
        (r#"{"multipleOf": -2}"#, "multipleOf: -2"),
        (r#"{"multipleOf": 0}"#, "multipleOf: 0"),
        (r#"{"multipleOf": 0.123456789012}"#, "0.123456789012"),
        (
            r#"{"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 0.3}"#,
            "between 0 and 0.3",
        ),
        (
            r#"{"type": "number", "exclusiveMaximum": -1, "minimum": -1.5}"#,
            "between -1.5 and -1",
        ),
        (
            r#"{"x-guidance": {"item_separator": ""}}"#,
            "item_separator",
        ),
    ] {
        for (grammar, place) in [
            (Grammar::JsonSchema(schema.to_owned()), "json schema"),
            (Grammar::Lark(format!("start: %json {schema}")), "grammar"),
        ] {
            let error = compiler.compile(&grammar).unwrap_err().to_string();
            assert!(
                error.contains(wanted) && error.contains(place),
                "{schema}: {error}"
            );
        }
    }
}

#[test]
fn numbers_that_can_be_followed_are() {
    let compiler = json_vocabulary().compiler();
    for (number, is_allowed) in [
        ("123456789.12345679", true),
        ("-122.41941550000001", true),
        ("0.30000000000000004", true),
        ("9007199254740991", true),
        ("-9007199254740991", true),
    ]
    .into_iter()
    .chain([("0.3", false)])
    {
        let other = if is_allowed { number } else { "0.4" };
        let grammar = Grammar::JsonSchema(format!(r#"{{"const": {other}}}"#));
        let mut matcher = compiler.compile(&grammar).unwrap();
        let mut mask = Vec::new();
        // The first ids are printable characters.
        let follows = number.bytes().all(|byte| {
            let id = u32::from(byte - 0x20);
            matcher.mask(&[], &mut mask).unwrap();
            ids(&mask).contains(&id) && matcher.push(id).is_ok()
        });
        assert_eq!(follows, is_allowed, "{number}");
    }
    for schema in [
        r#"{"type": "number", "exclusiveMinimum": 0, "maximum": 1}"#,
        r#"{"type": "integer", "exclusiveMinimum": 0, "exclusiveMaximum": 2}"#,
        r#"{"type": "number", "multipleOf": 0.01}"#,
        r#"{"type": "integer", "x-guidance": {"whitespace_flexible": false}}"#,
    ] {
        compiler
            .compile(&Grammar::JsonSchema(schema.to_owned()))
            .unwrap();
    }
}

/// What is made of them grows with the square of their length, or with the product, before the library looks at it.
#[test]
fn expressions_that_would_take_the_memory_of_the_machine_are_refused() {
    let compiler = json_vocabulary().compiler();
    let patterns = |count: usize| {
        let all =
            (0..count).map(|index| format!(r#"{{"type": "string", "pattern": "^.*{index}.*$"}}"#));
        Grammar::JsonSchema(format!(
            r#"{{"allOf": [{}]}}"#,
            all.collect::<Vec<_>>().join(",")
        ))
    };
    let one = |pattern: String| Grammar::JsonSchema(format!(r#"{{"pattern": "{pattern}"}}"#));
    let anded = |count: usize| {
        let all = (0..count).map(|index| format!("/.*{index}.*/"));
        Grammar::Lark(format!(
            "start: A\nA: {}",
            all.collect::<Vec<_>>().join(" & ")
        ))
    };
    let doubled = (0..14).map(|index| format!("A{index}: A{0} A{0}", index + 1));
    let doubled = doubled.collect::<Vec<_>>().join("\n");
    for (grammar, wanted) in [
        (Grammar::Regex("a?".repeat(80_000)), "160000 bytes"),
        (one("a?".repeat(2049)), "4098 bytes"),
        (patterns(500), "match 500 expressions"),
        (anded(500), "match 500 expressions"),
        (
            Grammar::Lark(format!("start: A0\n{doubled}\nA14: /a?/")),
            "terminal A0",
        ),
    ] {
        let error = compiler.compile(&grammar).unwrap_err().to_string();
        assert!(error.contains(wanted), "{error}");
    }
    for grammar in [patterns(2), anded(2), one("[a-z]{1,4000}".to_owned())] {
        compiler.compile(&grammar).unwrap();
    }
}

#[test]
fn a_grammar_that_accepts_nothing_is_told_so() {
    let compiler = json_vocabulary().compiler();
    let mut matcher = compiler
        .compile(&Grammar::Lark("start: A\nA: /a/ & /b/".to_owned()))
        .unwrap();
    let error = matcher.mask(&[], &mut Vec::new()).unwrap_err().to_string();
    assert!(
        error.contains("nothing can be written that it accepts"),
        "{error}"
    );
}

/// Grammars that would take for ever, or gigabytes, or a stack without end.
fn hostile() -> Vec<(&'static str, Grammar)> {
    let nested = |open: &str, close: &str, times: usize| {
        format!("{}a{}", open.repeat(times), close.repeat(times))
    };
    let schema = |text: String| Grammar::JsonSchema(text);
    let any_of = |depth: usize| {
        let mut inner = "{\"type\": \"string\"}".to_owned();
        for level in 0..depth {
            inner = format!(
                "{{\"allOf\": [{{\"anyOf\": [{inner}, {{\"minLength\": {level}}}]}}, {{\"anyOf\": [{{\"maxLength\": {}}}, {{\"pattern\": \"a{level}\"}}]}}]}}",
                level + 9
            );
        }
        inner
    };
    let many = (0..3000).map(|index| format!("\"{index}{}\"", "x".repeat(60)));
    let many = many.collect::<Vec<_>>().join(",");
    let optional = (0..2000).map(|index| format!("\"key{index}\": {{\"type\": \"string\"}}"));
    let optional = optional.collect::<Vec<_>>().join(",");
    vec![
        ("repeats of repeats", Grammar::Regex("(((((a{1,99}){1,99}){1,99}){1,99}){1,99}){1,99}".to_owned())),
        ("a long repeat", Grammar::Regex("[a-z]{0,1000000}x".to_owned())),
        ("states that double", Grammar::Regex("(a|b)*a(a|b){60}".to_owned())),
        ("nested groups", Grammar::Regex(nested("(", ")", 100_000))),
        ("nested rules", Grammar::Lark(format!("start: {}", nested("(\"a\" ", ")", 20_000)))),
        ("a large class", Grammar::Regex(r"(\p{L}|\p{N}){200}(\p{L}\p{M})*".to_owned())),
        ("an intersection", Grammar::Lark(format!("start: A\nA: {}", vec!["/(.*a){30}/"; 40].join(" & ")))),
        ("nested schemas", schema(format!("{}true{}", "{\"items\":".repeat(120), "}".repeat(120)))),
        ("products of choices", schema(any_of(14))),
        ("a large enumeration", schema(format!("{{\"enum\": [{many}]}}"))),
        ("many properties", schema(format!("{{\"properties\": {{{optional}}}, \"additionalProperties\": false}}"))),
        ("a long array", schema("{\"type\": \"array\", \"minItems\": 1000000, \"maxItems\": 2000000, \"items\": {\"type\": \"array\", \"minItems\": 1000000}}".to_owned())),
        ("a long string", schema("{\"type\": \"string\", \"minLength\": 1000000, \"maxLength\": 9000000}".to_owned())),
        ("many patterns", schema("{\"type\": \"object\", \"patternProperties\": {\"^a.*b.*c.*$\": {}, \"^.*d.*e.*$\": {}, \"(x.*){20}\": {}, \"(y.*){20}z\": {}}}".to_owned())),
        ("a schema of itself", schema("{\"allOf\": [{\"$ref\": \"#\"}, {\"$ref\": \"#\"}]}".to_owned())),
        ("a divisor", schema("{\"type\": \"integer\", \"multipleOf\": 999983, \"minimum\": 1, \"maximum\": 1e15}".to_owned())),
    ]
}

#[test]
fn whatever_a_grammar_is_it_is_compiled_or_refused_and_its_masks_are_made_or_fail_in_bounded_time()
{
    let life = || {
        let vocabulary = json_vocabulary();
        let compiler = vocabulary.compiler();
        for (name, grammar) in hostile() {
            let begun = Instant::now();
            let made = compiler.compile(&grammar);
            let taken = begun.elapsed();
            let outcome = match made {
                Err(error) => error.to_string(),
                Ok(mut matcher) => {
                    let begun = Instant::now();
                    let mut mask = Vec::new();
                    let mut outcome = "made".to_owned();
                    for _ in 0..20 {
                        match matcher.mask(&[], &mut mask) {
                            Ok(()) => {}
                            Err(error) => {
                                outcome = error.to_string();
                                break;
                            }
                        }
                        let Some(next) = ids(&mask)
                            .into_iter()
                            .find(|id| !vocabulary.ends.contains(id))
                        else {
                            break;
                        };
                        matcher.push(next).unwrap();
                    }
                    format!("masks {outcome} in {:?}", begun.elapsed())
                }
            };
            assert!(taken.as_secs() < 10, "{name} took {taken:?}: {outcome}");
            assert!(outcome.len() < 1000, "{name}: {outcome}");
        }
    };
    let thread = std::thread::Builder::new().stack_size(GrammarCompiler::STACK_BYTES);
    thread.spawn(life).unwrap().join().unwrap();
}
