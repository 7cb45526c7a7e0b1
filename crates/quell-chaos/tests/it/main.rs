//! Tests of the harness itself; `cargo xtask chaos` tests the product with it.

#[cfg(test)]
mod cli;
