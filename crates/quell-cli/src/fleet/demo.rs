//! `quell fleet demo`: three nodes of one process share a limit, and what happens to them is shown.

use std::time::Duration;

use anyhow::{Context, Result};
use clap::Args;
use quell_coordinator::demo::Demo;
use quell_rules::parse_duration;

use crate::entry;
use crate::exit::Exit;
use crate::output;

/// Watch three nodes share a limit while demand moves, a node dies, and the coordinator stops
///
/// Everything runs in this process, on ports that the system picks, and nothing is left behind.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  quell fleet demo
  quell fleet demo --for 1m --rate 20000")]
pub(super) struct RunDemo {
    /// Duration of the demonstration; Ctrl-C ends it before
    #[arg(
        long = "for",
        value_name = "DURATION",
        default_value = "30s",
        value_parser = length
    )]
    length: Duration,

    /// The limit of all nodes together, in calls per second
    #[arg(long, value_name = "N", default_value = "1000", value_parser = rate)]
    rate: u64,
}

fn length(text: &str) -> Result<Duration, String> {
    match parse_duration(text)? {
        length if (6..=3_600).contains(&length.as_secs()) => Ok(length),
        _ => Err("write 6s to 1h: each of six scenes needs a second".to_owned()),
    }
}

fn rate(text: &str) -> Result<u64, String> {
    match entry::whole::<u64>(text)? {
        rate @ 100..=100_000 => Ok(rate),
        _ => Err("write 100 to 100000 calls per second".to_owned()),
    }
}

impl RunDemo {
    /// Plays until the end, or until Ctrl-C.
    ///
    /// # Errors
    /// Why it cannot begin.
    pub(super) fn run(&self) -> Result<Exit> {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .enable_all()
            .build();
        let runtime = runtime.context("cannot start the threads of the demo")?;
        let exit = runtime.block_on(async {
            let mut demo = Demo::open(self.rate).await?;
            tokio::select! {
                played = demo.play(self.length, |line| Ok(output::line(line)?)) => played?,
                stopped = tokio::signal::ctrl_c() => stopped.context("cannot wait for Ctrl-C")?,
            }
            let result = demo.close().await?;
            output::line(result)?;
            Ok(Exit::fine_if(result.is_within_limit()))
        });
        runtime.shutdown_background();
        exit
    }
}
