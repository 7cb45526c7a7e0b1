//! Traces: spans of questions that were refused, degraded, slow or failed, sent to a collector over OTLP.
//!
//! Whether a question gets a span is decided when it is answered, so a question without one costs what it
//! costs anyway. A span goes into a bounded queue; what finds no room there is counted as dropped. One
//! task sends what has come, pauses, and sends again. So no answer waits for a collector, and a flood of
//! refusals is a bounded number of spans.
//!
//! The caller's context (W3C `traceparent` and `tracestate`) is the parent of the span. It is parsed only
//! for a question that gets one. If the caller does not record its trace, there is no span either: its
//! parent would be missing.

use std::str;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use axum::http::HeaderMap;
use opentelemetry::propagation::{Extractor, TextMapPropagator};
use opentelemetry::trace::{SpanContext, SpanId, SpanKind, Status, TraceContextExt, TraceFlags};
use opentelemetry::{Context, InstrumentationScope, KeyValue};
use opentelemetry_sdk::propagation::TraceContextPropagator;
use opentelemetry_sdk::trace::{IdGenerator, RandomIdGenerator, SpanData, SpanEvents, SpanLinks};
use parking_lot::Mutex;
use quell::clock::Clock;
use quell::observer::Event;
use quell::store::StoreError;
use quell::store::memory::HashKey;
use quell::{AskError, Operation, Verdict};
use quell_core::charge::LimitSet;
use quell_core::decision::RetryAfter;
use quell_core::time::Now;
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;

use crate::config::Config;
use crate::error::ServeError;
use crate::failed_call::FailedCall;
use crate::key_hash::KeyHash;
use crate::metrics::Metrics;
use crate::sample::one_in;
use quell_host::refused_key::AD_HOC_RULE;

mod export;

/// Spans that wait to be sent: two kilobytes each at most, if names are not long.
const QUEUE: usize = 1_024;

/// The longest `tracestate` that is passed on: W3C asks for 512 bytes, and callers can send much more.
const MAX_TRACE_STATE: usize = 512;

/// Picks questions, makes their spans, and passes them on.
#[derive(Debug)]
pub(crate) struct Traces {
    queue: mpsc::Sender<SpanData>,
    slower_than: Duration,
    /// The share of other questions that get a span; 0: none.
    one_in: u64,
    store: &'static str,
    secret: HashKey,
    scope: InstrumentationScope,
    metrics: Arc<Metrics>,
    /// Ends the task that sends.
    sending: Mutex<Option<(oneshot::Sender<()>, JoinHandle<()>)>>,
}

/// Part of an answer that its span shows.
struct SpanAnswer<'a> {
    now: Now,
    operation: Operation,
    domain: &'a str,
    rule: Option<&'a str>,
    retry_after: Option<RetryAfter>,
    degraded: bool,
    would_refuse: bool,
    waited: Duration,
    /// The bytes of the key that binds.
    key: Option<&'a [u8]>,
    /// The fields of the request, as lines.
    context: &'a [u8],
}

/// Parts of a span that differ between spans.
struct SpanParts {
    name: &'static str,
    begun: Now,
    lasted: Duration,
    parent: Option<SpanContext>,
    attributes: Vec<KeyValue>,
    status: Status,
}

const fn name_of(operation: Operation) -> &'static str {
    match operation {
        Operation::Acquire => "quell acquire",
        Operation::Peek => "quell peek",
    }
}

impl Traces {
    /// Begins to send spans, if the configuration says where to.
    ///
    /// # Errors
    /// If the endpoint cannot be used, whether or not a collector is there.
    pub(crate) fn open(
        config: &Config,
        secret: HashKey,
        metrics: &Arc<Metrics>,
    ) -> Result<Option<Arc<Self>>, ServeError> {
        let Some(endpoint) = &config.otlp_endpoint else {
            return Ok(None);
        };
        let exporter = export::exporter(endpoint)?;
        let (queue, spans) = mpsc::channel(QUEUE);
        let (stop, stopping) = oneshot::channel();
        let task = tokio::spawn(export::run(spans, exporter, stopping, Arc::clone(metrics)));
        Ok(Some(Arc::new(Self {
            queue,
            slower_than: config.trace_slower_than,
            one_in: config.trace_one_in as u64,
            store: config.store.as_ref().map_or("memory", |_| "redis"),
            secret,
            scope: InstrumentationScope::builder("quell")
                .with_version(env!("CARGO_PKG_VERSION"))
                .build(),
            metrics: Arc::clone(metrics),
            sending: Mutex::new(Some((stop, task))),
        })))
    }

    /// Sends what has come, for at most as long as this, and ends.
    pub(crate) async fn stop(&self, at_most: Duration) {
        let Some((stop, mut task)) = self.sending.lock().take() else {
            return;
        };
        // If it is gone it has ended already.
        let _ = stop.send(());
        if tokio::time::timeout(at_most, &mut task).await.is_err() {
            task.abort();
            tracing::warn!("the collector of traces does not answer: the last spans are lost");
        }
    }

    /// The fields of a request that a span needs, as lines; no allocation if there are none.
    pub(crate) fn context(headers: &HeaderMap) -> Vec<u8> {
        let mut lines = Vec::new();
        for name in ["traceparent", "tracestate"] {
            if let Some(value) = headers.get(name) {
                lines.extend_from_slice(name.as_bytes());
                lines.push(b':');
                lines.extend_from_slice(value.as_bytes());
                lines.push(b'\n');
            }
        }
        lines
    }

    /// Makes a span of an answer that is to have one. `took` is how long the answer took, if that was
    /// measured.
    pub(crate) fn note(&self, event: &Event<'_>, took: Option<Duration>, clock: &dyn Clock) {
        let is_noteworthy = match event {
            Event::Query { verdict, .. } => !verdict.is_allow() || verdict.degraded,
            Event::AdHoc { decision, .. } => !decision.outcome.is_allow(),
        };
        let is_slow = || took.is_some_and(|took| took >= self.slower_than);
        if is_noteworthy || is_slow() || (self.one_in > 0 && one_in(self.one_in)) {
            self.queue_span(&SpanAnswer::new(event), took, clock);
        }
    }

    /// A place in the queue, and the caller's span, if it named one. `None` if the queue is full, or if
    /// the caller does not record its trace.
    fn reserve(&self, context: &[u8]) -> Option<(SpanPermit<'_>, Option<SpanContext>)> {
        let Ok(place) = self.queue.try_reserve() else {
            self.metrics.spans_dropped.add(1);
            return None;
        };
        let parent = parent(context);
        if parent.as_ref().is_some_and(|parent| !parent.is_sampled()) {
            return None;
        }
        Some((place, parent))
    }

    #[cold]
    fn queue_span(&self, answer: &SpanAnswer<'_>, took: Option<Duration>, clock: &dyn Clock) {
        let Some((place, parent)) = self.reserve(answer.context) else {
            return;
        };
        let took = took.unwrap_or_else(|| clock.monotonic().since(answer.now.monotonic));
        place.send(self.span(SpanParts {
            name: name_of(answer.operation),
            begun: answer.now,
            lasted: took + answer.waited,
            parent,
            attributes: self.attributes(answer),
            // A refusal is no error: the limit does what it is for.
            status: Status::Unset,
        }));
    }

    /// Makes a span of a call that the store did not answer. Mistakes of callers, such as a domain that is
    /// unknown, have none.
    #[cold]
    pub(crate) fn note_failure(&self, failed: &FailedCall<'_>, error: &AskError, now: Now) {
        let is_failure = matches!(
            error,
            AskError::Store(
                StoreError::Unavailable(_)
                    | StoreError::Unconfirmed(_)
                    | StoreError::Overloaded
                    | StoreError::Unable(_)
            )
        );
        if !is_failure {
            return;
        }
        let Some((place, parent)) = self.reserve(failed.context) else {
            return;
        };
        place.send(self.span(SpanParts {
            name: failed.operation.map_or("quell end", name_of),
            begun: failed.begun,
            lasted: now.monotonic.since(failed.begun.monotonic),
            parent,
            attributes: vec![
                KeyValue::new("quell.domain", failed.domain.to_owned()),
                KeyValue::new("quell.verdict", "error"),
                KeyValue::new("quell.store", self.store),
            ],
            status: Status::error(error.to_string()),
        }));
    }

    fn span(&self, parts: SpanParts) -> SpanData {
        let parent = parts.parent;
        let ids = RandomIdGenerator::default();
        let trace_id = parent.as_ref().map(SpanContext::trace_id);
        let state = parent.as_ref().map(SpanContext::trace_state);
        let span_context = SpanContext::new(
            trace_id.unwrap_or_else(|| ids.new_trace_id()),
            ids.new_span_id(),
            TraceFlags::SAMPLED,
            false,
            state.cloned().unwrap_or_default(),
        );
        let begun = Duration::from_nanos(parts.begun.wall.as_nanos());
        let start_time = SystemTime::UNIX_EPOCH + begun;
        SpanData {
            span_context,
            parent_span_is_remote: parent.is_some(),
            parent_span_id: parent.map_or(SpanId::INVALID, |parent| parent.span_id()),
            span_kind: SpanKind::Server,
            name: parts.name.into(),
            start_time,
            end_time: start_time + parts.lasted,
            attributes: parts.attributes,
            dropped_attributes_count: 0,
            events: SpanEvents::default(),
            links: SpanLinks::default(),
            status: parts.status,
            instrumentation_scope: self.scope.clone(),
        }
    }

    fn attributes(&self, answer: &SpanAnswer<'_>) -> Vec<KeyValue> {
        let verdict = answer.retry_after.map_or("allow", |_| "deny");
        let mut attributes = vec![
            KeyValue::new("quell.domain", answer.domain.to_owned()),
            KeyValue::new("quell.verdict", verdict),
            KeyValue::new("quell.store", self.store),
            KeyValue::new("quell.degraded", answer.degraded),
        ];
        if let Some(rule) = answer.rule {
            attributes.push(KeyValue::new("quell.rule", rule.to_owned()));
        }
        if let Some(key) = answer.key {
            let hash = KeyHash::new(key, self.secret).to_string();
            attributes.push(KeyValue::new("quell.key_hash", hash));
        }
        if let Some(RetryAfter::After(wait)) = answer.retry_after {
            let wait = i64::try_from(wait.as_nanos().div_ceil(1_000_000)).unwrap_or(i64::MAX);
            attributes.push(KeyValue::new("quell.retry_after_ms", wait));
        }
        if answer.would_refuse {
            attributes.push(KeyValue::new("quell.would_refuse", true));
        }
        attributes
    }
}

impl<'a> SpanAnswer<'a> {
    fn new(event: &Event<'a>) -> Self {
        match *event {
            Event::Query {
                now,
                operation,
                query,
                set,
                verdict,
                ..
            } => Self {
                now,
                operation,
                domain: query.domain(),
                rule: verdict.binding_rule().map(|rule| &*rule.rule),
                retry_after: verdict.retry_after,
                degraded: verdict.degraded,
                would_refuse: verdict.would_refuse(),
                waited: verdict.waited,
                key: binding_key(set, verdict),
                context: query.context(),
            },
            Event::AdHoc {
                now,
                operation,
                key,
                decision,
                ..
            } => Self {
                now,
                operation,
                domain: "",
                rule: Some(AD_HOC_RULE),
                retry_after: decision.retry_after(),
                degraded: false,
                would_refuse: false,
                waited: Duration::ZERO,
                key: Some(key),
                context: &[],
            },
        }
    }
}

fn binding_key<'a>(set: &'a LimitSet<'_>, verdict: &Verdict) -> Option<&'a [u8]> {
    let charge = set.charges().get(verdict.binding?)?;
    Some(set.key(charge).as_bytes())
}

/// A place in the queue of spans.
type SpanPermit<'a> = mpsc::Permit<'a, SpanData>;

/// The span of the caller, if it named a valid one.
fn parent(context: &[u8]) -> Option<SpanContext> {
    let context =
        TraceContextPropagator::new().extract_with_context(&Context::new(), &HeaderFields(context));
    let span = context.span().span_context().clone();
    span.is_valid().then_some(span)
}

/// Header fields, a line each.
struct HeaderFields<'a>(&'a [u8]);

impl Extractor for HeaderFields<'_> {
    fn get(&self, name: &str) -> Option<&str> {
        let mut lines = self.0.split(|byte| *byte == b'\n');
        let value = lines.find_map(|line| {
            let (found, value) = line.split_at_checked(name.len())?;
            let value = value.strip_prefix(b":")?;
            found.eq_ignore_ascii_case(name.as_bytes()).then_some(value)
        });
        let value = str::from_utf8(value?).ok()?.trim();
        (name != "tracestate" || value.len() <= MAX_TRACE_STATE).then_some(value)
    }

    fn keys(&self) -> Vec<&str> {
        Vec::new()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Callers write these fields.
        #[test]
        fn any_bytes_are_a_context(bytes: Vec<u8>, text in ".*", flags in "[0-9a-f-]{0,60}") {
            parent(&bytes);
            parent(format!("traceparent:{text}\ntracestate:{text}").as_bytes());
            parent(format!("traceparent:00-{flags}\n").as_bytes());
        }
    }

    const PARENT: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

    #[test]
    fn a_parent_is_found_among_the_fields_of_a_request() {
        let long = "k=".to_owned() + &"v".repeat(MAX_TRACE_STATE);
        for (fields, state) in [
            (format!("traceparent: {PARENT}\r\n"), Some("")),
            (
                format!("Host: a\r\nTraceParent:{PARENT}\r\nTRACESTATE: a=1,b=2\r\n\r\n"),
                Some("a=1,b=2"),
            ),
            (
                format!("traceparent: {PARENT}\r\ntracestate: {long}\r\n"),
                Some(""),
            ),
            (
                format!("x-traceparent: {PARENT}\r\ntraceparents: {PARENT}\r\n"),
                None,
            ),
            ("traceparent: 00-0-0-01\r\n".to_owned(), None),
            ("traceparent: \u{e9}\r\n".to_owned(), None),
            ("traceparent".to_owned(), None),
            (String::new(), None),
        ] {
            let found = parent(fields.as_bytes());
            let found = found.map(|parent| parent.trace_state().header());
            assert_eq!(found.as_deref(), state, "{fields}");
        }
    }
}
