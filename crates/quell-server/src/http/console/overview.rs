//! Overview: what is decided now, what is refused and why, and who is banned.

use std::sync::Arc;
use std::time::Duration;

use askama::Template;
use axum::extract::{Request, State};
use quell_core::key::printable;
use quell_host::console::key_table::{Key, KeyTable, address, entries, key_rows};
use quell_host::console::page::{PageResult, Viewer, instant};
use quell_protocol::http::HealthStatus;
use quell_rules::ExactDuration;

use super::Console;
use crate::access::{Caller, Role};
use crate::history::{Change, Counts, Point, Span};
use crate::http::admin::{self, WantedBans, ban_hash};
use crate::http::health::{self, HealthBody};
use crate::http::top;
use crate::metrics::{ALLOWED, DENIED, UNMATCHED, WOULD_REFUSE};
use crate::shared::Shared;

/// Bans that are shown; `quell bans list` has the others.
const MAX_BANS: usize = 20;

/// The page.
#[derive(Template)]
#[template(path = "console/overview.html")]
struct OverviewPage<'a> {
    viewer: &'a Viewer,
    now: Now<'a>,
    bans: Bans<'a>,
    /// Numbers of the charts.
    spans: Vec<(&'static str, Tiles)>,
    /// Changes that people made lately.
    changes: Vec<Change>,
}

/// Values that change every second.
#[derive(Template)]
#[template(path = "console/now.html")]
pub(super) struct Now<'a> {
    viewer: &'a Viewer,
    /// `None` for a caller who is limited to some domains.
    health: Option<Arc<HealthBody>>,
    /// The last second: each number with its class.
    tiles: Option<Tiles>,
    /// Each domain with its queries since the server started: allowed, denied, denied in shadow, without a rule.
    domains: Vec<(String, [u64; 4])>,
    refused: Vec<Key>,
    /// Length of the window in which refusals are counted.
    window: String,
}

/// Bans in force.
#[derive(Template)]
#[template(path = "console/bans.html")]
pub(super) struct Bans<'a> {
    viewer: &'a Viewer,
    bans: Vec<Key>,
    /// Number of bans; of some domains that is not known.
    total: Option<usize>,
    /// True if there may be others.
    has_more: bool,
    /// Reason why there is no list.
    failure: Option<String>,
}

pub(super) async fn page(State(console): State<Arc<Console>>, request: Request) -> PageResult {
    let (shell, shared) = (&console.shell, &console.shared);
    let viewer = &shell.viewer(&request, &[Role::Read])?;
    let health = read_health(&console, &viewer.caller).await;
    let page = OverviewPage {
        viewer,
        now: Now::read(shared, viewer, health),
        bans: Bans::read(shared, viewer).await,
        spans: spans(shared),
        changes: changes(shared, &viewer.caller),
    };
    shell.page("Overview", viewer, &page)
}

/// Changes that a caller may see.
fn changes(shared: &Shared, caller: &Caller) -> Vec<Change> {
    let is_shown = |change: &Change| match &change.domain {
        Some(domain) => caller.reaches(domain),
        None => caller.is_whole(),
    };
    let changes = shared.history.changes().into_iter();
    changes.filter(is_shown).collect()
}

impl<'a> Now<'a> {
    fn refused_table(&self) -> KeyTable<'_> {
        let command = format!("quell top{}", self.viewer.url);
        KeyTable::refused(&self.refused, &self.window, Some(command))
    }

    /// Reads the values of this second that a person may see.
    pub(super) fn read(
        shared: &Shared,
        viewer: &'a Viewer,
        health: Option<Arc<HealthBody>>,
    ) -> Self {
        let caller = &viewer.caller;
        let last = shared.history.last().filter(|_| health.is_some());
        let domains = shared.metrics.rules.domains();
        let domains = domains.iter().filter(|(name, _)| caller.reaches(name));
        let domains = domains.map(|(name, tally)| {
            let numbers = [ALLOWED, DENIED, WOULD_REFUSE, UNMATCHED];
            (
                printable(name).into_owned(),
                numbers.map(|number| tally.sum(number)),
            )
        });
        let (refused, window) = top::most_refused(shared, caller);
        Self {
            viewer,
            health,
            tiles: last.as_ref().map(tiles),
            domains: domains.collect(),
            refused: key_rows(refused),
            window: words(window),
        }
    }
}

/// Health of the server, for which a shared store is asked. `None` for a caller who is limited to some
/// domains.
pub(super) async fn read_health(console: &Console, caller: &Caller) -> Option<Arc<HealthBody>> {
    match caller.is_whole() {
        true => Some(health::recent(&console.shared, &console.health).await),
        false => None,
    }
}

/// Numbers of the charts.
fn spans(shared: &Shared) -> Vec<(&'static str, Tiles)> {
    let spans = Span::ALL.into_iter().zip(["5 minutes", "hour", "day"]);
    let sums = spans.map(|(span, name)| Some((name, tiles(&shared.history.sum(span)?))));
    sums.flatten().collect()
}

/// Numbers, each with its name and its class.
type Tiles = [(&'static str, &'static str, String); 6];

fn tiles(point: &Point<Counts>) -> Tiles {
    let (counts, millis) = (&point.counts, point.millis);
    let within = |percent| {
        let edge = counts.percentile(percent);
        edge.map_or("–".to_owned(), |edge| ExactDuration(edge).to_string())
    };
    [
        ("allowed", "good", per_second(counts.allowed, millis)),
        ("denied", "bad", per_second(counts.denied, millis)),
        (
            "denied in shadow",
            "warn",
            per_second(counts.would_refuse, millis),
        ),
        ("answered degraded", "", per_second(counts.degraded, millis)),
        ("half decided within", "", within(50)),
        ("99 % decided within", "", within(99)),
    ]
}

impl<'a> Bans<'a> {
    fn table(&self) -> KeyTable<'_> {
        let command = format!("quell bans list{}", self.viewer.url);
        KeyTable::bans(&self.bans, self.shown(), Some(command))
    }

    /// The bans that a person may see.
    pub(super) async fn read(shared: &Arc<Shared>, viewer: &'a Viewer) -> Self {
        let wanted = WantedBans::longest(MAX_BANS);
        let (bans, total, has_more, failure) =
            match admin::bans(shared, wanted, &viewer.caller).await {
                Ok(body) => (body.bans, body.total, body.next.is_some(), None),
                Err(error) => (Vec::new(), None, false, Some(error.to_string())),
            };
        let bans = bans.into_iter().map(|ban| Key {
            address: match ban_hash(&ban, shared) {
                Some(_) => String::new(),
                None => address(&ban.domain, &ban.rule, Some(&ban.entries)),
            },
            entries: { ban_hash(&ban, shared) }.unwrap_or_else(|| entries(&ban.entries)),
            value: words(Duration::from_millis(ban.left_ms)),
            why: ban.why().map(Into::into),
            domain: ban.domain,
            rule: ban.rule,
        });
        Self {
            viewer,
            bans: bans.collect(),
            total,
            has_more,
            failure,
        }
    }

    /// Number that is shown, and the total.
    fn shown(&self) -> String {
        let shown = self.bans.len();
        match (self.total, self.has_more) {
            (Some(total), _) => format!("{shown} of {total}"),
            (None, true) => format!("the longest {shown}; there may be others"),
            (None, false) => format!("all {shown}"),
        }
    }
}

/// Rate per second, with a tenth below ten.
fn per_second(count: u64, millis: u64) -> String {
    let tenths = u128::from(count) * 10_000 / u128::from(millis.max(1));
    match tenths {
        1..100 => format!("{}.{}/s", tenths / 10, tenths % 10),
        _ => format!("{}/s", tenths / 10),
    }
}

/// Whole seconds, rounded up.
pub(super) fn words(time: Duration) -> String {
    let seconds = time.as_nanos().div_ceil(1_000_000_000);
    let seconds = u64::try_from(seconds).unwrap_or(u64::MAX);
    ExactDuration(Duration::from_secs(seconds)).to_string()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    #[test]
    fn rates_are_short() {
        for (count, millis, shown) in [
            (0, 0, "0/s"),
            (1, 1_000, "1.0/s"),
            (3, 2_000, "1.5/s"),
            (9_999, 1_000, "9999/s"),
            (10_005, 1_001, "9995/s"),
        ] {
            assert_eq!(per_second(count, millis), shown);
        }
    }

    #[test]
    fn what_strangers_wrote_is_escaped() {
        let key = |entries: &str| Key {
            domain: "shop".to_owned(),
            rule: "login".to_owned(),
            entries: entries.to_owned(),
            address: address("shop", "login", None),
            value: "1".to_owned(),
            why: Some("<i>\u{202e}".into()),
        };
        let wild = BTreeMap::from([("user".to_owned(), Some("<b>\u{202e}&\u{1b}[2J".to_owned()))]);
        let viewer = Viewer {
            caller: Caller::Anyone,
            url: " --url http://a:1".to_owned(),
            from: String::new(),
        };
        let bans = Bans {
            viewer: &viewer,
            bans: vec![key(&entries(&wild))],
            total: Some(1),
            has_more: false,
            failure: None,
        };
        let text = bans.render().unwrap();
        assert!(
            text.contains("user=&#60;b&#62;\\u{202e}&#38;\\u{1b}[2J"),
            "{text}"
        );
        assert!(text.contains("<td>&#60;i&#62;\\u{202e}</td>"), "{text}");
        assert!(text.contains("<code>quell bans list --url http://a:1</code>"));
    }
}
