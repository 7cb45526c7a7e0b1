//! Rules from a file, in front of an axum app: every limit of a domain, charged together or not at all.
//!
//! ```sh
//! cargo run -p quell --example rules_file -- examples/shop.yaml
//! ab -n 10 -p /dev/null http://127.0.0.1:3000/login      # Non-2xx responses: 5
//! ```

use std::error::Error;
use std::net::SocketAddr;
use std::path::Path;

use axum::Router;
use axum::extract::ConnectInfo;
use axum::http::HeaderName;
use axum::routing::{get, post};
use quell::Limiter;
use quell::store::memory::MemoryStore;
use quell::tower::{Entries, LimitLayer, RemoteAddress};
use tokio::net::TcpListener;

pub(crate) fn app(rules: &Path) -> Result<Router, Box<dyn Error>> {
    let limiter = Limiter::new(MemoryStore::new());
    let loaded = quell_rules::load(&[rules]).map_err(|problems| {
        let problems = problems.iter().map(ToString::to_string);
        problems.collect::<Vec<_>>().join("\n")
    })?;
    limiter.set_rules(loaded.domains)?;

    let address = RemoteAddress::new(|connected: &ConnectInfo<SocketAddr>| Some(connected.0));
    let entries = Entries::new()
        .method()
        .path()
        .remote_address(address)
        .header("tenant", HeaderName::from_static("x-tenant"))
        .header("user", HeaderName::from_static("x-user"));
    Ok(Router::new()
        .route("/login", post(|| async { "welcome" }))
        .route("/checkout", get(|| async { "thank you" }))
        .layer(LimitLayer::new(limiter, "shop", entries)))
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let rules = std::env::args().nth(1).ok_or("which file of rules?")?;
    let app = app(rules.as_ref())?.into_make_service_with_connect_info::<SocketAddr>();
    let listener = TcpListener::bind("127.0.0.1:3000").await?;
    Ok(axum::serve(listener, app).await?)
}
