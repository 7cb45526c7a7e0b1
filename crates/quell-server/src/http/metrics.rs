//! `/metrics`: all numbers as Prometheus reads them, text format 0.0.4.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use axum::extract::{Request, State};
use axum::http::{HeaderValue, StatusCode};
use quell::store::LimitId;
use quell_fleet::agent::NodeState;
use quell_host::metrics_text::{MetricsText, Seconds};
use quell_redis::{FallbackNumbers, StoreNumbers};
use quell_store::leased::Excess;

use super::caller::caller;
use super::reply::{self, RouteResult};
use crate::access::Role;
use crate::metrics::{ALLOWED, DENIED, Metrics, OUTCOMES, RuleTally, UNMATCHED, WOULD_REFUSE};
use crate::outage::OutageEffects;
use crate::overrides::USUAL;
use crate::shared::Shared;
use quell_host::refused_key::AD_HOC_RULE;

/// Appends metrics of one number each: name, type and help, and the value.
macro_rules! numbers {
    ($text:ident: $($about:literal = $value:expr;)*) => {
        $( $text.number($about, $value); )*
    };
}

/// Answers with all numbers. Cost: a look at the end of each ban in this process, or a few round trips
/// to a shared store.
pub(super) async fn metrics(State(shared): State<Arc<Shared>>, request: Request) -> RouteResult {
    caller(&request, Role::Metrics)?.check_whole()?;
    let mut text = MetricsText(String::with_capacity(4_096));
    let metrics = &shared.metrics;
    queries(&mut text, metrics);
    keys(&mut text, &shared).await;
    overrides(&mut text, &shared).await;
    if let Some(store) = shared.limiter.store().shared() {
        shared_store(
            &mut text,
            (&store.store().numbers(), &store.fallback_numbers()),
            &OutageEffects::new(&shared.limiter.rules()),
        );
    }
    leases(&mut text, &shared);
    fleet(&mut text, &shared);
    holds(&mut text, &shared).await;
    text.listeners(metrics.listeners());
    numbers! { text:
        "quell_resp_commands_total counter RESP commands so far." = metrics.commands.sum(0);
    }
    upkeep(&mut text, &shared);
    if shared.config.envoy.is_some() {
        let about = "quell_envoy_reservations_total counter Reservations of Envoy's calls (reserve): those issued and refused when a call came, and settlements when its stream ended: of what was issued, of calls that Envoy let pass without an answer, and of what was issued for no such call; settlements that the store did not answer, which are kept and sent again, or lost.";
        text.by(about, "event", metrics.reservations.all());
    }
    if shared.config.has_envoy_limits() {
        shared.envoy.write(&mut text);
    }
    let kind = HeaderValue::from_static("text/plain; version=0.0.4; charset=utf-8");
    Ok(reply::reply(StatusCode::OK, kind, text.0))
}

fn queries(text: &mut MetricsText, metrics: &Metrics) {
    let rules = metrics.rules.rules();
    let kinds = [
        (
            "quell_decisions_total counter Decisions of rules on acquires; peeks are not among them.",
            0,
        ),
        (
            "quell_peeks_total counter Decisions of rules on peeks.",
            OUTCOMES.len(),
        ),
    ];
    for (about, from) in kinds {
        let name = text.head(about);
        for ((domain, rule), numbers) in &rules {
            outcomes(text, name, (domain, rule), &numbers.tally, from);
        }
        outcomes(text, name, ("", AD_HOC_RULE), &metrics.ad_hoc, from);
    }
    let domains = metrics.rules.domains();
    let name =
        text.head("quell_queries_total counter Acquires by the outcome of all rules together.");
    for (domain, tally) in &domains {
        for (outcome, index) in [("allow", ALLOWED), ("deny", DENIED)] {
            let labels = [("domain", &**domain), ("outcome", outcome)];
            text.labelled(name, &labels, tally.sum(index));
        }
    }
    for (about, index) in [
        (
            "quell_unmatched_total counter Acquires that no rule decided; they are allowed.",
            UNMATCHED,
        ),
        (
            "quell_would_refuse_total counter Acquires that were allowed and that a rule in shadow would have refused.",
            WOULD_REFUSE,
        ),
    ] {
        let numbers = domains.iter();
        let numbers = numbers.map(|(domain, tally)| (domain, tally.sum(index)));
        text.by(about, "domain", numbers);
    }
    let name = text.head("quell_unknown_plans_total counter Acquires that named a plan that the domain does not have, which leaves the rule as it is; rules where that never happened are left out.");
    for ((domain, rule), count) in metrics.rules.unknown_plans() {
        text.labelled(name, &[("domain", &domain), ("rule", &rule)], count);
    }
    let name = text.head("quell_decision_seconds histogram From reading the clock to the answer: every query of rules, and one in 64 of CL.THROTTLE.");
    text.histogram(name, "rules", &metrics.query_seconds);
    text.histogram(name, AD_HOC_RULE, &metrics.ad_hoc_seconds);
}

async fn keys(text: &mut MetricsText, shared: &Shared) {
    let memory = shared.limiter.store().memory();
    numbers! { text:
        "quell_keys gauge Keys that have a state of their own." = memory.keys();
        "quell_max_keys gauge The most keys that may have one." = memory.max_keys();
        "quell_overflow_states gauge States that new keys share since the store is, or was, full." = memory.overflow_states();
    }
    // A store that does not answer cannot tell.
    if let Ok(bans) = shared.limiter.ban_count().await {
        text.number(
            "quell_bans gauge Keys under a ban, as far as their names are kept.",
            bans,
        );
    }
}

async fn overrides(text: &mut MetricsText, shared: &Shared) {
    let overrides = &shared.overrides;
    let behind = overrides.behind(shared.limiter.now().monotonic);
    numbers! { text:
        "quell_overrides gauge Keys that have numbers of their own here, from stored overrides." = shared.limiter.override_count();
        "quell_overrides_revision gauge The revision of the store of overrides up to which everything is in force here." = overrides.position().revision();
        "quell_overrides_behind_seconds gauge For how long the store of overrides has had, or may have had, what is not in force here; 0: nothing is missing." = Seconds(behind);
        "quell_overrides_swept_total counter Overrides that this server deleted a week after their end." = overrides.swept.load(Relaxed);
        "quell_overrides_emptied gauge 1 if the store of overrides is empty and had what is in force here, which stays until something is written to it." = u8::from(shared.has_emptied_overrides());
        "quell_overrides_of_missing_plans gauge Stored overrides that name a plan which the rules in force do not have, and so have no effect." = overrides.missing_plans.count();
        "quell_overrides_lost_total counter Times that the store of overrides was found to have lost changes: it was restored, failed over or emptied, or is another one." = overrides.times_lost();
    }
    if let Some(servers) = shared.servers_of_overrides().await {
        let behind = servers.iter().filter(|server| server.behind > USUAL);
        numbers! { text:
            "quell_overrides_servers gauge Servers that follow the store of overrides." = servers.len();
            "quell_overrides_servers_behind gauge Servers that have lacked changes of overrides for more than a second." = behind.count();
        }
    }
}

fn shared_store(
    text: &mut MetricsText,
    (calls, fallback): (&StoreNumbers, &FallbackNumbers),
    effects: &OutageEffects,
) {
    let name = text.head("quell_store_seconds histogram Calls to the store, from sending to the answer or to giving up.");
    for (edge, count) in &calls.parts {
        let edge = edge.map_or("+Inf".to_owned(), |edge| Seconds(edge).to_string());
        text.labelled(&format!("{name}_bucket"), &[("le", &edge)], count);
    }
    text.labelled(&format!("{name}_sum"), &[], Seconds(calls.took));
    text.labelled(&format!("{name}_count"), &[], calls.calls);
    text.number(
        "quell_store_calls_total counter Calls to the store so far.",
        calls.calls,
    );
    let failures = calls.failures.iter().map(|(kind, count)| (kind, *count));
    text.by(
        "quell_store_errors_total counter Calls to the store that failed.",
        "kind",
        failures,
    );
    numbers! { text:
        "quell_store_overloaded_total counter Calls that were not sent, since more waited than the store answers in time." = calls.overloaded;
        "quell_store_gone gauge 1 while the store, or a server of it, is thought to be gone: no call waits for that." = u8::from(calls.is_gone);
    }
    text.number(
        &format!("quell_degraded gauge 1 while callers are answered by what on_failure declares, or were in the last few seconds: the store is gone, or refuses, and {effects}."),
        u8::from(fallback.is_degraded),
    );
    let servers = calls.servers.iter();
    let servers = servers.map(|(server, is_gone)| (server, u8::from(*is_gone)));
    text.by(
        "quell_store_server_gone gauge 1 while this server of the store is thought to be gone.",
        "server",
        servers,
    );
    text.number("quell_store_foreign_values_total counter Values under names of ours that Quell did not write; each counts as used up since.", calls.replaced);
    let declared = [
        ("share", fallback.shared),
        ("deny", fallback.denied),
        ("allow", fallback.allowed),
    ];
    text.by("quell_degraded_decisions_total counter Decisions on acquires that the store had no part in, by what was declared.", "on_failure", declared);
    numbers! { text:
        "quell_remembered_refusals_total counter Queries refused without asking the store, since it had just refused them." = fallback.remembered;
        "quell_store_owed_keys gauge Keys of which something is still to be charged to the store." = fallback.owed;
        "quell_share_bytes gauge Bytes of keys that were used apart from the store, by on_failure: share, at most 64 MiB." = fallback.share_bytes;
        "quell_store_unanswered_units_total counter Units that were owed to the store and were sent to it without an answer: it charged them, or not." = fallback.unanswered;
    }
}

fn leases(text: &mut MetricsText, shared: &Shared) {
    let Some(leases) = shared.limiter.store().leases() else {
        return;
    };
    let numbers = leases.lease_numbers();
    numbers! { text:
        "quell_leases gauge Keys that this process decides in memory: from units that it charges in advance, or charges afterwards." = numbers.keys;
        "quell_lease_units gauge Units that this process charged in advance and has not used." = numbers.held;
        "quell_uncharged_units gauge Units of synced keys that this process admitted, and that the store is not known to have charged." = numbers.pending;
        "quell_leased_decisions_total counter Decisions in memory, without asking the store." = numbers.decided;
        "quell_lease_requests_total counter Calls to the store for units in advance, or to charge units afterwards." = numbers.requests;
        "quell_lease_returned_units_total counter Units given back to the store since nobody asked for them." = numbers.returned;
    }
    bounds(text, shared, &leases.excesses());
}

/// Writes the bound of each rule that has one, and the amount by which it was exceeded.
fn bounds(text: &mut MetricsText, shared: &Shared, excesses: &HashMap<LimitId, Excess>) {
    let rules = shared.limiter.rules();
    let bounded = rules.all().filter_map(|(domain, active)| {
        let (rung, cost) = (active.rule().policy.rung, active.rule().cost);
        let bound = active
            .limits()
            .filter_map(|one| rung.bound(&one.limit, cost))
            .max()?;
        let excesses = active.limits().filter_map(|one| excesses.get(&one.id));
        let worst = excesses.fold(Excess::default(), |worst, excess| worst.max(*excess));
        Some((domain, &*active.rule().name, bound, worst))
    });
    let bounded: Vec<_> = bounded.collect();
    let mut family = |about, number: fn(u64, &Excess) -> u64| {
        let name = text.head(about);
        for (domain, rule, bound, excess) in &bounded {
            let labels = [("domain", *domain), ("rule", *rule)];
            text.labelled(name, &labels, number((*bound).into(), excess));
        }
    };
    family(
        "quell_over_admission_bound gauge By how many units all servers together may exceed a limit of this rule for a moment; of several limits the most.",
        |bound, _| bound,
    );
    family(
        "quell_observed_excess gauge By how many units calls allowed by this process alone have exceeded a limit of this rule, at most; 0: never.",
        |_, excess| excess.calls,
    );
    family(
        "quell_lease_overdraft_units gauge How many units of a limit of this rule this process has admitted, at most, that neither the store had charged for it nor its part of the bound covers; not 0: a mistake.",
        |_, excess| excess.overdraft,
    );
    family(
        "quell_regained_units gauge How many units a limit of this rule had more on the store, at most, than it can have produced and leases have given back: the store forgot charges, or somebody gave units back.",
        |_, excess| excess.regained,
    );
}

fn fleet(text: &mut MetricsText, shared: &Shared) {
    let Some(node) = &shared.node else { return };
    let (status, now) = (node.status(), shared.limiter.now().monotonic);
    let state = status.state(now);
    let states = NodeState::ALL.map(|one| (one.name(), u8::from(one == state)));
    text.by(
        "quell_fleet_state gauge 1 for what this node lives on: granted while a coordinator answers; gap, static and floor while it is cut off.",
        "state",
        states,
    );
    let share = text.head("quell_fleet_share gauge Units per second that this node may use now of a limit of the fleet, rounded down.");
    for limit in &status.limits {
        text.labelled(share, &[("limit", &limit.name)], limit.share(now));
    }
    let whole = text.head("quell_fleet_limit gauge Units per second of all nodes, by the plan that this node follows, rounded down.");
    for limit in &status.limits {
        text.labelled(whole, &[("limit", &limit.name)], limit.whole());
    }
    let answered = status.answered.map_or(Duration::ZERO, |at| now.since(at));
    numbers! { text:
        "quell_fleet_lease_seconds gauge For how long this node's leases still last; 0: it is cut off, or has not joined." = Seconds(status.lease_left(now));
        "quell_fleet_answer_age_seconds gauge How long ago a coordinator answered; 0 before the first answer." = Seconds(answered);
        "quell_fleet_cut_off_seconds_total counter For how long this node has been cut off since it started." = Seconds(status.cut_off);
        "quell_fleet_epoch gauge The number of the newest leadership that this node heard of." = status.epoch;
        "quell_fleet_revision gauge The revision of the plan that this node follows." = status.revision;
        "quell_fleet_unreadable_total counter Answers of coordinators that could not be understood." = status.unreadable;
        "quell_fleet_not_shared gauge Limits of this node's rules that the coordinators do not share: calls on them are refused." = node.not_shared().len();
        "quell_fleet_file_failing gauge 1 while the node's file cannot be written." = u8::from(status.file_trouble.is_some());
    }
}

async fn holds(text: &mut MetricsText, shared: &Shared) {
    let (limiter, metrics) = (&shared.limiter, &shared.metrics);
    let totals = limiter.store().hold_totals(limiter.now()).await;
    text.number("quell_waiters gauge Callers of this process that wait for their turn, whatever store keeps the line.", limiter.waiting());
    let name = text.head(
        "quell_wait_seconds summary How long callers of this process waited that were let go on.",
    );
    let waited = Seconds(Duration::from_nanos(metrics.waited_nanos.get()));
    text.labelled(&format!("{name}_sum"), &[], waited);
    text.labelled(&format!("{name}_count"), &[], metrics.waits.get());
    text.number("quell_permits_held gauge Permits that are held. With a shared store those that calls to this process took, until it gives them back or their time is over: sum it over all processes.", totals.permits);
    let name = text.head("quell_learned_permits gauge Permits that a rule with adaptive hands out at a time, as its last answer said: on whichever of its keys that was.");
    for ((domain, rule), limit) in metrics.rules.learned() {
        text.labelled(name, &[("domain", &domain), ("rule", &rule)], limit);
    }
    numbers! { text:
        "quell_reservations gauge Reservations that can still be settled. With a shared store those made through this process, until they are ended through it or their time is over: sum it over all processes." = totals.reservations;
        "quell_expired_holds_total counter Reservations and permits whose time was over before anybody ended them. With a shared store each counts once, in the process that found it so, whichever made it: sum it over all processes." = totals.expired;
    }
}

fn upkeep(text: &mut MetricsText, shared: &Shared) {
    let (metrics, health) = (&shared.metrics, &shared.health);
    let secrets = [
        &health.credentials,
        &health.certificates,
        &health.envoy_secret,
    ];
    let attempts = [&[&health.reload], &secrets[..]].concat();
    let is_failed = attempts.iter().any(|attempts| attempts.failure().is_some())
        || shared.sources.is_a_store_failing();
    numbers! { text:
        "quell_reloads_total counter Reloads of the rules." = metrics.reloads.get();
        "quell_reload_failures_total counter Reloads of rules, credentials, certificates and secrets of reservations that failed; those in force stayed." = metrics.reload_failures.get();
        "quell_reload_failed gauge 1 while the rules, credentials, certificates or secrets of reservations in force are not those in the files and stores, since these are wrong or cannot be read." = u8::from(is_failed);
        "quell_emptied_domains gauge Domains that had rules since the start and have none now." = health.emptied_domains().len();
    }
    let standings = shared.sources.stores();
    let standings: Vec<_> = standings
        .map(|stored| (stored.url(), stored.status()))
        .collect();
    if !standings.is_empty() {
        let versions = standings.iter();
        let versions = versions.map(|(url, standing)| (url, standing.version().unwrap_or(0)));
        text.by("quell_rules_version gauge The version of the rules in force, of each store that rules are read from; 0: none.", "store", versions);
        let readable = standings.iter();
        let readable = readable.map(|(url, now)| (url, u8::from(now.failure.is_none())));
        text.by(
            "quell_rules_store_readable gauge 1 while the rules can be read from the store.",
            "store",
            readable,
        );
    }
    if let Some(tls) = &shared.tls {
        text.number("quell_tls_certificate_expiry_seconds gauge When the first certificate of the chain that the listeners show expires, in seconds since 1970.", tls.expires().as_second());
    }
    let snapshot_took = Duration::from_nanos(metrics.snapshot_nanos.get());
    numbers! { text:
        "quell_snapshots_total counter Snapshots written." = metrics.snapshots.get();
        "quell_snapshot_failures_total counter Snapshots that could not be written." = metrics.snapshot_failures.get();
        "quell_snapshot_failing gauge 1 while the last snapshot could not be written." = u8::from(health.snapshot.failure().is_some());
        "quell_snapshot_bytes gauge Size of the last snapshot." = metrics.snapshot_bytes.get();
        "quell_snapshot_seconds gauge How long it took." = Seconds(snapshot_took);
        "quell_decision_log_lines_total counter Lines written to the decision log." = metrics.log_written.get();
        "quell_decision_log_failing gauge 1 while the decision log cannot be written." = metrics.log_failing.get();
        "quell_decision_log_dropped_total counter Queries that the decision log could not keep up with." = metrics.log_dropped.get();
        "quell_spans_total counter Spans that the collector took (otlp_endpoint)." = metrics.spans_sent.get();
        "quell_spans_dropped_total counter Spans that were dropped, since the queue was full or the collector did not take them." = metrics.spans_dropped.get();
        "quell_degraded_queries_total counter Queries on acquires that were answered degraded: by what was declared for an outage, or without a grant of a coordinator." = metrics.degraded.get();
        "quell_top_missed_total counter Refusals that /v1/top did not count, since another was being counted." = shared.top.missed();
        "quell_buffer_bytes gauge Bytes of commands, bodies and replies that wait in buffers (max_buffer_bytes)." = shared.buffer_bytes();
        "quell_uptime_seconds gauge Time since the start." = Seconds(shared.started.elapsed());
    }
    let version = [(env!("CARGO_PKG_VERSION"), 1)];
    let about = "quell_build_info gauge The version, as a label.";
    text.by(about, "version", version);
}

/// The lines of a metric that was begun, for each outcome of a rule.
fn outcomes(
    text: &mut MetricsText,
    name: &str,
    (domain, rule): (&str, &str),
    tally: &RuleTally,
    from: usize,
) {
    for (index, outcome) in OUTCOMES.into_iter().enumerate() {
        let labels = [("domain", domain), ("rule", rule), ("outcome", outcome)];
        text.labelled(name, &labels, tally.sum(from + index));
    }
}
