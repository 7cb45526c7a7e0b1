//! Sliding window: each address may call each path five times in any second, wherever it begins.
//!
//! ```sh
//! cargo run -p quell --example sliding_window
//! ab -n 10 http://127.0.0.1:3000/
//! ```
//!
//! The window is cut into five segments of 200 ms, like the grid of the recipe that this replaces.
//! There, refused calls stay in the sorted set, so whoever keeps asking is never let in again; here a
//! refusal costs nothing.

use std::error::Error;
use std::net::SocketAddr;
use std::time::Duration;

use axum::Router;
use axum::extract::ConnectInfo;
use axum::routing::get;
use quell::tower::{Entries, LimitLayer, RemoteAddress};
use quell::{Limit, LimitError};
use tokio::net::TcpListener;

pub(crate) fn app() -> Result<Router, LimitError> {
    let address = RemoteAddress::new(|connected: &ConnectInfo<SocketAddr>| Some(connected.0));
    let entries = Entries::new().remote_address(address).path();
    let limit = Limit::sliding_window(5, Duration::from_secs(1)).segments(5);
    let layer = LimitLayer::each("five-in-any-second", limit, entries)?;
    Ok(Router::new()
        .route("/", get(|| async { "hello" }))
        .layer(layer))
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let app = app()?.into_make_service_with_connect_info::<SocketAddr>();
    let listener = TcpListener::bind("127.0.0.1:3000").await?;
    Ok(axum::serve(listener, app).await?)
}
