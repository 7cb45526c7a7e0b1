//! The server over real sockets, on free ports.

mod harness;
mod questions;
mod wire;
