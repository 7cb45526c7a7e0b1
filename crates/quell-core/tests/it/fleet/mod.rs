//! The fleet's plain functions as properties; its state machines are the simulator's.

mod apportion;
mod audit;
mod liar;
mod plan;
mod schedule;
