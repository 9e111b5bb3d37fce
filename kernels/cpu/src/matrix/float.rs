//! Packing of floating-point formats.
