//! Fixed window: each address may call each path five times in a minute, counted from the first call.
//!
//! ```sh
//! cargo run -p quell --example fixed_window
//! ab -n 10 http://127.0.0.1:3000/      # Non-2xx responses: 5
//! ```
//!
//! The recipe that this replaces counts with INCR and sets the expiry in a second step: a process
//! that dies in between leaves a key that is refused for ever. Here a window has no way not to end.

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
    let limit = Limit::fixed_window(5, Duration::from_secs(60));
    let layer = LimitLayer::each("five-a-minute", limit, entries)?;
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
