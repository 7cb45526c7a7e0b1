//! Benchmarks of Quell and its rivals. Each command answers one question, says what the measurement
//! itself costs, and shows where Quell loses; rivals run in the same run under the same name.

use std::alloc::System;

use anyhow::Result;
use cap::Cap;
use clap::{Parser, Subcommand};

mod decide;
mod draws;
mod envoy;
mod headline;
mod machine;
mod memory;
mod overrides;
mod processes;
mod redis;
mod report;
mod server;
mod table;

/// Counts what is allocated, for `memory`; the hot paths that `decide` measures allocate nothing.
#[global_allocator]
static ALLOCATOR: Cap<System> = Cap::new(System, usize::MAX);

#[derive(Debug, Parser)]
#[command(about = "Quell beside its rivals", arg_required_else_help = true)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// What does one decision cost in process, compared with governor and with the least that it can
    /// cost?
    Decide(decide::Settings),
    /// Calls one limiter in a loop and does nothing else, for a profiler.
    Profile(decide::profile::Settings),
    /// How many bytes does a key cost, including all structures?
    Memory(memory::Settings),
    /// What does a fleet admit of a million calls per second, while demand moves, a coordinator dies, and a
    /// node dies?
    Headline(headline::Settings),
    /// What do many overrides on one rule cost?
    Overrides(overrides::Settings),
    /// What does a decision cost on the wire, compared with a Redis GET and a server that decides
    /// nothing?
    Server(server::Settings),
    /// Measures a question of Envoy beside the library limitador, and beside a service that decides nothing.
    Envoy(envoy::Settings),
    /// A service that `envoy` measures beside Quell; it starts it.
    #[command(hide = true)]
    EnvoyRival(envoy::rivals::Settings),
    /// What does one limit for many servers cost the Redis that they share?
    Redis(redis::Settings),
    /// What does a limit reach that is decided from leases, and how far from the limit does it end?
    Leased(redis::leased::Settings),
    /// What do more primaries of a Redis Cluster bring?
    Cluster(redis::cluster::Settings),
    /// One node of the fleet that `headline` measures; it starts it.
    #[command(hide = true)]
    HeadlineNode(headline::node::Settings),
    /// Measures one subject in a process of its own; `memory` starts it.
    #[command(hide = true)]
    MemoryOf(memory::subject::Settings),
}

fn main() -> Result<()> {
    match Arguments::parse().command {
        Command::Decide(settings) => decide::run(&settings),
        Command::Profile(settings) => decide::profile::run(&settings),
        Command::Memory(settings) => memory::run(&settings),
        Command::Headline(settings) => headline::run(&settings),
        Command::HeadlineNode(settings) => headline::node::run(&settings),
        Command::Overrides(settings) => overrides::run(&settings),
        Command::Server(settings) => server::run(&settings),
        Command::Envoy(settings) => envoy::run(&settings),
        Command::EnvoyRival(settings) => envoy::rivals::run(&settings),
        Command::Redis(settings) => redis::run(&settings),
        Command::Leased(settings) => redis::leased::run(&settings),
        Command::Cluster(settings) => redis::cluster::run(&settings),
        Command::MemoryOf(settings) => memory::subject::run(&settings),
    }
}
