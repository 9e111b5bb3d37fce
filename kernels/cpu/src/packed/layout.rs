//! The tensors of a packed model: their names, shapes, and the checkpoint's tensors that each is made of.

use super::shape::LlamaShape;
use crate::simd::LANES;

/// How the rows of a packed tensor follow from those of its parts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Join {
    /// One part after the other.
    Concatenated,
    /// 16 rows of each part in turn.
    Interleaved,
}

/// What a tensor is for: formats differ by it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Role {
    /// Norms and biases: always f32.
    Vector,
    /// A projection of a layer, but for those below.
    Linear,
    /// The projection to values: what it rounds at a token that many others attend to, all of them read.
    Values,
    /// A projection of an MLP, the widest sums and the activations with most outliers.
    Mlp,
    /// The embedding, the head, or both in one.
    Vocabulary,
}

/// One tensor of a packed model.
#[derive(Clone, Debug)]
pub(super) struct Slot {
    pub(super) name: String,
    /// A vector has as many outputs as numbers, of one input.
    pub(super) outputs: usize,
    pub(super) inputs: usize,
    pub(super) parts: Vec<Part>,
    pub(super) join: Join,
}

/// A tensor of the checkpoint, by its Hugging Face name, with the shape that it must have.
#[derive(Clone, Debug)]
pub(super) struct Part {
    pub(super) name: String,
    pub(super) role: Role,
    pub(super) rows: usize,
    /// None for a vector.
    pub(super) inputs: Option<usize>,
}

impl Slot {
    /// What its first part is for.
    pub(super) fn role(&self) -> Role {
        self.parts[0].role
    }

    pub(super) fn is_vector(&self) -> bool {
        self.role() == Role::Vector
    }

    /// Each part as a tensor of its own, named `NAME.0` and so on: for parts that have no format in common. None where
    /// rows of different parts share a panel.
    pub(super) fn split(&self) -> Option<Vec<Slot>> {
        let (last, others) = self.parts.split_last()?;
        let whole = others.iter().all(|part| part.rows.is_multiple_of(LANES));
        if others.is_empty() || !whole || self.join != Join::Concatenated {
            return None;
        }
        let parts = others.iter().chain([last]).enumerate();
        let slots = parts.map(|(index, part)| Slot {
            name: format!("{}.{index}", self.name),
            outputs: part.rows,
            parts: vec![part.clone()],
            ..self.clone()
        });
        Some(slots.collect())
    }

    /// The part and its row that output `output` is, or none where it is padding.
    pub(super) fn origin(&self, output: usize) -> Option<(usize, usize)> {
        match self.join {
            Join::Concatenated => {
                let mut row = output;
                for (part, described) in self.parts.iter().enumerate() {
                    if row < described.rows {
                        return Some((part, row));
                    }
                    row -= described.rows;
                }
                None
            }
            Join::Interleaved => {
                let (panel, lane) = (output / LANES, output % LANES);
                let part = panel % self.parts.len();
                let row = panel / self.parts.len() * LANES + lane;
                (row < self.parts[part].rows).then_some((part, row))
            }
        }
    }
}

fn vector(name: String, part: String, size: usize) -> Slot {
    Slot {
        name,
        outputs: size,
        inputs: 1,
        parts: vec![Part {
            name: part,
            role: Role::Vector,
            rows: size,
            inputs: None,
        }],
        join: Join::Concatenated,
    }
}

fn vocabulary(name: &str, part: &str, shape: &LlamaShape) -> Slot {
    Slot {
        name: name.to_string(),
        outputs: shape.vocabulary,
        inputs: shape.hidden,
        parts: vec![Part {
            name: part.to_string(),
            role: Role::Vocabulary,
            rows: shape.vocabulary,
            inputs: Some(shape.hidden),
        }],
        join: Join::Concatenated,
    }
}

/// A projection of a layer: what it is called here, and its parts with their outputs.
struct Projection {
    name: &'static str,
    parts: Vec<(&'static str, Role, usize)>,
    join: Join,
    inputs: usize,
    padded_inputs: usize,
    bias: bool,
}

fn projections(shape: &LlamaShape) -> [Projection; 4] {
    let (hidden, wide) = (shape.hidden, shape.intermediate);
    let (queries, keys) = (
        shape.heads * shape.head_dim,
        shape.kv_heads * shape.head_dim,
    );
    let concatenated = |name, parts, inputs, bias| Projection {
        name,
        parts,
        join: Join::Concatenated,
        inputs,
        padded_inputs: inputs,
        bias,
    };
    let qkv = vec![
        ("self_attn.q_proj", Role::Linear, queries),
        ("self_attn.k_proj", Role::Linear, keys),
        ("self_attn.v_proj", Role::Values, keys),
    ];
    let gate_up = vec![
        ("mlp.gate_proj", Role::Mlp, wide),
        ("mlp.up_proj", Role::Mlp, wide),
    ];
    [
        concatenated("qkv", qkv, hidden, shape.qkv_bias),
        concatenated(
            "output",
            vec![("self_attn.o_proj", Role::Linear, hidden)],
            queries,
            shape.output_bias,
        ),
        Projection {
            join: Join::Interleaved,
            ..concatenated("gate_up", gate_up, hidden, shape.mlp_bias)
        },
        Projection {
            padded_inputs: shape.padded_intermediate(),
            ..concatenated(
                "down",
                vec![("mlp.down_proj", Role::Mlp, hidden)],
                wide,
                shape.mlp_bias,
            )
        },
    ]
}

fn projection_slots(projection: &Projection, layer: usize) -> Vec<Slot> {
    let outputs = match projection.join {
        Join::Concatenated => projection.parts.iter().map(|(_, _, rows)| rows).sum(),
        Join::Interleaved => projection
            .parts
            .iter()
            .map(|(_, _, rows)| rows.next_multiple_of(LANES))
            .sum(),
    };
    let slot = |kind: &str, inputs: Option<usize>| Slot {
        name: format!(
            "layers.{layer}.{}{}",
            projection.name,
            if kind == "bias" { "_bias" } else { "" }
        ),
        outputs,
        inputs: inputs.map_or(1, |_| projection.padded_inputs),
        parts: projection
            .parts
            .iter()
            .map(|&(part, role, rows)| Part {
                name: format!("model.layers.{layer}.{part}.{kind}"),
                role: inputs.map_or(Role::Vector, |_| role),
                rows,
                inputs,
            })
            .collect(),
        join: projection.join,
    };
    let mut slots = vec![slot("weight", Some(projection.inputs))];
    if projection.bias {
        slots.push(slot("bias", None));
    }
    slots
}

/// Every tensor of the packed model, in the order of a step.
pub(super) fn slots(shape: &LlamaShape) -> Vec<Slot> {
    let mut slots = vec![vocabulary("embedding", "model.embed_tokens.weight", shape)];
    for layer in 0..shape.layers {
        let norm = |name: &str, part: &str| {
            let part = format!("model.layers.{layer}.{part}.weight");
            vector(format!("layers.{layer}.{name}"), part, shape.hidden)
        };
        let [qkv, output, gate_up, down] = projections(shape);
        slots.push(norm("input_norm", "input_layernorm"));
        slots.extend(projection_slots(&qkv, layer));
        slots.extend(projection_slots(&output, layer));
        slots.push(norm("post_norm", "post_attention_layernorm"));
        slots.extend(projection_slots(&gate_up, layer));
        slots.extend(projection_slots(&down, layer));
    }
    slots.push(vector(
        "norm".to_string(),
        "model.norm.weight".to_string(),
        shape.hidden,
    ));
    if !shape.tied_embeddings {
        slots.push(vocabulary("head", "lm_head.weight", shape));
    }
    slots
}
