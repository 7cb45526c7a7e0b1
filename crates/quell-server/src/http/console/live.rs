//! Live: the stream of server-sent events that keeps an overview up to date, and the numbers of its
//! charts.

use std::sync::Arc;
use std::time::Duration;

use askama::Template as _;
use axum::extract::{Request, State};
use tokio::sync::watch;

use super::Console;
use super::overview::{Bans, Now, read_health};
use super::page::{Fields, PageError, PageResult};
use super::shell::{Watcher, chart_event, event, events};
use crate::access::Role;
use crate::health::Phase;
use crate::history::{Counts, Point, Span};
use crate::http::reply;
use quell_host::console::candidate::candidate_now;

/// Bans are read every so many seconds, since a shared store has to be asked for each.
const BANS_EVERY: u64 = 10;

/// An open stream.
struct Live {
    console: Arc<Console>,
    watcher: Watcher,
    points: watch::Receiver<u64>,
    phase: watch::Receiver<Phase>,
    /// True for the page of the candidate.
    of_candidate: bool,
    round: u64,
}

pub(super) async fn stream(State(console): State<Arc<Console>>, request: Request) -> PageResult {
    let viewer = console.shell.viewer(&request, &[Role::Read])?;
    let of_candidate = Fields::new(&request).get("of") == "candidate";
    if of_candidate {
        viewer.caller.check_whole()?;
    }
    let live = Live {
        watcher: Watcher::new(&console.shell, viewer, &request)?,
        points: console.shared.history.subscribe(),
        phase: console.shared.phase.subscribe(),
        of_candidate,
        round: 0,
        console,
    };
    Ok(events(live, |mut live| async {
        let events = live.next().await?;
        Some((events, live))
    }))
}

impl Live {
    /// The events of the next second. `None` ends the stream.
    async fn next(&mut self) -> Option<String> {
        if self.round > 0 {
            tokio::select! {
                changed = self.points.changed() => changed.ok()?,
                _ = self.phase.changed() => {}
            }
        }
        self.points.mark_unchanged();
        if self.watcher.is_over() {
            return None;
        }
        let (shared, viewer) = (&self.console.shared, self.watcher.viewer());
        if self.of_candidate {
            self.round = 1;
            return Some(event("now", &candidate_now(&**shared)));
        }
        let health = read_health(&self.console, &viewer.caller).await;
        let now = Now::read(shared, viewer, health);
        let mut events = event("now", &now.render().ok()?);
        if self.round.is_multiple_of(BANS_EVERY) {
            let bans = Bans::read(shared, viewer).await;
            events += &event("bans", &bans.render().ok()?);
        }
        if let Some(point) = shared.history.last().filter(|_| viewer.caller.is_whole()) {
            events += &chart_event("point", &numbers(&[point]))?;
        }
        self.round += 1;
        Some(events)
    }
}

/// Numbers that a chart draws: times, then allowed, denied, refused in shadow and degraded a second, then
/// the microseconds within which half and 99 of 100 were answered.
type ChartNumbers = (Vec<i64>, [Vec<Option<f64>>; 6]);

fn numbers(points: &[Point<Counts>]) -> ChartNumbers {
    let times = points.iter().map(|point| point.at).collect();
    let column = |of: fn(&Point<Counts>) -> Option<f64>| points.iter().map(of).collect();
    let numbers = [
        column(|p| Some(rate(p.counts.allowed, p.millis))),
        column(|p| Some(rate(p.counts.denied, p.millis))),
        column(|p| Some(rate(p.counts.would_refuse, p.millis))),
        column(|p| Some(rate(p.counts.degraded, p.millis))),
        column(|p| p.counts.percentile(50).map(micros)),
        column(|p| p.counts.percentile(99).map(micros)),
    ];
    (times, numbers)
}

/// For a chart alone, so a float is exact enough.
#[expect(clippy::cast_precision_loss, reason = "a chart has a thousand pixels")]
fn rate(count: u64, millis: u64) -> f64 {
    count as f64 * 1_000.0 / millis.max(1) as f64
}

fn micros(time: Duration) -> f64 {
    time.as_secs_f64() * 1e6
}

/// The numbers of the last minutes, of the last hour or of the last day.
pub(super) async fn history(State(console): State<Arc<Console>>, request: Request) -> PageResult {
    console.shell.reader(&request)?;
    let span = match request.uri().query() {
        None | Some("span=minutes") => Span::Minutes,
        Some("span=hour") => Span::Hour,
        Some("span=day") => Span::Day,
        Some(_) => {
            return Err(PageError::wrong(
                "write ?span=minutes, ?span=hour or ?span=day",
            ));
        }
    };
    let points = console.shared.history.points(span);
    Ok(reply::json(&numbers(&points)))
}
