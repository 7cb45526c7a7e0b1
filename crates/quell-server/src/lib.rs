//! The Quell server as a library: HTTP and RESP listeners, reload, metrics and persistence.
//!
//! A request goes one way: bytes, decoded by `quell-protocol`, asked of the
//! [`Limiter`](quell::Limiter), encoded by `quell-protocol`. Nothing here decides; `now` is read
//! once per request, where it has arrived in whole.
//!
//! ```no_run
//! # async fn run() -> Result<(), Box<dyn std::error::Error>> {
//! use quell_server::config::RawConfig;
//!
//! let config = RawConfig::from_toml("quell.toml", "rules = ['shop.yaml']")?.resolve()?;
//! let server = quell_server::serve(config).await?;
//! server.run_until_signal().await?;
//! # Ok(())
//! # }
//! ```
//!
//! Open first: `serve` (how a server comes up and goes down), `http::ask` and `resp::connection`
//! (a request's way through).

mod budget;
pub mod config;
mod connections;

mod decision_log;
mod error;
mod health;
mod http;
mod listen;
mod metrics;
mod reload;
mod resp;
mod rules;
mod serve;
mod shared;
mod snapshot;
mod store;
mod store_check;
mod stored_rules;
mod sweep;
mod telemetry;

pub use error::{DataDirError, ServeError};
pub use serve::{Server, ShutdownWait, serve, serve_with_clock};
