//! Figure.
