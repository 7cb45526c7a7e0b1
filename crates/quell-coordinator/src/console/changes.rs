//! Changes: what people changed through this coordinator, and what its leader took back.

use std::sync::Arc;

use crate::audit_trail::AuditEntry;
use askama::Template;
use axum::extract::{Request, State};
use quell_host::console::page::PageResult;

use super::Console;

pub(super) const PATH: &str = "/console/changes";

#[derive(Template)]
#[template(path = "fleet/changes.html")]
struct ChangesPage {
    changes: Vec<AuditEntry>,
}

pub(super) async fn page(State(console): State<Arc<Console>>, request: Request) -> PageResult {
    let viewer = console.shell.reader(&request)?;
    let changes = console.admin.trail.list();
    console
        .shell
        .page("Changes", &viewer, &ChangesPage { changes })
}
