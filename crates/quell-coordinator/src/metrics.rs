//! Metrics: the numbers of a coordinator, as Prometheus reads them (text format 0.0.4).

use std::sync::{Arc, Mutex};
use std::time::Instant;

use quell_core::time::Monotonic;
use quell_host::metrics_text::MetricsText;
use quell_host::numbers::ListenerMetrics;
use quell_shares::generation;
use quell_shares::ledger::{FleetView, LimitView, MemberState};
use quell_shares::message::Totals;

use crate::leader::{Service, Status, Tallies};
use crate::rule_distribution::RuleDistribution;
use crate::status::units;

/// Counts besides what the leader knows.
#[derive(Debug)]
pub struct Metrics {
    /// Instant at which the wanted limits were last read without an error, or their store had nothing
    /// newer.
    config_read: Mutex<Instant>,
    /// Of the listener that nodes call.
    pub nodes: Arc<ListenerMetrics>,
    /// Of the listener that operators call.
    pub admin: Arc<ListenerMetrics>,
}

impl Default for Metrics {
    fn default() -> Self {
        Self {
            config_read: Mutex::new(Instant::now()),
            nodes: Arc::default(),
            admin: Arc::default(),
        }
    }
}

impl Metrics {
    /// The wanted limits were read, or are known to be the newest.
    pub fn config_was_read(&self) {
        let mut read = self.config_read.lock();
        if let Ok(read) = &mut read {
            **read = Instant::now();
        }
    }

    /// All numbers. It costs the leader a pass over all members and limits.
    pub async fn text(&self, service: &Service) -> String {
        let look = service.look(|core, _, now| {
            let view = core.leads(now).map(|ledger| ledger.view(now));
            (now, view)
        });
        let (now, view) = look.await.unwrap_or((Monotonic::ORIGIN, None));
        let status = service.status().borrow().clone();
        let mut text = MetricsText(String::with_capacity(4_096));
        self.coordinator(&mut text, &status, now);
        rules(&mut text, service.rule_distribution(), view.is_some());
        text.listeners([("nodes", &*self.nodes), ("admin", &*self.admin)]);
        let messages = service
            .messages()
            .map(|(kind, count)| (kind.to_owned(), count));
        text.by(
            "quell_fleet_messages_total counter Messages of nodes that were taken, and messages to nodes.",
            "kind",
            messages,
        );
        if let Some(view) = view {
            fleet(&mut text, &view);
            let reports = service.recent_reports().await.unwrap_or_default();
            answers(&mut text, &view, &reports.tallies);
        }
        text.0
    }

    fn coordinator(&self, text: &mut MetricsText, status: &Status, now: Monotonic) {
        let age = self
            .config_read
            .lock()
            .map_or(0, |read| read.elapsed().as_secs());
        let epoch = status.epoch.unwrap_or(0);
        let is = u8::from;
        text.number(
            "quell_fleet_leads gauge Whether this coordinator leads.",
            is(status.epoch.is_some()),
        );
        text.number(
            "quell_fleet_grants gauge Whether it grants; a new leader learns first.",
            is(status.grants),
        );
        text.number(
            "quell_fleet_epoch gauge The number of its leadership, within its generation.",
            generation::within(epoch),
        );
        text.number(
            "quell_fleet_generation gauge The generation of the fleet; raised after a restore.",
            generation::of(epoch),
        );
        text.number(
            "quell_fleet_store_up gauge Whether the configuration store answers.",
            is(status.trouble.is_none()),
        );
        text.number(
            "quell_fleet_limits_refused gauge Whether wanted limits cannot be put into force.",
            is(status.refused.is_some()),
        );
        text.number(
            "quell_fleet_config_age_seconds gauge Time since the wanted limits were last read, or found to be the newest.",
            age,
        );
        leadership(text, status, now);
    }
}

/// Writes whether rules are in use as they are to be, here and by the nodes that follow them.
fn rules(text: &mut MetricsText, rule_distribution: &RuleDistribution, leads: bool) {
    text.number(
        "quell_fleet_rules_failing gauge Whether rules cannot be used: they cannot be read, have a mistake, or are in force and not known here.",
        u8::from(rule_distribution.trouble().texts().next().is_some()),
    );
    if !leads {
        return;
    }
    let (followers, applied) = rule_distribution.followers();
    text.number(
        "quell_fleet_rules_followers gauge Connected nodes that follow the rules of the fleet.",
        followers,
    );
    text.number(
        "quell_fleet_rules_applied gauge Those of them that have the rules in force that they are to have.",
        applied,
    );
}

/// Writes the leadership, and what the leader found.
fn leadership(text: &mut MetricsText, status: &Status, now: Monotonic) {
    let learns = status.elected.filter(|_| !status.grants);
    let learns = learns.map_or(0, |since| now.since(since).as_secs());
    text.number(
        "quell_fleet_learning_seconds gauge For how long this leader has asked what nodes hold; 0 once it grants.",
        learns,
    );
    text.number(
        "quell_fleet_rejected_joins gauge Nodes that ask for a seat and are given none, at most 100.",
        status.rejected_joins.len(),
    );
    text.number(
        "quell_fleet_store_writes gauge Whether the configuration store takes writes; 0 on a full disk: nobody joins, and nothing is changed.",
        u8::from(status.unwritten.is_none()),
    );
    text.number(
        "quell_fleet_dominated gauge Whether one node has nearly all of a limit by its weight.",
        u8::from(status.dominant.is_some()),
    );
    text.number(
        "quell_bound_violated_total counter How often nodes reported that together they admitted more than a limit allows.",
        status.bound_violated,
    );
    text.number(
        "quell_fleet_rollouts_taken_back_total counter Rollouts that left their band, and that this coordinator took back by itself.",
        status.taken_back,
    );
}

fn fleet(text: &mut MetricsText, view: &FleetView) {
    let states = [
        ("unknown", MemberState::Unknown),
        ("active", MemberState::Active),
        ("silent", MemberState::Silent),
        ("draining", MemberState::Draining),
        ("left", MemberState::Left),
    ];
    let count = |state| view.members.iter().filter(|one| one.state == state).count();
    text.by(
        "quell_fleet_nodes gauge Nodes that have a seat, by state.",
        "state",
        states.map(|(name, state)| (name.to_owned(), count(state))),
    );
    text.number(
        "quell_fleet_applied gauge Nodes that follow the plan that they are to follow.",
        view.applied,
    );
    text.number(
        "quell_fleet_revision gauge The revision of the plan in force, within its generation.",
        generation::within(view.revision),
    );
    limits(text, view);
}

/// One of the rates of a limit, in micro-units per second.
type RateOf = fn(&LimitView) -> u64;

fn limits(text: &mut MetricsText, view: &FleetView) {
    let rates: [(&str, RateOf); 5] = [
        (
            "quell_fleet_limit_rate gauge Units per second of a limit.",
            |limit| limit.rate,
        ),
        (
            "quell_fleet_limit_most gauge Units per second of a limit, or of a larger one that nodes may still follow.",
            |limit| limit.most,
        ),
        (
            "quell_fleet_limit_entitled gauge The most units per second that all nodes may use now.",
            |limit| limit.in_use,
        ),
        (
            "quell_fleet_limit_silent gauge Units per second that silent nodes may use, and nobody else.",
            |limit| limit.held_by_silent,
        ),
        (
            "quell_fleet_limit_reserved gauge Units per second that nobody may use after a restore, until an operator says that all nodes were heard.",
            |limit| limit.reserved,
        ),
    ];
    for (about, rate) in rates {
        let one = |limit: &LimitView| (limit.name.to_string(), units(rate(limit)));
        text.by(about, "limit", view.limits.iter().map(one));
    }
    let lag = |limit: &LimitView| (limit.name.to_string(), limit.lag.as_secs_f64());
    text.by(
        "quell_fleet_limit_lag_seconds gauge For how long the node that has waited longest for its planned share has waited.",
        "limit",
        view.limits.iter().map(lag),
    );
    let short = view.limits.iter().map(|limit| {
        let members = limit
            .shortage
            .as_ref()
            .map_or(0, |short| short.members.len());
        (limit.name.to_string(), members)
    });
    text.by(
        "quell_fleet_limit_short_nodes gauge Nodes without their whole static share.",
        "limit",
        short,
    );
}

/// Answers of nodes under each limit.
fn answers(text: &mut MetricsText, view: &FleetView, tallies: &Tallies) {
    let each = |value: fn(&Totals) -> u64| {
        let one = move |limit: &LimitView| {
            let total = tallies
                .get(&limit.limit)
                .map_or(0, |tally| value(&tally.total));
            (limit.name.to_string(), units(total))
        };
        view.limits.iter().map(one)
    };
    text.by(
        "quell_fleet_limit_asked_total counter Units that calls asked nodes for, since this leader hears the nodes.",
        "limit",
        each(|total| total.asked),
    );
    text.by(
        "quell_fleet_limit_refused_total counter Those of them that were refused.",
        "limit",
        each(|total| total.refused),
    );
    text.by(
        "quell_fleet_limit_degraded_total counter Those of them that were answered without a grant of a coordinator.",
        "limit",
        each(|total| total.degraded),
    );
}
