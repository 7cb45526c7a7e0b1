//! Console: pages for people, at `/console`, where administration is.
//!
//! A page asks for what a route of `/v1` asks for, through the same functions, and has the same roles. A
//! person logs in with a password and gets a signed cookie (`session`); a token or a certificate counts as
//! everywhere. Pages work without scripts; with them, `live` sends what changes. What strangers wrote is
//! escaped by the templates. The `shell` is that of a coordinator's console as well.

use std::sync::Arc;

use axum::Router;
use axum::routing::get;

use super::health::RecentHealth;
use crate::shared::Shared;
use quell_host::console::host::Ingress;
use quell_host::console::key_table;
use quell_host::console::mount::mount;
use quell_host::console::page::Menu;
use quell_host::console::shell::{SERVER_URL, Shell};
use quell_host::console::{page, rule_pages, session, shell};
use quell_host::detach::DetachOnDisconnect as _;

pub(crate) mod host;
mod keys;
mod live;
mod override_form;
mod overrides;
pub(crate) mod overview;

pub(super) use quell_host::console::shell::HOME;

/// The pages of the menu, by title and path.
const MENU: Menu = &[
    ("Overview", HOME),
    ("Rules", rule_pages::PATH),
    ("Keys", key_table::KEYS_PATH),
    ("Overrides", overrides::PATH),
];

/// State that the pages of one server share.
#[derive(Debug)]
struct Console {
    shared: Arc<Shared>,
    shell: Arc<Shell>,
    health: RecentHealth,
}

/// The routes of the console.
pub(super) fn routes(shared: &Arc<Shared>) -> Router {
    let host: Arc<Shared> = Arc::clone(shared);
    let kind = (session::OF_SERVER, SERVER_URL);
    let header = shared.config.console_user_header.clone();
    let ingress = Ingress {
        is_secure: shared.tls.is_some(),
        user_header: header.map(|name| (name, shared.config.console_proxy.clone())),
    };
    let shell = Shell::new(host, ingress, kind, MENU);
    let console = Arc::new(Console {
        shared: Arc::clone(shared),
        shell: Arc::clone(&shell),
        health: RecentHealth::default(),
    });
    let pages = Router::new()
        .route(key_table::KEYS_PATH, get(keys::page).post(keys::act))
        .route(
            overrides::KEY_PATH,
            get(overrides::key).post(overrides::act),
        )
        .detach_on_disconnect()
        .route(HOME, get(overview::page))
        .route(overrides::PATH, get(overrides::list))
        .route("/console/live", get(live::stream))
        .route("/console/history.json", get(live::history))
        .with_state(console);
    let rules = rule_pages::routes(&shell, Arc::<Shared>::clone(shared));
    mount(&shell, pages.merge(rules))
}
