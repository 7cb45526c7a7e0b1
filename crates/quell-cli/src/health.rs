//! `quell health`: whether a running server is ready, for health checks of containers and for people.

use anyhow::Result;
use clap::Args;
use quell_protocol::http::{HealthStatus, StatusBody};

use crate::client::ServerUrl;
use crate::exit::Exit;
use crate::output;

/// Ask a running server whether it is ready for calls
///
/// Exit code 0 if it is, 1 if it is not: it is stopping, or has no rules yet. 3 if there is no answer. A
/// degraded server is ready; it answers, but needs an operator. No call is charged, and no token is needed.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  quell health
  quell health --url http://127.0.0.1:9090 --json")]
pub(crate) struct Health {
    #[command(flatten)]
    server: ServerUrl,

    /// Print the server's health as JSON; with the role read it says what is wrong
    #[arg(long)]
    json: bool,
}

impl Health {
    /// Asks, and prints the status.
    ///
    /// # Errors
    /// Why there is no answer.
    pub(crate) fn run(&self) -> Result<Exit> {
        let answer = self.server.client()?.get("/readyz")?;
        let is_ready = answer.is_good();
        let status = match answer.json::<StatusBody>() {
            Ok(body) => body.status,
            // A problem, such as too many connections.
            Err(error) => return Err(answer.good().err().unwrap_or(error)),
        };
        if self.json {
            output::json_text(&answer.text)?;
        } else {
            let not = if is_ready { "" } else { "not " };
            output::line(format_args!("{not}ready: {}", status.as_str()))?;
            if status == HealthStatus::Degraded {
                output::note("`quell health --json` says why");
            }
        }
        Ok(Exit::fine_if(is_ready))
    }
}
