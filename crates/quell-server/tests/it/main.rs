//! The server over real sockets, on free ports.

mod admin;
mod authorize;
mod decision_log;
mod harness;
mod persistence;
mod pressure;
mod questions;
mod reload;
mod shutdown;
mod wire;
