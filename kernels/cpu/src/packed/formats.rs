//! Which formats a model is packed in.

use std::str::FromStr;

use serde::{Deserialize, Serialize};

use super::error::PackedError;
use super::layout::Role;
use crate::matrix::{Encoding, Format};

/// The choice of formats for a whole model. Norms and biases are always float32.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Formats {
    /// Each tensor as the checkpoint stores it.
    #[serde(rename = "auto")]
    Stored,
    /// All in float32.
    #[serde(rename = "float32")]
    F32,
    /// All in bfloat16.
    #[serde(rename = "bfloat16")]
    Bf16,
    /// All in half floats.
    #[serde(rename = "float16")]
    F16,
    /// Signed bytes: a scale per output for queries, keys and attention's output, per 32 inputs (`Q8_0`) in the MLP, the
    /// embedding and the head. Values are projected in bfloat16.
    #[serde(rename = "int8")]
    Int8,
    /// Signed bytes with a scale per 32 inputs (`Q8_0`); the embedding and head too. Values are projected in bfloat16.
    #[serde(rename = "int8-g32")]
    Int8Group32,
    /// Four bits with scale and minimum per 32 inputs (`Q4_1`); the embedding and head in `Q8_0`.
    #[serde(rename = "int4")]
    Int4,
}

impl FromStr for Formats {
    type Err = PackedError;

    fn from_str(name: &str) -> Result<Self, PackedError> {
        // A GGUF file's own quantization is how it stores its tensors.
        let name = if name == "gguf" { "auto" } else { name };
        serde_json::from_value(name.into()).map_err(|_| {
            PackedError::Request(format!(
                "no weight format is called {name:?}: auto, gguf, float32, bfloat16, float16, int8, int8-g32 and int4 are"
            ))
        })
    }
}

impl std::fmt::Display for Formats {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str(match self {
            Self::Stored => "auto",
            Self::F32 => "float32",
            Self::Bf16 => "bfloat16",
            Self::F16 => "float16",
            Self::Int8 => "int8",
            Self::Int8Group32 => "int8-g32",
            Self::Int4 => "int4",
        })
    }
}

impl Formats {
    /// The format of a tensor of so many inputs whose parts are stored as `stored`; none if they have no format in
    /// common.
    pub(super) fn choose(
        self,
        roles: &[Role],
        inputs: usize,
        stored: &[Encoding],
    ) -> Option<Format> {
        if roles.iter().all(|&role| role == Role::Vector) {
            return Some(Format::F32);
        }
        if self == Self::Stored {
            return common(stored);
        }
        let formats = roles.iter().map(|&role| self.of(role, inputs));
        let [first, rest @ ..] = &*formats.collect::<Vec<_>>() else {
            return None;
        };
        rest.iter().all(|other| other == first).then_some(*first)
    }

    /// The format of a matrix where it does not follow the checkpoint's.
    ///
    /// What rounding costs is uneven (`make quality`): most of it comes from the values, the MLP and the head, so a scale
    /// per output is for the others.
    fn of(self, role: Role, inputs: usize) -> Format {
        let per_group = if Format::Q8_0.check(inputs).is_ok() {
            Format::Q8_0
        } else {
            Format::Int8
        };
        match (self, role) {
            (Self::Bf16, _) | (Self::Int8 | Self::Int8Group32, Role::Values) => Format::Bf16,
            (Self::F16, _) => Format::F16,
            (Self::Int8, Role::Linear) => Format::Int8,
            (Self::Int8, _) => per_group,
            (Self::Int8Group32, _) | (Self::Int4, Role::Vocabulary) => Format::Q8_0,
            (Self::Int4, _) => Format::Q4_1,
            (Self::F32 | Self::Stored, _) => Format::F32,
        }
    }
}

/// The format that keeps every part's numbers; float32 does it for any mixture of floats.
fn common(stored: &[Encoding]) -> Option<Format> {
    let (&first, rest) = stored.split_first()?;
    if rest.iter().all(|&other| other == first) {
        return Some(own_format(first));
    }
    let float =
        |encoding: &Encoding| matches!(encoding, Encoding::F32 | Encoding::Bf16 | Encoding::F16);
    stored.iter().all(float).then_some(Format::F32)
}

/// The format with the numbers of an encoding, bit for bit.
pub(super) fn own_format(encoding: Encoding) -> Format {
    match encoding {
        Encoding::F32 => Format::F32,
        Encoding::Bf16 => Format::Bf16,
        Encoding::F16 => Format::F16,
        Encoding::Q4_0 => Format::Q4_0,
        Encoding::Q4_1 => Format::Q4_1,
        Encoding::Q5_0 => Format::Q5_0,
        Encoding::Q8_0 => Format::Q8_0,
        Encoding::Q4K => Format::Q4K,
        Encoding::Q6K => Format::Q6K,
    }
}

/// The name of a format in a packed file.
pub(super) fn format_name(format: Format) -> &'static str {
    match format {
        Format::F32 => "F32",
        Format::Bf16 => "BF16",
        Format::F16 => "F16",
        Format::Int8 => "INT8",
        Format::Q8_0 => "Q8_0",
        Format::Q4_0 => "Q4_0",
        Format::Q4_1 => "Q4_1",
        Format::Q5_0 => "Q5_0",
        Format::Q4K => "Q4_K",
        Format::Q6K => "Q6_K",
    }
}

/// The format of that name.
pub(super) fn format_of(name: &str) -> Option<Format> {
    const ALL: [Format; 10] = [
        Format::F32,
        Format::Bf16,
        Format::F16,
        Format::Int8,
        Format::Q8_0,
        Format::Q4_0,
        Format::Q4_1,
        Format::Q5_0,
        Format::Q4K,
        Format::Q6K,
    ];
    ALL.into_iter().find(|&format| format_name(format) == name)
}
