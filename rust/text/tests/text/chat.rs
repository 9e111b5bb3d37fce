//! Chat templates against what transformers renders (`tests/chat_templates`), and what is refused.

use std::path::{Path, PathBuf};

use diptych_text::{ChatTemplate, TextError};
use serde::Deserialize;
use serde_json::{Map, Value, json};

#[derive(Deserialize)]
struct Case {
    name: String,
    template: String,
    special_tokens: Map<String, Value>,
    request: Value,
    expected: Option<String>,
    refused: Option<String>,
}

fn templates() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/chat_templates")
}

fn source(name: &str) -> String {
    std::fs::read_to_string(templates().join(name).with_extension("jinja")).unwrap()
}

fn load(template: &str, config: &Map<String, Value>) -> ChatTemplate {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("chat_template.jinja"), template).unwrap();
    std::fs::write(
        folder.path().join("tokenizer_config.json"),
        json!(config).to_string(),
    )
    .unwrap();
    ChatTemplate::from_folder(folder.path()).unwrap().unwrap()
}

pub(crate) fn template(source: &str) -> ChatTemplate {
    load(source, &Map::new())
}

fn render(template: &ChatTemplate, messages: &Value) -> Result<String, TextError> {
    template.render(&json!({"messages": messages}).to_string())
}

fn user(content: &Value) -> Value {
    json!([{"role": "user", "content": content}])
}

/// Loads a template from a folder with just these files.
fn folder(files: &[(&str, &str)]) -> Result<Option<ChatTemplate>, TextError> {
    let folder = tempfile::tempdir().unwrap();
    for (name, text) in files {
        let path = folder.path().join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }
    ChatTemplate::from_folder(folder.path())
}

fn hello(template: &ChatTemplate) -> String {
    render(template, &user(&json!("hello"))).unwrap()
}

#[test]
fn conversations_render_as_transformers_renders_them() {
    let cases = std::fs::read_to_string(templates().join("cases.json")).unwrap();
    let cases: Vec<Case> = serde_json::from_str(&cases).unwrap();
    assert!(cases.len() >= 25);
    for case in cases {
        let template = load(&source(&case.template), &case.special_tokens);
        match (
            template.render(&case.request.to_string()),
            case.expected,
            case.refused,
        ) {
            (Ok(text), Some(expected), None) => assert_eq!(text, expected, "{}", case.name),
            (Err(TextError::TemplateRefused { message }), None, Some(refused)) => {
                assert_eq!(message, refused, "{}", case.name);
            }
            (outcome, ..) => panic!("{}: {outcome:?}", case.name),
        }
    }
}

#[test]
fn text_parts_are_joined_by_newlines_where_the_template_takes_strings() {
    let template = template(&source("smollm2"));
    let parts = user(&json!([{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]));
    let joined = render(&template, &user(&json!("one\ntwo"))).unwrap();
    assert_eq!(render(&template, &parts).unwrap(), joined);
    assert!(joined.contains("user\none\ntwo<|im_end|>"));
}

#[test]
fn parts_that_are_no_text_are_refused_by_type() {
    let template = template(&source("smollm2"));
    let image = user(&json!([{"type": "image_url", "image_url": {"url": "x"}}]));
    let text = render(&template, &image).unwrap_err().to_string();
    assert!(
        text.contains("messages[0].content[0]") && text.contains("image_url"),
        "{text}"
    );
    assert!(render(&template, &user(&json!([{"type": "text"}]))).is_err());
    assert!(render(&template, &user(&json!([{}]))).is_err());
}

#[test]
fn requests_of_another_shape_are_refused_with_the_reason() {
    let template = template("{{ messages[0].content }}");
    let refused = |request: &str, reason: &str| match template.render(request) {
        Err(TextError::InvalidChat { reason: found }) => assert!(found.contains(reason), "{found}"),
        other => panic!("{request}: {other:?}"),
    };
    refused("{", "EOF");
    refused("{}", "missing field `messages`");
    refused(r#"{"messages": []}"#, "`messages` is empty");
    refused(
        r#"{"messages": [{"content": "x"}]}"#,
        "messages[0] has no `role`",
    );
    refused(
        r#"{"messages": [{"role": "user", "content": 7}]}"#,
        "messages[0].content must be",
    );
    refused(
        r#"{"messages": [{"role": "user"}], "seed": 1}"#,
        "unknown field `seed`",
    );
    let both = r#""add_generation_prompt": true, "continue_final_message": true"#;
    refused(
        &format!(r#"{{"messages": [{{"role": "user"}}], {both}}}"#),
        "both true",
    );
    refused(
        r#"{"messages": [{"role": "user"}], "continue_final_message": true}"#,
        "no text to continue",
    );
    let deep = format!("{}{}", "[".repeat(5_000), "]".repeat(5_000));
    refused(
        &format!(r#"{{"messages": [{{"role": "user", "x": {deep}}}]}}"#),
        "recursion limit",
    );
}

#[test]
fn an_unpaired_surrogate_is_refused() {
    let template = template("{{ messages[0].content }}");
    for escape in [r"\ud83d", r"\ude00", r"\ud83dx", r"\ud83d\ud83d"] {
        let request = format!(r#"{{"messages": [{{"role": "user", "content": "{escape}"}}]}}"#);
        assert!(
            matches!(
                template.render(&request),
                Err(TextError::InvalidChat { .. })
            ),
            "{escape}"
        );
    }
}

#[test]
fn a_message_that_the_template_does_not_print_cannot_be_continued() {
    let template = template("nothing of it");
    let request =
        r#"{"messages": [{"role": "assistant", "content": "x"}], "continue_final_message": true}"#;
    let text = template.render(request).unwrap_err().to_string();
    assert!(text.contains("cannot be continued"), "{text}");
}

#[test]
fn a_runaway_template_is_stopped() {
    let nested = "{% for a in range(10000) %}{% for b in range(10000) %}{% endfor %}{% endfor %}";
    let error = render(&template(nested), &user(&json!("x"))).unwrap_err();
    assert!(
        matches!(error, TextError::TemplateTooExpensive { .. }),
        "{error}"
    );
    let huge = "{{ 'x' * 100000000000 }}";
    assert!(render(&template(huge), &user(&json!("x"))).is_err());
}

#[test]
fn a_megabyte_of_conversation_is_no_runaway() {
    let messages: Vec<Value> = (0..10_000)
        .map(|_| json!({"role": "user", "content": "é".repeat(50)}))
        .collect();
    for name in ["smollm2", "llama3", "qwen"] {
        assert!(
            render(&template(&source(name)), &json!(messages))
                .unwrap()
                .len()
                > 1_000_000,
            "{name}"
        );
    }
}

#[test]
fn the_date_is_given_in_the_format_asked_for() {
    let now = render(
        &template("{{ strftime_now('%Y-%m-%d %%') }}"),
        &user(&json!("x")),
    )
    .unwrap();
    assert_eq!((now.len(), &now[..2], &now[10..]), (12, "20", " %"));
    let wrong = render(&template("{{ strftime_now('%!') }}"), &user(&json!("x"))).unwrap_err();
    assert!(wrong.to_string().contains("strftime_now"), "{wrong}");
}

#[test]
fn a_template_that_fails_says_where() {
    let error = render(
        &template("\n\n{{ messages[0].content.explode() }}"),
        &user(&json!("x")),
    )
    .unwrap_err();
    let text = error.to_string();
    assert!(
        matches!(error, TextError::TemplateFailed { .. })
            && text.contains("explode")
            && text.contains(":3"),
        "{text}"
    );
}

#[test]
fn templates_are_found_where_transformers_finds_them() {
    let config = r#"{"chat_template": "config {{ bos_token }}", "bos_token": {"content": "<s>"}}"#;
    let with_config = ("tokenizer_config.json", config);
    assert_eq!(
        hello(&folder(&[with_config]).unwrap().unwrap()),
        "config <s>"
    );
    let file = ("chat_template.jinja", "file {{ bos_token }}\n");
    assert_eq!(
        hello(&folder(&[with_config, file]).unwrap().unwrap()),
        "file <s>"
    );
    let map = (
        "special_tokens_map.json",
        r#"{"bos_token": "<m>", "eos_token": "</m>"}"#,
    );
    let both = folder(&[
        with_config,
        ("chat_template.jinja", "{{ bos_token }}{{ eos_token }}"),
        map,
    ]);
    assert_eq!(hello(&both.unwrap().unwrap()), "<s></m>");
}

#[test]
fn named_templates_are_chosen_by_the_presence_of_tools() {
    let config = r#"{"chat_template": [{"name": "default", "template": "plain"}, {"name": "tool_use", "template": "tools"}]}"#;
    let files = [
        ("chat_template.jinja", "plain"),
        ("additional_chat_templates/tool_use.jinja", "tools"),
    ];
    for files in [&[("tokenizer_config.json", config)][..], &files[..]] {
        let template = folder(files).unwrap().unwrap();
        assert_eq!(hello(&template), "plain");
        let request = r#"{"messages": [{"role": "user"}], "tools": [{}]}"#;
        assert_eq!(template.render(request).unwrap(), "tools");
    }
    let only_named = r#"{"chat_template": [{"name": "rag", "template": "x"}]}"#;
    let template = folder(&[("tokenizer_config.json", only_named)])
        .unwrap()
        .unwrap();
    let text = render(&template, &user(&json!("x")))
        .unwrap_err()
        .to_string();
    assert!(text.contains("rag"), "{text}");
}

#[test]
fn a_model_without_a_template_has_none_and_a_broken_one_is_an_error() {
    assert!(folder(&[]).unwrap().is_none());
    assert!(
        folder(&[("tokenizer_config.json", r#"{"chat_template": null}"#)])
            .unwrap()
            .is_none()
    );
    let error = |files: &[(&str, &str)]| folder(files).unwrap_err().to_string();
    let syntax = error(&[("chat_template.jinja", "{% for %}")]);
    assert!(
        syntax.contains("chat_template.jinja does not compile"),
        "{syntax}"
    );
    assert!(
        error(&[("tokenizer_config.json", "{")]).contains("tokenizer_config.json is not valid")
    );
    assert!(
        error(&[("tokenizer_config.json", r#"{"chat_template": 7}"#)])
            .contains("`chat_template` must be")
    );
    assert!(
        error(&[("tokenizer_config.json", r#"{"chat_template": [{}]}"#)]).contains("each entry")
    );
}

#[test]
fn what_a_template_does_not_show_is_refused() {
    let blind = template("{{ messages[0].content }} no_tools toolset");
    for name in ["tools", "documents"] {
        let mut request = json!({"messages": [{"role": "user", "content": "x"}]});
        request[name] = json!([{"name": "a"}]);
        let error = blind.render(&request.to_string()).unwrap_err();
        assert!(matches!(error, TextError::NotShown { name: found } if found == name));
        request[name] = json!(null);
        assert!(blind.render(&request.to_string()).is_ok());
    }
}

#[test]
fn a_conversation_that_grows_when_rendered_is_stopped_at_the_limit() {
    let twice = template("{% for m in messages %}{{ messages | tojson }}{% endfor %}");
    let messages: Vec<Value> = (0..1_000)
        .map(|_| json!({"role": "user", "content": "x".repeat(100)}))
        .collect();
    let request = json!({"messages": messages}).to_string();
    let error = twice.render_within(&request, 200_000).unwrap_err();
    assert!(matches!(
        error,
        TextError::RenderedTooLong { limit: 200_000 }
    ));
    let exact = template("12345");
    let request = r#"{"messages": [{"role": "user"}]}"#;
    assert_eq!(exact.render_within(request, 5).unwrap().text, "12345");
    assert!(exact.render_within(request, 4).is_err());
}

#[test]
fn a_rendered_prompt_tells_its_tools_and_where_the_answer_begins() {
    let tools = json!([{"type": "function", "function": {"name": "add"}}, {"name": "sub"}, {}]);
    let shown = template(
        "{{ tools | length }}{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}{{ '<a>' if add_generation_prompt }}",
    );
    let mut request = json!({"messages": [{"role": "user", "content": "so"}, {"role": "assistant", "content": "so and"}]});
    request["tools"] = tools;
    request["continue_final_message"] = true.into();
    let continued = shown
        .render_within(&request.to_string(), usize::MAX)
        .unwrap();
    assert_eq!(continued.tool_names, ["add", "sub"]);
    assert_eq!(
        (continued.text.as_str(), continued.answer_start),
        ("3<user>so<assistant>so and", 20)
    );
    request["continue_final_message"] = false.into();
    request["add_generation_prompt"] = true.into();
    let new = shown
        .render_within(&request.to_string(), usize::MAX)
        .unwrap();
    assert_eq!(new.answer_start, new.text.len());
}
