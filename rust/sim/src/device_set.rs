//! Named sets: a device's coefficients with the sizes of an engine that suits it.

use crate::Error;
use crate::latency::Coefficients;

/// A device and the engine that is simulated on it unless told otherwise.
#[derive(Clone, Copy, Debug)]
pub struct DeviceSet {
    /// The name that options give.
    pub name: &'static str,
    /// Where the figures come from, for reports.
    pub origin: &'static str,
    /// Nanoseconds of everything.
    pub coefficients: Coefficients,
    /// Blocks of 16 tokens.
    pub blocks: u32,
    /// Tokens per step at most.
    pub max_batched_tokens: u32,
    /// Requests that run at once at most.
    pub max_running: u32,
    /// Prompt tokens that are computed together well.
    pub prefill_tile: u32,
    /// A latency that suits the device: target of the time between tokens, milliseconds.
    pub itl_ms: f64,
    /// Requests a second, of about 512 prompt and 128 output tokens, that load it by about half.
    pub rate: f64,
}

/// Two cores of Zen 4 with AVX-512 BF16, `SmolLM2`-135M in bfloat16, after `bench/results/peers.md`
/// and single steps: 9.5 / 14.8 / 31 ms at 1 / 8 / 32 decode rows of 256 tokens, and 1,700 tokens/s
/// of prefill in chunks of 512. KV: 23,040 bytes a token, 4 GiB.
const CPU_2CORE: DeviceSet = DeviceSet {
    name: "cpu-2core",
    origin: "from steps measured on 2 cores of Zen 4, SmolLM2-135M in bfloat16",
    coefficients: Coefficients {
        decode_step: 8.8e6,
        prefill_step: 5.0e6,
        mixed_step: 9.0e6,
        token: 5.1e5,
        prefill_pair: 190.0,
        decode_context: 770.0,
        row: 1.0e4,
        logits: 1.0e4,
    },
    blocks: 11_650,
    max_batched_tokens: 512,
    max_running: 256,
    prefill_tile: 16,
    itl_ms: 50.0,
    rate: 1.0,
};

/// H200 (4.8 TB/s, 989 TFLOP/s in bfloat16) with an 8-billion-parameter model of 32 layers and 8 KV
/// heads: 16 GB of weights at 80 % of the bandwidth, 131,072 bytes of KV a token at the same, products at 60 %
/// and prefill attention at 40 % of the peak. An estimate from these figures, nothing measured.
const H200: DeviceSet = DeviceSet {
    name: "h200",
    origin: "an estimate from the data sheet, 8-billion-parameter model in bfloat16",
    coefficients: Coefficients {
        decode_step: 4.5e6,
        prefill_step: 4.5e6,
        mixed_step: 5.0e6,
        token: 2.7e4,
        prefill_pair: 1.3,
        decode_context: 34.0,
        row: 2.0e3,
        logits: 1.0e3,
    },
    blocks: 52_000,
    max_batched_tokens: 8_192,
    max_running: 256,
    prefill_tile: 64,
    itl_ms: 30.0,
    rate: 16.0,
};

/// All named sets.
pub const DEVICE_SETS: [DeviceSet; 2] = [CPU_2CORE, H200];

impl DeviceSet {
    /// The set with this name.
    ///
    /// # Errors
    /// [`Error::Option`] with the known names.
    pub fn named(name: &str) -> Result<Self, Error> {
        DEVICE_SETS
            .into_iter()
            .find(|set| set.name == name)
            .ok_or_else(|| Error::option("device", name, "cpu-2core or h200"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::latency::Shape;

    fn decode_ms(rows: u32) -> f64 {
        let mut shape = Shape::default();
        for _ in 0..rows {
            shape.add_decode(256);
        }
        shape.logits = rows;
        CPU_2CORE.coefficients.time(&shape) / 1e6
    }

    #[test]
    fn the_cpu_set_reproduces_the_measured_steps_within_five_percent() {
        for (rows, measured) in [(1, 9.5), (8, 14.8), (32, 31.0)] {
            let modelled = decode_ms(rows);
            assert!(
                (modelled / measured - 1.0).abs() < 0.05,
                "{rows} rows: {modelled}"
            );
        }
        let mut shape = Shape::default();
        shape.add_prefill(0, 512);
        let rate = 512e9 / CPU_2CORE.coefficients.time(&shape);
        assert!((rate / 1700.0 - 1.0).abs() < 0.05, "{rate} tokens/s");
    }
}
