//! Packing of quantized formats.
