//! Leaky bucket: calls leave at twenty a second; up to ten stand in line, more are refused.
//!
//! ```sh
//! cargo run -p quell --example leaky_bucket
//! ab -n 10 -c 10 http://127.0.0.1:3000/      # all succeed, in 0.45 s or more
//! ```
//!
//! A call that has to wait is asleep in the layer, so the handler sees an even stream. The recipe
//! that this replaces keeps the next instant of a drip in a sorted set that never expires.

use std::error::Error;
use std::time::Duration;

use axum::Router;
use axum::routing::get;
use quell::tower::{Entries, LimitLayer};
use quell::{Limit, LimitError, Rate};
use tokio::net::TcpListener;

pub(crate) fn app() -> Result<Router, LimitError> {
    let rate = Rate::new(20, Duration::from_secs(1))?;
    let limit = Limit::leaky_bucket(rate).burst(10);
    let layer = LimitLayer::each("twenty-a-second", limit, Entries::new().path())?;
    Ok(Router::new()
        .route("/", get(|| async { "hello" }))
        .layer(layer))
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let listener = TcpListener::bind("127.0.0.1:3000").await?;
    Ok(axum::serve(listener, app()?).await?)
}
