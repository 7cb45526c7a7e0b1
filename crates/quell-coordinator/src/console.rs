//! Console of a coordinator: the fleet for people, at `/console` of `--admin`. Its frame, with login and
//! sessions, is the one of servers; its changes are those of the API for operators.

mod change;
mod changes;
mod chart;
mod node_now;
mod overview;
mod page_query;
mod pages;
mod rollout;
mod tester;

use std::sync::Arc;
use std::time::Duration;

use crate::admin::{Admin, Change};
use crate::audit_trail::Author;
use crate::gate::Peer;
use crate::status::FleetStatus;
use axum::Router;
use axum::extract::{Request, State};
use axum::middleware::{self, Next};
use axum::response::Response;
use axum::routing::get;
use quell_host::console::mount::mount;
use quell_host::console::page::{Done, Fields, Menu, Viewer};
use quell_host::console::rule_pages;
use quell_host::console::shell::Shell;
use quell_host::rules_host::RulesHost;
use quell_host::shell_word::quoted;
use tokio::sync::watch;
use tokio::task::block_in_place;
use tokio::time::{MissedTickBehavior, interval};

use crate::history::{History, LOOK_EVERY};

const HOME: &str = "/console";

/// Path for rollouts.
pub(crate) const ROLLOUT: &str = rollout::PATH;

/// The pages of the menu.
pub(crate) const MENU: Menu = &[
    ("Fleet", HOME),
    ("Rules", "/console/rules"),
    ("Try it", tester::PATH),
    ("Rollout", rollout::PATH),
    ("Changes", changes::PATH),
];

/// Time between the updates of a live page.
const EVERY: Duration = Duration::from_secs(1);

/// Charts are written to their file every so many seconds, and at a stop: a crash loses that much of them.
const WRITE_EVERY: u64 = 60;

/// Shared state of a coordinator's pages.
#[derive(Debug)]
pub(crate) struct Console {
    admin: Arc<Admin>,
    shell: Arc<Shell>,
    rules: Arc<dyn RulesHost>,
    /// The fleet a moment ago; changes every second while somebody looks.
    now: watch::Sender<Option<Arc<FleetStatus>>>,
    history: History,
}

impl Console {
    pub(crate) fn new(
        admin: Arc<Admin>,
        shell: Arc<Shell>,
        rules: Arc<dyn RulesHost>,
    ) -> Arc<Self> {
        Arc::new(Self {
            history: History::open(admin.trail.beside("shares")),
            shell,
            rules,
            now: watch::Sender::new(None),
            admin,
        })
    }

    /// The routes.
    pub(crate) fn pages(self: &Arc<Self>) -> Router {
        let pages = Router::new()
            .route(HOME, get(overview::page))
            .route("/console/live", get(overview::live))
            .route(rollout::PATH, get(rollout::page).post(rollout::act))
            .route(changes::PATH, get(changes::page))
            .route(tester::PATH, get(tester::page))
            .route("/console/preview", get(pages::preview))
            .route("/console/register", get(pages::register))
            .route("/console/node/{member}", get(pages::node).post(pages::act))
            .with_state(Arc::clone(self));
        let identify = middleware::from_fn_with_state(Arc::clone(&self.shell), identify);
        let pages = pages.merge(rule_pages::routes(&self.shell, Arc::clone(&self.rules)));
        let candidate = self.shell.candidate(Arc::clone(&self.rules));
        mount(&self.shell, pages).merge(candidate).layer(identify)
    }

    /// Makes the change that a form asks for.
    async fn make(
        &self,
        viewer: &Viewer,
        form: &Fields,
        asked: Result<(Change, String), String>,
    ) -> Done {
        let (change, done) = asked?;
        let by = viewer.caller.grant().map(|grant| grant.name().as_str());
        let author = Author {
            by: by.unwrap_or("anyone").to_owned(),
            from: viewer.from.clone(),
            why: form.word("reason").to_owned(),
        };
        let mut command = change.command();
        if !author.why.is_empty() {
            command += &format!(" --reason {}", quoted(&author.why));
        }
        command += &viewer.url;
        let made = self.admin.change(&author, change).await;
        made.map(|()| Some((done, command)))
            .map_err(|problem| problem.detail.unwrap_or_default())
    }

    /// Writes what the charts show to its file, if there is one.
    pub(crate) fn write(&self) {
        block_in_place(|| self.history.write());
    }

    /// Looks at the fleet, for ever: every second while a page is kept up to date, and for the charts.
    pub(crate) async fn run(&self) {
        let mut ticks = interval(EVERY);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        for tick in 0_u64.. {
            ticks.tick().await;
            let is_point = tick.is_multiple_of(LOOK_EVERY);
            if !is_point && self.now.receiver_count() == 0 {
                continue;
            }
            let status = Arc::new(FleetStatus::from_service(&self.admin.service).await);
            if is_point && status.leads {
                self.history.add(&status);
                if tick.is_multiple_of(WRITE_EVERY) {
                    self.write();
                }
            }
            self.now.send_replace(Some(status));
        }
    }
}

/// Says who sends a request.
async fn identify(State(shell): State<Arc<Shell>>, mut request: Request, next: Next) -> Response {
    let peer = request.extensions().get::<Peer>().cloned();
    if let Some(peer) = peer {
        shell.identify(&mut request, peer.ip(), peer.certificate.as_deref());
    }
    next.run(request).await
}
