//! Trail: what people changed through this coordinator, and what its leader took back.

use std::sync::Arc;

use askama::Template;
use axum::extract::{Request, State};
use quell_coordinator::status::FleetStatus;
use quell_coordinator::trail::Noted;
use quell_server::console::PageResult;

use super::Console;

pub(super) const PATH: &str = "/console/changes";

#[derive(Template)]
#[template(path = "fleet/changes.html")]
struct ChangesPage {
    changes: Vec<Noted>,
}

pub(super) async fn page(State(console): State<Arc<Console>>, request: Request) -> PageResult {
    let viewer = console.shell.reader(&request)?;
    let mut changes = console.admin.trail.list();
    let status = FleetStatus::of(&console.admin.service).await;
    changes.extend(status.taken_back.map(|back| Noted {
        at_ms: back.at_ms,
        by: "the leader".to_owned(),
        what: "took the rollout back".to_owned(),
        why: back.why,
    }));
    changes.sort_by_key(|change| std::cmp::Reverse(change.at_ms));
    console
        .shell
        .page("Changes", &viewer, &ChangesPage { changes })
}
