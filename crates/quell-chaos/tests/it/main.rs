//! Tests of the harness itself; what it finds out about the product, `cargo xtask chaos` says.

#[cfg(test)]
mod cli;
