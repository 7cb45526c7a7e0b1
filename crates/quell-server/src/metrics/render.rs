//! Renders the numbers as Prometheus text, format 0.0.4.

use std::fmt::{Display, Write};
use std::sync::Arc;
use std::time::Duration;

use quell::store::HoldTotals;
use quell_redis::{FallbackNumbers, StoreNumbers};

use super::rules::{ALLOWED, DENIED, OUTCOMES, UNMATCHED};
use super::{Histogram, ListenerMetrics, Metrics, RuleTally};
use crate::stored_rules::StoredRules;

/// The label `rule` of limits that came with the call; their label `domain` is empty, which no
/// domain of rules can be.
const AD_HOC_RULE: &str = "cl.throttle";

/// What is read when it is asked for.
#[derive(Clone, Debug)]
pub(crate) struct Gauges {
    pub(crate) keys: usize,
    pub(crate) max_keys: usize,
    pub(crate) overflow_states: usize,
    /// `None`: the store cannot tell.
    pub(crate) bans: Option<usize>,
    /// Callers that wait for their turn.
    pub(crate) waiting: usize,
    pub(crate) holds: HoldTotals,
    pub(crate) uptime: Duration,
    /// Calls to a store beside this process, and what was answered without it.
    pub(crate) shared: Option<(StoreNumbers, FallbackNumbers)>,
    /// Whether the last reload failed.
    pub(crate) is_reload_failed: bool,
    /// Domains that a reload took all rules from.
    pub(crate) emptied_domains: usize,
    pub(crate) is_snapshot_failing: bool,
    pub(crate) buffer_bytes: usize,
    /// One for each store that rules are read from.
    pub(crate) rules_stores: Vec<RulesStoreGauge>,
}

/// How it stands with a store that rules are read from.
#[derive(Clone, Debug)]
pub(crate) struct RulesStoreGauge {
    /// Where it is; shows no password.
    url: String,
    /// The version in force; 0: none.
    version: u64,
    is_readable: bool,
}

impl RulesStoreGauge {
    pub(crate) fn of(stored: &Arc<StoredRules>) -> Self {
        let standing = stored.standing();
        let in_force = standing.in_force.as_ref();
        Self {
            url: stored.url().to_owned(),
            version: in_force.map_or(0, |entry| entry.head.number()),
            is_readable: standing.failure.is_none(),
        }
    }
}

/// All numbers as text.
pub(crate) fn render(metrics: &Metrics, gauges: &Gauges) -> String {
    let mut text = Text(String::with_capacity(4_096));
    decisions(&mut text, metrics);
    queries(&mut text, metrics);
    seconds(&mut text, metrics);
    store(&mut text, gauges);
    if let Some((calls, guard)) = &gauges.shared {
        shared_store(&mut text, calls, guard);
    }
    holds(&mut text, metrics, gauges);
    listeners(&mut text, metrics);
    upkeep(&mut text, metrics, gauges);
    text.0
}

fn decisions(text: &mut Text, metrics: &Metrics) {
    let rules = metrics.rules.rules();
    let name = "quell_decisions_total";
    text.head(
        name,
        "counter",
        "Decisions of rules on acquires; peeks are not among them.",
    );
    for ((domain, rule), tally) in &rules {
        text.outcomes(name, (domain, rule), tally, 0);
    }
    text.outcomes(name, ("", AD_HOC_RULE), &metrics.ad_hoc, 0);
    let name = "quell_peeks_total";
    text.head(name, "counter", "Decisions of rules on peeks.");
    for ((domain, rule), tally) in &rules {
        text.outcomes(name, (domain, rule), tally, OUTCOMES.len());
    }
    text.outcomes(name, ("", AD_HOC_RULE), &metrics.ad_hoc, OUTCOMES.len());
}

fn queries(text: &mut Text, metrics: &Metrics) {
    let domains = metrics.rules.domains();
    let name = "quell_queries_total";
    text.head(
        name,
        "counter",
        "Acquires by the outcome of all rules together.",
    );
    for (domain, tally) in &domains {
        for (outcome, index) in [("allow", ALLOWED), ("deny", DENIED)] {
            text.labelled(
                name,
                &[("domain", domain), ("outcome", outcome)],
                tally.sum(index),
            );
        }
    }
    let name = "quell_unmatched_total";
    text.head(
        name,
        "counter",
        "Acquires that no rule decided; they are allowed.",
    );
    for (domain, tally) in &domains {
        text.labelled(name, &[("domain", domain)], tally.sum(UNMATCHED));
    }
}

fn seconds(text: &mut Text, metrics: &Metrics) {
    let name = "quell_decision_seconds";
    let help =
        "From reading the clock to the answer: every query of rules, and one in 64 of CL.THROTTLE.";
    text.head(name, "histogram", help);
    text.histogram(name, "rules", &metrics.query_seconds);
    text.histogram(name, AD_HOC_RULE, &metrics.ad_hoc_seconds);
}

fn store(text: &mut Text, gauges: &Gauges) {
    text.gauge(
        "quell_keys",
        "Keys that have a state of their own.",
        gauges.keys,
    );
    text.gauge(
        "quell_max_keys",
        "The most keys that may have one.",
        gauges.max_keys,
    );
    let help = "States that new keys share since the store is, or was, full.";
    text.gauge("quell_overflow_states", help, gauges.overflow_states);
    if let Some(bans) = gauges.bans {
        let help = "Keys under a ban, as far as their names are kept.";
        text.gauge("quell_bans", help, bans);
    }
}

fn shared_store(text: &mut Text, calls: &StoreNumbers, guard: &FallbackNumbers) {
    let name = "quell_store_seconds";
    text.head(
        name,
        "histogram",
        "Calls to the store, from sending to the answer or to giving up.",
    );
    for (edge, count) in &calls.parts {
        let edge = edge.map_or("+Inf".to_owned(), |edge| Seconds(edge).to_string());
        text.labelled(&format!("{name}_bucket"), &[("le", &edge)], count);
    }
    text.labelled(&format!("{name}_sum"), &[], Seconds(calls.took));
    text.labelled(&format!("{name}_count"), &[], calls.calls);
    let help = "Calls to the store so far.";
    text.counter("quell_store_calls_total", help, calls.calls);
    let name = "quell_store_errors_total";
    text.head(name, "counter", "Calls to the store that failed.");
    for (kind, count) in &calls.failures {
        text.labelled(name, &[("kind", kind)], count);
    }
    let help = "Calls that were not sent, since more waited than the store answers in time.";
    text.counter("quell_store_overloaded_total", help, calls.overloaded);
    let help =
        "1 while the store, or a server of it, is thought to be gone: no call waits for that.";
    text.gauge("quell_store_gone", help, u8::from(calls.is_gone));
    let help = "1 while callers are answered by what on_failure declares, or were in the last few seconds: the store is gone, or refuses.";
    text.gauge("quell_degraded", help, u8::from(guard.is_degraded));
    let name = "quell_store_server_gone";
    let help = "1 while this server of the store is thought to be gone.";
    text.head(name, "gauge", help);
    for (server, is_gone) in &calls.servers {
        text.labelled(name, &[("server", server)], u8::from(*is_gone));
    }
    let help = "Values under names of ours that Quell did not write; each counts as used up since.";
    let name = "quell_store_foreign_values_total";
    text.counter(name, help, calls.replaced);
    let name = "quell_degraded_decisions_total";
    let help = "Decisions on acquires that the store had no part in, by what was declared.";
    text.head(name, "counter", help);
    let declared = [
        ("share", guard.shared),
        ("deny", guard.denied),
        ("allow", guard.allowed),
    ];
    for (on_failure, count) in declared {
        text.labelled(name, &[("on_failure", on_failure)], count);
    }
    let help = "Queries refused without asking the store, since it had just refused them.";
    text.counter("quell_remembered_refusals_total", help, guard.remembered);
    let help = "Keys of which something is still to be charged to the store.";
    text.gauge("quell_store_owed_keys", help, guard.owed);
    let help =
        "Bytes of keys that were used apart from the store, by on_failure: share, at most 64 MiB.";
    text.gauge("quell_share_bytes", help, guard.share_bytes);
    let help = "Units that were owed to the store and were sent to it without an answer: it charged them, or not.";
    let name = "quell_store_unanswered_units_total";
    text.counter(name, help, guard.unanswered);
}

fn holds(text: &mut Text, metrics: &Metrics, gauges: &Gauges) {
    let totals = &gauges.holds;
    let help = "Callers of this process that wait for their turn, whatever store keeps the line.";
    text.gauge("quell_waiters", help, gauges.waiting);
    let name = "quell_wait_seconds";
    text.head(
        name,
        "summary",
        "How long callers of this process waited that were let go on.",
    );
    let waited = Seconds(Duration::from_nanos(metrics.waited_nanos.get()));
    text.labelled(&format!("{name}_sum"), &[], waited);
    text.labelled(&format!("{name}_count"), &[], metrics.waits.get());
    let help = "Permits that are held. With a shared store those that calls to this process took, until it gives them back or their time is over: sum it over all processes.";
    text.gauge("quell_permits_held", help, totals.permits);
    let name = "quell_learned_permits";
    text.head(
        name,
        "gauge",
        "Permits that a rule with adaptive hands out at a time, as its last answer said: on whichever of its keys that was.",
    );
    for ((domain, rule), limit) in metrics.rules.learned() {
        text.labelled(name, &[("domain", &domain), ("rule", &rule)], limit);
    }
    let help = "Reservations that can still be settled. With a shared store those made through this process, until they are ended through it or their time is over: sum it over all processes.";
    text.gauge("quell_reservations", help, totals.reservations);
    let help = "Reservations and permits whose time was over before anybody ended them. With a shared store each counts once, in the process that found it so, whichever made it: sum it over all processes.";
    text.counter("quell_expired_holds_total", help, totals.expired);
}

/// A name, what it is, and where it stands.
type Row = (&'static str, &'static str, fn(&ListenerMetrics) -> u64);

fn listeners(text: &mut Text, metrics: &Metrics) {
    let name = "quell_connections";
    text.head(name, "gauge", "Connections that are open.");
    let both = [("http", &*metrics.http), ("resp", &*metrics.resp)];
    for (listener, numbers) in both {
        text.labelled(name, &[("listener", listener)], numbers.open.get());
    }
    let rows: [Row; 5] = [
        ("quell_connections_total", "Connections so far.", |l| {
            l.accepted.get()
        }),
        (
            "quell_connections_refused_total",
            "Connections that came when there were max_connections, or needed more than max_buffer_bytes.",
            |l| l.refused.get(),
        ),
        (
            "quell_protocol_errors_total",
            "Requests and frames that could not be understood.",
            |l| l.protocol_errors.get(),
        ),
        (
            "quell_timeouts_total",
            "Connections that were closed since they stood still.",
            |l| l.timeouts.get(),
        ),
        (
            "quell_panics_total",
            "Connections that ended by a mistake of the server's.",
            |l| l.panics.get(),
        ),
    ];
    for (name, help, read) in rows {
        text.head(name, "counter", help);
        for (listener, numbers) in both {
            text.labelled(name, &[("listener", listener)], read(numbers));
        }
    }
    text.counter(
        "quell_resp_commands_total",
        "RESP commands so far.",
        metrics.commands.sum(0),
    );
}

fn rules_stores(text: &mut Text, stores: &[RulesStoreGauge]) {
    if stores.is_empty() {
        return;
    }
    let name = "quell_rules_version";
    let help =
        "The version of the rules in force, of each store that rules are read from; 0: none.";
    text.head(name, "gauge", help);
    for store in stores {
        text.labelled(name, &[("store", &store.url)], store.version);
    }
    let name = "quell_rules_store_readable";
    let help = "1 while the rules can be read from the store.";
    text.head(name, "gauge", help);
    for store in stores {
        text.labelled(name, &[("store", &store.url)], u8::from(store.is_readable));
    }
}

fn decision_log(text: &mut Text, metrics: &Metrics) {
    let help = "Lines written to the decision log.";
    text.counter(
        "quell_decision_log_lines_total",
        help,
        metrics.log_written.get(),
    );
    let help = "1 while the decision log cannot be written.";
    text.gauge(
        "quell_decision_log_failing",
        help,
        metrics.log_failing.get(),
    );
    let help = "Queries that the decision log could not keep up with.";
    text.counter(
        "quell_decision_log_dropped_total",
        help,
        metrics.log_dropped.get(),
    );
}

fn upkeep(text: &mut Text, metrics: &Metrics, gauges: &Gauges) {
    text.counter(
        "quell_reloads_total",
        "Reloads of the rules.",
        metrics.reloads.get(),
    );
    let help = "Reloads that failed; the rules in force stayed.";
    text.counter(
        "quell_reload_failures_total",
        help,
        metrics.reload_failures.get(),
    );
    let help = "1 while the rules in force are not those in the files and stores, since these are wrong or cannot be read.";
    text.gauge(
        "quell_reload_failed",
        help,
        u8::from(gauges.is_reload_failed),
    );
    let help = "Domains that had rules since the start and have none now.";
    text.gauge("quell_emptied_domains", help, gauges.emptied_domains);
    rules_stores(text, &gauges.rules_stores);
    text.counter(
        "quell_snapshots_total",
        "Snapshots written.",
        metrics.snapshots.get(),
    );
    let help = "Snapshots that could not be written.";
    text.counter(
        "quell_snapshot_failures_total",
        help,
        metrics.snapshot_failures.get(),
    );
    let help = "1 while the last snapshot could not be written.";
    text.gauge(
        "quell_snapshot_failing",
        help,
        u8::from(gauges.is_snapshot_failing),
    );
    let help = "Size of the last snapshot.";
    text.gauge("quell_snapshot_bytes", help, metrics.snapshot_bytes.get());
    let took = Duration::from_nanos(metrics.snapshot_nanos.get());
    text.gauge("quell_snapshot_seconds", "How long it took.", Seconds(took));
    decision_log(text, metrics);
    text.gauge(
        "quell_buffer_bytes",
        "Bytes of commands, bodies and replies that wait in buffers (max_buffer_bytes).",
        gauges.buffer_bytes,
    );
    text.gauge(
        "quell_uptime_seconds",
        "Time since the start.",
        Seconds(gauges.uptime),
    );
    text.head("quell_build_info", "gauge", "The version, as a label.");
    text.labelled(
        "quell_build_info",
        &[("version", env!("CARGO_PKG_VERSION"))],
        1,
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
    fn head(&mut self, name: &str, kind: &str, help: &str) {
        let _ = writeln!(self.0, "# HELP {name} {help}\n# TYPE {name} {kind}");
    }

    fn labelled(&mut self, name: &str, labels: &[(&str, &str)], value: impl Display) {
        self.0.push_str(name);
        for (index, (label, text)) in labels.iter().enumerate() {
            self.0.push(if index == 0 { '{' } else { ',' });
            let _ = write!(self.0, "{label}=\"");
            for letter in text.chars() {
                match letter {
                    '\\' | '"' => {
                        self.0.push('\\');
                        self.0.push(letter);
                    }
                    '\n' => self.0.push_str("\\n"),
                    _ => self.0.push(letter),
                }
            }
            self.0.push('"');
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
        let mut count = 0;
        for (edge, sum) in histogram.parts() {
            count = sum;
            self.labelled(
                &format!("{name}_bucket"),
                &[("source", source), ("le", edge)],
                sum,
            );
        }
        let labels = [("source", source)];
        self.labelled(&format!("{name}_sum"), &labels, Seconds(histogram.sum()));
        self.labelled(&format!("{name}_count"), &labels, count);
    }

    fn counter(&mut self, name: &str, help: &str, value: impl Display) {
        self.head(name, "counter", help);
        self.labelled(name, &[], value);
    }

    fn gauge(&mut self, name: &str, help: &str, value: impl Display) {
        self.head(name, "gauge", help);
        self.labelled(name, &[], value);
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
