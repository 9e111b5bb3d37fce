//! Tool calls, written as one family of models writes them. Whatever such a grammar derives, the parser of answers reads as
//! exactly these calls.

use llguidance::api::{GrammarWithLexer, TopLevelGrammar};
use serde_json::{Value, json};

use crate::answer::ToolFormat;
use crate::error::TextError;
use crate::grammar::checks;
use crate::grammar::lark::{ANY, SOME, beginning, containing, literal, mark, up_to_mark, without};
use crate::grammar::source::with_white_space;
use crate::table::TokenTable;

/// Longest name that stands in the head of a call, in bytes.
const LONGEST_NAME: usize = 128;

/// A tool that may be called.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Function {
    pub name: String,
    /// The JSON schema of its arguments, as JSON; `None` for any object.
    pub parameters: Option<String>,
}

/// Calls of some tools, in one of the formats of calls.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Calls {
    pub(crate) format: &'static str,
    pub(crate) functions: Vec<Function>,
    /// Whether the answer is nothing but calls. Else it is text, and calls may stand in it.
    pub(crate) is_forced: bool,
    /// Whether more than one may be made.
    pub(crate) several: bool,
}

/// What the grammar of a format is made of.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CallRules<'a> {
    table: &'a TokenTable,
    calls: &'a Calls,
}

impl CallRules<'_> {
    /// A mark of the format.
    pub(crate) fn mark(&self, text: &str) -> String {
        mark(self.table, text)
    }

    /// Objects in a JSON list.
    pub(crate) fn list(&self) -> String {
        let more = self.more(",");
        format!("( \"[\" ws object{more} ws \"]\" )")
    }

    /// Objects one behind the other.
    pub(crate) fn chain(&self, separator: &str) -> String {
        format!("ws object{}", self.more(separator))
    }

    fn more(&self, separator: &str) -> String {
        if self.calls.several {
            format!(" ( ws {} ws object )*", literal(separator))
        } else {
            String::new()
        }
    }

    /// A name, and behind what stands between them the arguments. `None` if no name can be written so.
    pub(crate) fn named(&self, between: &str) -> Option<String> {
        let is_plain = |name: &str| {
            let mut letters = name.bytes();
            name.len() <= LONGEST_NAME
                && letters.all(|letter| letter.is_ascii_alphanumeric() || b"_-.".contains(&letter))
        };
        let functions = (0..).zip(&self.calls.functions);
        let named: Vec<String> = functions
            .filter(|(_, function)| is_plain(&function.name))
            .map(|(index, function): (usize, _)| {
                format!("{} {between} @arguments_{index}", literal(&function.name))
            })
            .collect();
        (!named.is_empty()).then(|| format!("( {} )", named.join(" | ")))
    }
}

impl Calls {
    pub(super) fn bytes(&self) -> usize {
        let bytes = |function: &Function| {
            function.name.len() + function.parameters.as_ref().map_or(0, String::len)
        };
        self.functions.iter().map(bytes).sum()
    }

    /// What the library compiles. Text before calls, or instead of them, does not begin with `thought`.
    pub(super) fn prepare(
        &self,
        table: &TokenTable,
        thought: Option<&str>,
    ) -> Result<TopLevelGrammar, TextError> {
        let mut top = TopLevelGrammar::from_lark(self.lark(table, thought));
        let mut patterns = 0;
        for (index, function) in self.functions.iter().enumerate() {
            let (schema, bytes) = self.schema(index, function)?;
            patterns += bytes;
            checks::pattern_bytes(patterns).map_err(|reason| TextError::InvalidGrammar {
                kind: "grammar of tool calls",
                reason,
            })?;
            top.grammars.push(GrammarWithLexer {
                name: Some(format!("arguments_{index}")),
                json_schema: Some(schema),
                ..GrammarWithLexer::default()
            });
        }
        Ok(top)
    }

    /// The schema of the arguments of one function, which are an object always, and the bytes of its patterns.
    fn schema(&self, index: usize, function: &Function) -> Result<(Value, usize), TextError> {
        let refused = |reason: String| TextError::InvalidFunction {
            name: self.functions[index].name.clone(),
            index,
            reason,
        };
        let Some(text) = &function.parameters else {
            return Ok((with_white_space(json!({"type": "object"})), 0));
        };
        let schema = serde_json::from_str(text).map_err(|error| refused(error.to_string()))?;
        let patterns = checks::schema(&schema).map_err(refused)?;
        let Value::Object(mut object) = schema else {
            return Err(refused("a schema of arguments is an object".to_owned()));
        };
        let is_object = |kind: &Value| kind == "object";
        let may_be_object = match object.get("type") {
            None => true,
            Some(Value::Array(kinds)) => kinds.iter().any(is_object),
            Some(kind) => is_object(kind),
        };
        if !may_be_object {
            let why = "its type is another than \"object\", and arguments are objects";
            return Err(refused(why.to_owned()));
        }
        object.insert("type".to_owned(), json!("object"));
        Ok((with_white_space(Value::Object(object)), patterns))
    }

    /// One function alone, to tell which of them is at fault.
    pub(super) fn alone(&self, index: usize) -> Result<TopLevelGrammar, TextError> {
        let (schema, _) = self.schema(index, &self.functions[index])?;
        Ok(TopLevelGrammar::from_json_schema(schema))
    }

    pub(super) fn functions(&self) -> &[Function] {
        &self.functions
    }

    fn lark(&self, table: &TokenTable, thought: Option<&str>) -> String {
        let format = ToolFormat::named(self.format);
        let rules = CallRules { table, calls: self };
        let body = format!("( {} )", (format.body)(&rules));
        let mut lines = if self.is_forced {
            self.forced(format, &rules, &body)
        } else {
            self.free(format, table, &body, thought)
        };
        let called = (0..self.functions.len()).map(|index| format!("called_{index}"));
        let called: Vec<String> = called.collect();
        let called = called.join(" | ");
        lines.push("ws: WS?".to_owned());
        lines.push(r"WS: /[ \n\r\t]{1,8}/".to_owned());
        lines.push(format!(
            r#"object: "{{" ws "\"name\"" ws ":" ws ( {called} ) ws "}}""#
        ));
        let member = literal(&literal(format.arguments));
        lines.push(format!(r#"behind_name: ws "," ws {member} ws ":" ws"#));
        for (index, function) in self.functions.iter().enumerate() {
            let name = Value::String(function.name.clone()).to_string();
            let name = literal(&name);
            lines.push(format!(
                "called_{index}: {name} behind_name @arguments_{index}"
            ));
        }
        lines.join("\n")
    }

    /// Calls and nothing else.
    fn forced(&self, format: &ToolFormat, rules: &CallRules<'_>, body: &str) -> Vec<String> {
        let open = format.syntax.open.iter();
        let marks: Vec<String> = open.map(|text| rules.mark(text)).collect();
        let marks = marks.join(" | ");
        let unit = match (marks.is_empty(), format.syntax.is_bare) {
            (true, _) => body.to_owned(),
            (false, true) => format!("( {marks} )? {body}"),
            (false, false) => format!("( {marks} ) {body}"),
        };
        let repeats = self.several && !format.syntax.is_bare;
        let start = if repeats { "unit ( ws unit )*" } else { "unit" };
        vec![format!("start: {start}"), format!("unit: {unit}")]
    }

    /// Text, and calls behind their marks, or instead of it.
    fn free(
        &self,
        format: &ToolFormat,
        table: &TokenTable,
        body: &str,
        thought: Option<&str>,
    ) -> Vec<String> {
        let syntax = &format.syntax;
        let mut lines = Vec::new();
        let mut refused = Vec::new();
        if let Some(thought) = thought {
            lines.push(format!("THOUGHT: {}", beginning(thought)));
            refused.push("THOUGHT".to_owned());
        }
        if syntax.is_bare {
            let brackets = if syntax.has_lists { r"[{\[]" } else { "[{]" };
            lines.push(format!(r"BARE: /\s*{brackets}/ {ANY}"));
            refused.push("BARE".to_owned());
        }
        let mut opened = Vec::new();
        let mut refused_in_text = refused.clone();
        for (index, text) in syntax.open.iter().enumerate() {
            let name = format!("opened_{index}");
            lines.push(up_to_mark(table, &name, text, &refused));
            opened.push(format!("{name} {body}"));
            let marked = format!("MARKED_{index}");
            lines.push(format!("{marked}: {}", containing(text)));
            refused_in_text.push(marked);
        }
        let opened = opened.join(" | ");
        let start = match (syntax.is_bare, self.several) {
            (true, _) if opened.is_empty() => format!("TEXT? | {body}"),
            (true, _) => format!("TEXT? | {body} | {opened}"),
            (false, true) => format!("( {opened} )* TEXT?"),
            (false, false) => format!("TEXT? | {opened}"),
        };
        lines.push(format!("start: {start}"));
        lines.push(format!("TEXT: {}", without(SOME, &refused_in_text)));
        lines
    }
}
