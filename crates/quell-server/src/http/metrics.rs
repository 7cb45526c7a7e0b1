//! `/metrics`: all numbers as Prometheus reads them, text format 0.0.4.

use std::fmt::{Display, Write};
use std::sync::Arc;
use std::time::Duration;

use axum::extract::State;
use axum::http::{HeaderValue, StatusCode};
use axum::response::Response;
use quell_redis::{FallbackNumbers, StoreNumbers};

use super::reply;
use crate::metrics::{
    ALLOWED, DENIED, Histogram, ListenerMetrics, Metrics, OUTCOMES, RuleTally, UNMATCHED,
};
use crate::shared::Shared;

/// Each metric with its type and its help.
const METRICS: &str = "\
quell_decisions_total counter Decisions of rules on acquires; peeks are not among them.
quell_peeks_total counter Decisions of rules on peeks.
quell_queries_total counter Acquires by the outcome of all rules together.
quell_unmatched_total counter Acquires that no rule decided; they are allowed.
quell_decision_seconds histogram From reading the clock to the answer: every query of rules, and one in 64 of CL.THROTTLE.
quell_keys gauge Keys that have a state of their own.
quell_max_keys gauge The most keys that may have one.
quell_overflow_states gauge States that new keys share since the store is, or was, full.
quell_bans gauge Keys under a ban, as far as their names are kept.
quell_store_seconds histogram Calls to the store, from sending to the answer or to giving up.
quell_store_calls_total counter Calls to the store so far.
quell_store_errors_total counter Calls to the store that failed.
quell_store_overloaded_total counter Calls that were not sent, since more waited than the store answers in time.
quell_store_gone gauge 1 while the store, or a server of it, is thought to be gone: no call waits for that.
quell_degraded gauge 1 while callers are answered by what on_failure declares, or were in the last few seconds: the store is gone, or refuses.
quell_store_server_gone gauge 1 while this server of the store is thought to be gone.
quell_store_foreign_values_total counter Values under names of ours that Quell did not write; each counts as used up since.
quell_degraded_decisions_total counter Decisions on acquires that the store had no part in, by what was declared.
quell_remembered_refusals_total counter Queries refused without asking the store, since it had just refused them.
quell_store_owed_keys gauge Keys of which something is still to be charged to the store.
quell_share_bytes gauge Bytes of keys that were used apart from the store, by on_failure: share, at most 64 MiB.
quell_store_unanswered_units_total counter Units that were owed to the store and were sent to it without an answer: it charged them, or not.
quell_waiters gauge Callers of this process that wait for their turn, whatever store keeps the line.
quell_wait_seconds summary How long callers of this process waited that were let go on.
quell_permits_held gauge Permits that are held. With a shared store those that calls to this process took, until it gives them back or their time is over: sum it over all processes.
quell_learned_permits gauge Permits that a rule with adaptive hands out at a time, as its last answer said: on whichever of its keys that was.
quell_reservations gauge Reservations that can still be settled. With a shared store those made through this process, until they are ended through it or their time is over: sum it over all processes.
quell_expired_holds_total counter Reservations and permits whose time was over before anybody ended them. With a shared store each counts once, in the process that found it so, whichever made it: sum it over all processes.
quell_connections gauge Connections that are open.
quell_connections_total counter Connections so far.
quell_connections_refused_total counter Connections that came when there were max_connections, or needed more than max_buffer_bytes.
quell_protocol_errors_total counter Requests and frames that could not be understood.
quell_timeouts_total counter Connections that were closed since they stood still.
quell_panics_total counter Connections that ended by a mistake of the server's.
quell_resp_commands_total counter RESP commands so far.
quell_reloads_total counter Reloads of the rules.
quell_reload_failures_total counter Reloads that failed; the rules in force stayed.
quell_reload_failed gauge 1 while the rules in force are not those in the files and stores, since these are wrong or cannot be read.
quell_emptied_domains gauge Domains that had rules since the start and have none now.
quell_rules_version gauge The version of the rules in force, of each store that rules are read from; 0: none.
quell_rules_store_readable gauge 1 while the rules can be read from the store.
quell_snapshots_total counter Snapshots written.
quell_snapshot_failures_total counter Snapshots that could not be written.
quell_snapshot_failing gauge 1 while the last snapshot could not be written.
quell_snapshot_bytes gauge Size of the last snapshot.
quell_snapshot_seconds gauge How long it took.
quell_decision_log_lines_total counter Lines written to the decision log.
quell_decision_log_failing gauge 1 while the decision log cannot be written.
quell_decision_log_dropped_total counter Queries that the decision log could not keep up with.
quell_buffer_bytes gauge Bytes of commands, bodies and replies that wait in buffers (max_buffer_bytes).
quell_uptime_seconds gauge Time since the start.
quell_build_info gauge The version, as a label.
";

/// The label `rule` of limits that came with the call; their label `domain` is empty, which no
/// domain of rules can be.
const AD_HOC_RULE: &str = "cl.throttle";

/// Answers with all numbers. Cost: a look at the end of each ban in this process, or a few trips to a
/// store beside it.
pub(super) async fn metrics(State(shared): State<Arc<Shared>>) -> Response {
    let mut text = Text(String::with_capacity(4_096));
    let metrics = &shared.metrics;
    queries(&mut text, metrics);
    keys(&mut text, &shared).await;
    if let Some((calls, fallback)) = shared.limiter.store().numbers() {
        shared_store(&mut text, &calls, &fallback);
    }
    holds(&mut text, &shared).await;
    listeners(&mut text, metrics);
    upkeep(&mut text, &shared);
    let kind = HeaderValue::from_static("text/plain; version=0.0.4; charset=utf-8");
    reply::reply(StatusCode::OK, kind, text.0)
}

fn queries(text: &mut Text, metrics: &Metrics) {
    let rules = metrics.rules.rules();
    let kinds = [
        ("quell_decisions_total", 0),
        ("quell_peeks_total", OUTCOMES.len()),
    ];
    for (name, from) in kinds {
        text.head(name);
        for ((domain, rule), numbers) in &rules {
            text.outcomes(name, (domain, rule), &numbers.tally, from);
        }
        text.outcomes(name, ("", AD_HOC_RULE), &metrics.ad_hoc, from);
    }
    let domains = metrics.rules.domains();
    let name = "quell_queries_total";
    text.head(name);
    for (domain, tally) in &domains {
        for (outcome, index) in [("allow", ALLOWED), ("deny", DENIED)] {
            let labels = [("domain", &**domain), ("outcome", outcome)];
            text.labelled(name, &labels, tally.sum(index));
        }
    }
    let name = "quell_unmatched_total";
    text.head(name);
    for (domain, tally) in &domains {
        text.labelled(name, &[("domain", domain)], tally.sum(UNMATCHED));
    }
    let name = "quell_decision_seconds";
    text.head(name);
    text.histogram(name, "rules", &metrics.query_seconds);
    text.histogram(name, AD_HOC_RULE, &metrics.ad_hoc_seconds);
}

async fn keys(text: &mut Text, shared: &Shared) {
    let counts = shared.limiter.store().key_counts();
    text.number("quell_keys", counts.keys);
    text.number("quell_max_keys", counts.max_keys);
    text.number("quell_overflow_states", counts.overflow_states);
    // A store that does not answer cannot tell.
    if let Ok(bans) = shared.limiter.ban_count().await {
        text.number("quell_bans", bans);
    }
}

fn shared_store(text: &mut Text, calls: &StoreNumbers, fallback: &FallbackNumbers) {
    let name = "quell_store_seconds";
    text.head(name);
    for (edge, count) in &calls.parts {
        let edge = edge.map_or("+Inf".to_owned(), |edge| Seconds(edge).to_string());
        text.labelled(&format!("{name}_bucket"), &[("le", &edge)], count);
    }
    text.labelled(&format!("{name}_sum"), &[], Seconds(calls.took));
    text.labelled(&format!("{name}_count"), &[], calls.calls);
    text.number("quell_store_calls_total", calls.calls);
    let failures = calls.failures.iter().map(|(kind, count)| (kind, *count));
    text.by("quell_store_errors_total", "kind", failures);
    text.number("quell_store_overloaded_total", calls.overloaded);
    text.number("quell_store_gone", u8::from(calls.is_gone));
    text.number("quell_degraded", u8::from(fallback.is_degraded));
    let servers = calls
        .servers
        .iter()
        .map(|(server, is_gone)| (server, u8::from(*is_gone)));
    text.by("quell_store_server_gone", "server", servers);
    text.number("quell_store_foreign_values_total", calls.replaced);
    let declared = [
        ("share", fallback.shared),
        ("deny", fallback.denied),
        ("allow", fallback.allowed),
    ];
    text.by("quell_degraded_decisions_total", "on_failure", declared);
    text.number("quell_remembered_refusals_total", fallback.remembered);
    text.number("quell_store_owed_keys", fallback.owed);
    text.number("quell_share_bytes", fallback.share_bytes);
    text.number("quell_store_unanswered_units_total", fallback.unanswered);
}

async fn holds(text: &mut Text, shared: &Shared) {
    let (limiter, metrics) = (&shared.limiter, &shared.metrics);
    let totals = limiter.store().hold_totals(limiter.now()).await;
    text.number("quell_waiters", limiter.waiting());
    text.head("quell_wait_seconds");
    let waited = Seconds(Duration::from_nanos(metrics.waited_nanos.get()));
    text.labelled("quell_wait_seconds_sum", &[], waited);
    text.labelled("quell_wait_seconds_count", &[], metrics.waits.get());
    text.number("quell_permits_held", totals.permits);
    let name = "quell_learned_permits";
    text.head(name);
    for ((domain, rule), limit) in metrics.rules.learned() {
        text.labelled(name, &[("domain", &domain), ("rule", &rule)], limit);
    }
    text.number("quell_reservations", totals.reservations);
    text.number("quell_expired_holds_total", totals.expired);
}

fn listeners(text: &mut Text, metrics: &Metrics) {
    let mut both = |name, read: fn(&ListenerMetrics) -> u64| {
        let both = [("http", &metrics.http), ("resp", &metrics.resp)];
        text.by(
            name,
            "listener",
            both.map(|(listener, numbers)| (listener, read(numbers))),
        );
    };
    both("quell_connections", |l| l.open.get());
    both("quell_connections_total", |l| l.accepted.get());
    both("quell_connections_refused_total", |l| l.refused.get());
    both("quell_protocol_errors_total", |l| l.protocol_errors.get());
    both("quell_timeouts_total", |l| l.timeouts.get());
    both("quell_panics_total", |l| l.panics.get());
    text.number("quell_resp_commands_total", metrics.commands.sum(0));
}

fn upkeep(text: &mut Text, shared: &Shared) {
    let (metrics, health) = (&shared.metrics, &shared.health);
    text.number("quell_reloads_total", metrics.reloads.get());
    text.number("quell_reload_failures_total", metrics.reload_failures.get());
    let is_failed = health.reload_failure().is_some() || shared.sources.is_a_store_failing();
    text.number("quell_reload_failed", u8::from(is_failed));
    text.number("quell_emptied_domains", health.emptied_domains().len());
    let standings: Vec<_> = shared
        .sources
        .stores()
        .map(|stored| (stored.url(), stored.standing()))
        .collect();
    if !standings.is_empty() {
        let versions = standings
            .iter()
            .map(|(url, standing)| (url, standing.version().unwrap_or(0)));
        text.by("quell_rules_version", "store", versions);
        let readable = standings
            .iter()
            .map(|(url, standing)| (url, u8::from(standing.failure.is_none())));
        text.by("quell_rules_store_readable", "store", readable);
    }
    text.number("quell_snapshots_total", metrics.snapshots.get());
    text.number(
        "quell_snapshot_failures_total",
        metrics.snapshot_failures.get(),
    );
    let is_failing = health.snapshot_failure().is_some();
    text.number("quell_snapshot_failing", u8::from(is_failing));
    text.number("quell_snapshot_bytes", metrics.snapshot_bytes.get());
    let took = Duration::from_nanos(metrics.snapshot_nanos.get());
    text.number("quell_snapshot_seconds", Seconds(took));
    text.number("quell_decision_log_lines_total", metrics.log_written.get());
    text.number("quell_decision_log_failing", metrics.log_failing.get());
    text.number(
        "quell_decision_log_dropped_total",
        metrics.log_dropped.get(),
    );
    text.number("quell_buffer_bytes", shared.buffers.used());
    text.number("quell_uptime_seconds", Seconds(shared.started.elapsed()));
    text.by(
        "quell_build_info",
        "version",
        [(env!("CARGO_PKG_VERSION"), 1)],
    );
}

/// A duration in seconds, exact.
struct Seconds(Duration);

impl Display for Seconds {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}.{:09}", self.0.as_secs(), self.0.subsec_nanos())
    }
}

/// Writes lines; writing to a string cannot fail.
struct Text(String);

impl Text {
    /// What [`METRICS`] says of a metric.
    fn head(&mut self, name: &str) {
        let about = METRICS
            .lines()
            .find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        let (kind, help) = about
            .and_then(|about| about.split_once(' '))
            .unwrap_or_default();
        let _ = writeln!(self.0, "# HELP {name} {help}\n# TYPE {name} {kind}");
    }

    /// A metric of one number.
    fn number(&mut self, name: &str, value: impl Display) {
        self.head(name);
        self.labelled(name, &[], value);
    }

    /// A metric of a number for each value of a label.
    fn by<V: Display>(
        &mut self,
        name: &str,
        label: &str,
        values: impl IntoIterator<Item = (impl AsRef<str>, V)>,
    ) {
        self.head(name);
        for (text, value) in values {
            self.labelled(name, &[(label, text.as_ref())], value);
        }
    }

    fn labelled(&mut self, name: &str, labels: &[(&str, &str)], value: impl Display) {
        self.0.push_str(name);
        for (index, (label, text)) in labels.iter().enumerate() {
            self.0.push(if index == 0 { '{' } else { ',' });
            let text = text
                .replace('\\', "\\\\")
                .replace('"', "\\\"")
                .replace('\n', "\\n");
            let _ = write!(self.0, "{label}=\"{text}\"");
        }
        let end = if labels.is_empty() { "" } else { "}" };
        let _ = writeln!(self.0, "{end} {value}");
    }

    fn outcomes(
        &mut self,
        name: &str,
        (domain, rule): (&str, &str),
        tally: &RuleTally,
        from: usize,
    ) {
        for (index, outcome) in OUTCOMES.into_iter().enumerate() {
            let labels = [("domain", domain), ("rule", rule), ("outcome", outcome)];
            self.labelled(name, &labels, tally.sum(from + index));
        }
    }

    fn histogram(&mut self, name: &str, source: &str, histogram: &Histogram) {
        // Read once: the last part is the count.
        let mut count = 0;
        for (edge, sum) in histogram.parts() {
            count = sum;
            let labels = [("source", source), ("le", &*edge)];
            self.labelled(&format!("{name}_bucket"), &labels, sum);
        }
        let labels = [("source", source)];
        self.labelled(&format!("{name}_sum"), &labels, Seconds(histogram.sum()));
        self.labelled(&format!("{name}_count"), &labels, count);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_are_escaped() {
        let mut text = Text(String::new());
        text.labelled("m", &[("a", "x\"\\\n"), ("b", "")], 1);
        assert_eq!(text.0, "m{a=\"x\\\"\\\\\\n\",b=\"\"} 1\n");
    }
}
