//! What a template sees: numbers as they were sent, and variables that are the client's own.

use diptych_text::TextError;
use serde_json::{Value, json};

use crate::chat::template;

#[test]
fn integers_of_any_length_are_printed_as_they_were_sent() {
    let shown = template(
        "{{ messages[0].tool_calls | tojson }} {{ messages[0].tool_calls[0].n }} {{ tools }} {{ extra is integer }} {{ extra + 1 }}",
    );
    let request = |integer: &str| {
        format!(
            r#"{{"messages": [{{"role": "assistant", "tool_calls": [{{"n": {integer}, "text": "{integer} \"{integer}\\"}}]}}],
            "tools": [[-1, {integer}, {{"a": {integer}}}, {integer}.5]], "chat_template_kwargs": {{"extra": {integer}}}}}"#
        )
    };
    for integer in [
        "18446744073709551615",
        "18446744073709551616",
        "-9223372036854775808",
        "-9223372036854775809",
        "123456789012345678901234567890",
        "-170141183460469231731687303715884105728",
    ] {
        let next = integer.parse::<i128>().unwrap() + 1;
        let float = format!("{integer}.5").parse::<f64>().unwrap();
        let float = format!("{float:e}").replace('e', "e+");
        assert_eq!(
            shown.render(&request(integer)).unwrap(),
            format!(
                r#"[{{"n": {integer}, "text": "{integer} \"{integer}\\"}}] {integer} [[-1, {integer}, {{'a': {integer}}}, {float}]] True {next}"#
            )
        );
    }
    let longest = "9".repeat(4_000);
    let plain = template("{{ messages[0].n }} {{ messages[0] | tojson }}");
    assert_eq!(
        plain
            .render(&format!(
                r#"{{"messages": [{{"role": "user", "n": [{longest}]}}]}}"#
            ))
            .unwrap(),
        format!(r#"[{longest}] {{"role": "user", "n": [{longest}]}}"#)
    );
}

#[test]
fn floats_are_the_nearest_to_what_was_sent() {
    let shown = template("{{ messages[0].n | tojson }}");
    let render = |number: &str| {
        shown.render(&format!(
            r#"{{"messages": [{{"role": "user", "n": {number}}}]}}"#
        ))
    };
    for (number, printed) in [
        ("0.30000000000000004", "0.30000000000000004"),
        ("5e-324", "5e-324"),
        ("1.7976931348623157E308", "1.7976931348623157e+308"),
        ("123456.7890123456789", "123456.78901234567"),
        ("9007199254740993.0", "9007199254740992.0"),
        ("-0.1234567890123456789e-7", "-1.2345678901234567e-08"),
        ("1055796467154822.25", "1055796467154822.2"),
        ("226792797869.703125", "226792797869.70312"),
        ("-630318398822494.25", "-630318398822494.2"),
        ("1125899906842624.25", "1125899906842624.2"),
        ("2e16", "2e+16"),
        ("9999999999999998", "9999999999999998"),
        ("9999999999999998.0", "9999999999999998.0"),
        ("100000.0", "100000.0"),
        ("0.0001", "0.0001"),
        ("0.00001", "1e-05"),
        ("-0.0", "-0.0"),
        ("-0", "0"),
        ("1.10", "1.1"),
    ] {
        assert_eq!(render(number).unwrap(), printed);
    }
    for wrong in [
        "1e400",
        "1.",
        "01.5",
        "1.e30",
        "-",
        "1e",
        "0.30000000000000004.1",
    ] {
        assert!(
            matches!(render(wrong), Err(TextError::InvalidChat { .. })),
            "{wrong}"
        );
    }
}

#[test]
fn a_long_integer_is_no_role_no_text_and_no_way_around_the_grammar_of_json() {
    let shown = template("{{ messages[0].content }}");
    let long = "123456789012345678901234567890";
    for (message, reason) in [
        (
            format!(r#"{{"role": {long}, "content": "x"}}"#),
            "no `role`",
        ),
        (
            format!(r#"{{"role": "user", "content": {long}}}"#),
            "content must be",
        ),
        (
            format!(r#"{{"role": "user", "content": "x", "n": 0{long}}}"#),
            "invalid number",
        ),
        (
            format!(r#"{{"role": "user", "content": "x", "n": {long}{long}-}}"#),
            "expected",
        ),
        (
            format!(r#"{{"role": "user", "content": "x", {long}: 1}}"#),
            "key must be",
        ),
        (
            format!(r#"{{"role": "user", "content": "x\", "n": {long}}}"#),
            "expected",
        ),
    ] {
        let error = shown
            .render(&format!(r#"{{"messages": [{message}]}}"#))
            .unwrap_err();
        assert!(
            matches!(&error, TextError::InvalidChat { reason: found } if found.contains(reason)),
            "{error}"
        );
    }
}

#[test]
fn what_has_a_field_of_its_own_is_no_variable_of_the_clients() {
    let shown = template("{{ messages[0].content }}{{ bos_token }}{{ mood }}");
    let render = |extra: Value| {
        let request =
            json!({"messages": [{"role": "user", "content": "x"}], "chat_template_kwargs": extra});
        shown.render(&request.to_string())
    };
    for name in [
        "messages",
        "tools",
        "documents",
        "add_generation_prompt",
        "continue_final_message",
        "chat_template",
        "tokenize",
    ] {
        let error =
            render(json!({"mood": 1, name: [{"role": "user", "content": "y"}]})).unwrap_err();
        assert!(matches!(error, TextError::OwnVariable { name: found } if found == name));
    }
    assert_eq!(
        render(json!({"mood": "glad", "bos_token": "<s>"})).unwrap(),
        "x<s>glad"
    );
}
