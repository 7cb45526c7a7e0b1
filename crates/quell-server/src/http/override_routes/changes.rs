//! `GET /v1/overrides/changes`: a stream of changes, as events that browsers and programs read (`text/event-stream`).
//!
//! An event is sent once this server decides by the change. Few bytes wait for a client that reads slowly: the next
//! changes are read when the last ones were sent.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::{Request, State};
use axum::http::Extensions;
use quell::override_store::{AppliedChange, Changes, OverrideId, Position};
use quell_host::access::LivePage;
use quell_host::console::shell;
use quell_protocol::escape_json;
use quell_protocol::http::{Problem, ProblemKind};
use serde::Serialize;
use serde_json::json;
use tokio::sync::watch;
use tokio::time::sleep;

use super::READERS;
use crate::access::Caller;
use crate::health::Phase;
use crate::http::caller::{address, caller_of_either};
use crate::http::reply::{self, RouteResult, parameters, unknown_parameter};
use crate::overrides::{WhichOverride, record_body};
use crate::shared::Shared;

/// Changes that are read at once.
const CHANGES: usize = 100;

/// Longest time without a byte: proxies close connections on which nothing moves for half a minute.
const HEARTBEAT: Duration = Duration::from_secs(10);

/// Pause after a store failed.
const RETRY: Duration = Duration::from_secs(1);

/// A client that follows changes.
struct Subscriber {
    shared: Arc<Shared>,
    caller: Caller,
    /// Of the credentials that the caller was recognised by.
    version: u64,
    /// Up to where the client has everything; `None`: it has to list first.
    since: Option<Position>,
    seen: watch::Receiver<Position>,
    phase: watch::Receiver<Phase>,
    has_begun: bool,
    heartbeat: Duration,
    _place: LivePage,
    /// The connection is in use as long as they are there.
    _extensions: Extensions,
}

pub(in crate::http) async fn changes(
    State(shared): State<Arc<Shared>>,
    request: Request,
) -> RouteResult {
    let caller = caller_of_either(&request, &READERS)?;
    let since = read_since(&request)?;
    let place = shared.overrides.streams.begin(&caller, address(&request));
    let place = place.map_err(|_| {
        let detail = "too many streams of changes are open: close some, or try again later";
        Problem::new(ProblemKind::Overloaded, detail)
    });
    let place = place.map_err(Box::new)?;
    let subscriber = Subscriber {
        version: shared.access.version(),
        since,
        seen: shared.overrides.positions(),
        phase: shared.phase.subscribe(),
        has_begun: false,
        heartbeat: HEARTBEAT.min(shared.config.idle_timeout / 3),
        _place: place,
        _extensions: request.extensions().clone(),
        caller,
        shared,
    };
    Ok(shell::events(subscriber, Subscriber::next))
}

/// The position after which a client wants changes: that of `since`, or of the last event that it has.
fn read_since(request: &Request) -> Result<Option<Position>, Box<Problem>> {
    let mut since = None;
    for (name, value) in parameters(request.uri().query()) {
        match &*name {
            "since" => since = Some(value.into_owned()),
            _ => return Err(unknown_parameter(&name, "since")),
        }
    }
    let last = request.headers().get("last-event-id");
    let last = last.and_then(|last| last.to_str().ok()).map(str::to_owned);
    let since = last.or(since).filter(|since| !since.is_empty());
    let read = |text: String| {
        let wrong = || {
            let detail =
                format!("since={text} is no position: write the `id` of an event, or leave it out");
            reply::invalid(detail)
        };
        Position::parse(&text).ok_or_else(wrong)
    };
    since.map(read).transpose()
}

impl Subscriber {
    /// The next events; `None` at the end of the stream.
    async fn next(mut self) -> Option<(String, Self)> {
        if !std::mem::replace(&mut self.has_begun, true) {
            return Some((": changes of overrides\n\n".to_owned(), self));
        }
        loop {
            let access = self.shared.access.version();
            if self.shared.is_stopping() || access != self.version {
                return None;
            }
            match self.read().await {
                Some(events) if !events.is_empty() => return Some((events, self)),
                Some(_) => {}
                None => {
                    if !self.pause().await {
                        return Some((":\n\n".to_owned(), self));
                    }
                }
            }
        }
    }

    /// Reads what the client lacks and may see. `None`: there is nothing, or the store fails.
    async fn read(&mut self) -> Option<String> {
        let store = self.shared.overrides.store();
        let Some(since) = &self.since else {
            let position = store.position().await.ok()?;
            let text = event("list", Some(&position), &json!({}));
            self.since = Some(position);
            return text;
        };
        match store.changes(since, CHANGES).await.ok()? {
            Changes::TooOld | Changes::Lost => {
                self.since = None;
                Some(String::new())
            }
            Changes::Since {
                changes, position, ..
            } => {
                if changes.is_empty() && position == *since {
                    return None;
                }
                let mut visible = { changes.iter() }
                    .filter(|change| self.caller.reaches(&change.id().domain))
                    .peekable();
                let mut events = String::new();
                while let Some(change) = visible.next() {
                    // Up to here the client has everything only after the last.
                    let id = visible.peek().is_none().then_some(&position);
                    events += &self.event_of(change, id)?;
                }
                self.since = Some(position);
                Some(events)
            }
        }
    }

    /// Waits until this server has seen more than the client. Returns false if nothing came for so long that a sign of
    /// life is due.
    async fn pause(&mut self) -> bool {
        let since = self.since.clone().unwrap_or_default();
        let is_more = move |seen: &Position| {
            seen.revision() > since.revision() || seen.identity() != since.identity()
        };
        let is_failing = self.shared.overrides.attempts.failure().is_some();
        tokio::select! {
            _ = self.phase.changed() => true,
            _ = self.seen.wait_for(is_more), if !is_failing => true,
            () = sleep(RETRY), if is_failing => true,
            () = sleep(self.heartbeat) => false,
        }
    }

    fn event_of(&self, change: &AppliedChange, id: Option<&Position>) -> Option<String> {
        match change {
            AppliedChange::Put(record) => {
                let wall = self.shared.limiter.now().wall;
                let in_force = self.shared.has_in_force(record, wall);
                event("put", id, &record_body(record, in_force))
            }
            AppliedChange::Deleted { id: name, revision } => {
                event("delete", id, &deleted_body(name, *revision))
            }
        }
    }
}

fn deleted_body(id: &OverrideId, revision: u64) -> serde_json::Value {
    let which = match id.has_end {
        true => WhichOverride::Boost,
        false => WhichOverride::Standing,
    };
    let entries = id.entries.iter();
    let entries: serde_json::Map<String, serde_json::Value> = entries
        .map(|(name, value)| (name.to_string(), (**value).into()))
        .collect();
    json!({
        "domain": &*id.domain,
        "rule": id.rule.as_deref().unwrap_or("*"),
        "entries": entries,
        "which": which.name(),
        "revision": revision,
    })
}

/// An event. JSON has no line but its own.
fn event(name: &str, id: Option<&Position>, data: &impl Serialize) -> Option<String> {
    let text = serde_json::to_string(data).ok()?;
    let id = id.map_or(String::new(), |id| format!("id: {id}\n"));
    Some(format!(
        "event: {name}\n{id}data: {}\n\n",
        escape_json(&text)
    ))
}
