//! The Quell server as a library: HTTP and RESP listeners, reload, metrics and persistence.
//!
//! A request is decoded by `quell-protocol`, decided by the [`Limiter`](quell::Limiter), and its answer
//! encoded by `quell-protocol`. Nothing here decides. `now` is read once per request, when the whole
//! request has arrived.
//!
//! ```no_run
//! # async fn run() -> Result<(), Box<dyn std::error::Error>> {
//! use quell_server::config::RawConfig;
//!
//! let config = RawConfig::from_toml("quell.toml", "rules = ['shop.yaml']")?.resolve()?;
//! let server = quell_server::serve(config).await?;
//! tokio::signal::ctrl_c().await?;
//! server.shutdown().await?;
//! # Ok(())
//! # }
//! ```
//!
//! The process's signals belong to the main program, as in this example: `quell serve` has its own.
//!
//! Read first: `serve` (how a server starts and stops), `http::ask` and `resp::connection` (how a
//! request is answered).

mod candidate;
pub mod config;
mod connections;
mod decision_log;
mod envoy;
mod error;
mod failed_call;
mod fleet;
mod health;
mod history;
mod http;
mod key_hash;
mod metrics;
mod outage;
mod overrides;
mod reload;
mod resp;
mod rollout_tally;
mod rule_sources;
mod sample;
mod serve;
mod shared;
mod snapshot;
mod store;
mod store_check;
mod sweep;
mod telemetry;
mod top;
#[cfg(feature = "otel")]
mod traces;
#[cfg(not(feature = "otel"))]
#[path = "without_traces.rs"]
mod traces;

use quell_host::{access, address, budget, hang_up, listen, tls};

pub use address::Address;
pub use error::{DataDirError, ServeError};
pub use quell_envoy::config::ImportedRules;
pub use rule_sources::{OpenEtcd, import_envoy_config};
pub use serve::{Server, ShutdownWait, serve, serve_with_clock, serve_with_etcd};
pub use tls::{Tls, TlsError};

/// The examples of the crate's page.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
