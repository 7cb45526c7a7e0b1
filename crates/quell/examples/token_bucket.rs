//! Token bucket: a hundred calls at once, and one more every 10 ms.
//!
//! ```sh
//! cargo run -p quell --example token_bucket
//! ab -n 110 -c 1 http://127.0.0.1:3000/
//! ```
//!
//! 110 calls, 1 ms or more apart, all pass: while the hundred last, ten are refilled. The recipe that
//! this replaces keeps whole seconds and whole tokens, so a slow rate never refills.

use std::error::Error;
use std::time::Duration;

use axum::Router;
use axum::routing::get;
use quell::tower::{Entries, LimitLayer};
use quell::{Limit, LimitError, Rate};
use tokio::net::TcpListener;

pub(crate) fn app() -> Result<Router, LimitError> {
    let rate = Rate::new(1, Duration::from_millis(10))?;
    let limit = Limit::token_bucket(rate).burst(100);
    let layer = LimitLayer::each("hundred-at-once", limit, Entries::new().path())?;
    Ok(Router::new()
        .route("/", get(|| async { "hello" }))
        .layer(layer))
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let listener = TcpListener::bind("127.0.0.1:3000").await?;
    Ok(axum::serve(listener, app()?).await?)
}
