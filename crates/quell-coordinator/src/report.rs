//! Report: the status of a fleet in sentences, as the command line and the console show it.

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime};

use quell_host::refused_key::entry_words;
use quell_host::wait;
use quell_rules::ExactDuration;

use crate::call_reports::CallsStatus;
use crate::status::{BandStatus, FleetStatus, NodeState};

/// Units per second, for people.
#[must_use]
pub fn rate(per_s: f64) -> String {
    // No limit is above 1e12/s: what somebody says beyond that is no number that means something.
    if !(0.0..1e15).contains(&per_s) {
        return "beyond 10^15".to_owned();
    }
    let text = format!("{per_s:.1}");
    text.strip_suffix(".0").map_or(text.clone(), str::to_owned)
}

/// Units per second, or a dash.
pub(crate) fn some_rate(per_s: Option<f64>) -> String {
    per_s.map_or_else(|| "–".to_owned(), rate)
}

/// A part in percent, or a dash.
pub(crate) fn some_percent(part: Option<f64>) -> String {
    match part {
        None => "–".to_owned(),
        Some(part) if part > 0.0 && part < 0.05 => "< 0.1 %".to_owned(),
        Some(part) => format!("{} %", rate(part)),
    }
}

/// Kind of a note on a fleet, beside its tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// It is so.
    Plain,
    /// It is to be known.
    Note,
    /// It is to be mended.
    Trouble,
}

/// Sentences about a fleet.
pub type Notes = Vec<(Kind, String)>;

/// Of how long and of how many nodes numbers of calls are.
#[must_use]
pub fn whose(status: &FleetStatus, calls: &CallsStatus) -> String {
    let (of, all) = (calls.nodes, status.nodes.len());
    let others = match all.saturating_sub(of) {
        0 => "",
        _ => "; nodes in other programs do not say",
    };
    let window = wait::words(calls.window_ms.next_multiple_of(1_000));
    format!("the last {window} at {of}/{all} nodes{others}")
}

/// The entries of a key.
#[must_use]
pub fn key_words(entries: &BTreeMap<String, Option<String>>) -> String {
    match entries.is_empty() {
        true => "the key of all".to_owned(),
        false => entry_words(entries),
    }
}

/// The time within which calls were decided, or a dash.
#[must_use]
pub fn within(nanos: Option<u64>) -> String {
    let words = |nanos| ExactDuration(Duration::from_nanos(nanos)).to_string();
    nanos.map_or_else(|| "–".to_owned(), words)
}

/// Milliseconds since 1970.
#[must_use]
pub fn now_ms() -> u64 {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    now.map_or(0, |now| u64::try_from(now.as_millis()).unwrap_or(u64::MAX))
}

/// The troubles, and what else is to be known.
#[must_use]
pub fn troubles_and_others(notes: Notes) -> (Notes, Notes) {
    let notes = notes.into_iter();
    notes.partition(|(kind, _)| *kind == Kind::Trouble)
}

/// The most nodes and limits that a sentence names.
const MAX_NAMED: usize = 3;

/// The first few of some, and how many more there are.
fn first_of(all: Vec<String>, what: &str) -> String {
    let shown: Vec<&str> = all.iter().take(MAX_NAMED).map(String::as_str).collect();
    let shown = shown.join(", ");
    match all.len().saturating_sub(MAX_NAMED) {
        0 => shown,
        more => format!("{shown} and {more} more {what}"),
    }
}

/// Sentence about silent nodes: since when, what lies idle because of that, and what to do.
fn silence(status: &FleetStatus, now_ms: u64) -> Option<String> {
    let silent = status.nodes.iter();
    let silent = silent.filter(|node| node.state == NodeState::Silent);
    let mut silent: Vec<_> = silent.collect();
    silent.sort_by_key(|node| std::cmp::Reverse(node.heard_ms_ago));
    let first = silent.first()?;
    let ago = first.heard_ms_ago;
    let since = wait::instant(now_ms.saturating_sub(ago));
    let since = format!("{since} ({} ago)", wait::words(ago.next_multiple_of(1_000)));
    let idle = status.limits.iter();
    let idle = idle.filter(|limit| limit.held_by_silent_per_s > 0.0);
    let idle = idle.map(|limit| {
        let (held, all) = (rate(limit.held_by_silent_per_s), rate(limit.rate_per_s));
        format!("{held} of {all}/s of {}", limit.name)
    });
    let idle = match first_of(idle.collect(), "limits") {
        none if none.is_empty() => "nothing lies idle for it".to_owned(),
        some => format!("{some} lie idle"),
    };
    let (member, start) = (first.member, first.incarnation);
    let fence = format!("`quell fleet fence {member} --incarnation {start}`");
    Some(match silent.len() {
        1 => format!(
            "node {member} is silent since {since}: {idle}; start it again, or if it is dead for certain {fence}"
        ),
        many => {
            let nodes = silent.iter().map(|node| node.member.to_string());
            let nodes = first_of(nodes.collect(), "nodes");
            format!(
                "{many} nodes are silent ({nodes}), the first since {since}: {idle}; start them again, or for each \
                 that is dead for certain {fence} with its own numbers"
            )
        }
    })
}

/// Notes for an operator: troubles, what waits, the version of the rules.
#[must_use]
pub fn notes(status: &FleetStatus, now_ms: u64) -> Vec<(Kind, String)> {
    let silence = silence(status, now_ms).into_iter();
    let troubles = silence.chain(status.troubles());
    let troubles = troubles.map(|text| (Kind::Trouble, text));
    let mut notes: Vec<_> = troubles.collect();
    awaited_nodes(status, &mut notes);
    if status.waits {
        let waiting = status.rules.as_ref().and_then(|rules| rules.waiting);
        let version = waiting.map_or_else(String::new, |number| format!(", version {number}"));
        let text = format!(
            "changed rules wait for `quell fleet rollout`{version}; `quell fleet preview` shows them"
        );
        notes.push((Kind::Note, text));
    }
    for node in &status.rejected_joins {
        let text = format!("node {} is given no seat: {}", node.member, node.why);
        notes.push((Kind::Trouble, text));
    }
    notes.extend(rollout_notes(status));
    rules(status, &mut notes);
    for limit in &status.limits {
        if let Some(shortage) = &limit.shortage {
            notes.push((Kind::Note, format!("{}: {shortage}", limit.name)));
        }
        if let Some(small) = &limit.small_parts {
            notes.push((Kind::Note, format!("small parts: {small}")));
        }
    }
    notes
}

/// Quota reserved after a restore, and what releases it.
fn awaited_nodes(status: &FleetStatus, notes: &mut Vec<(Kind, String)>) {
    if !status.awaits_nodes {
        return;
    }
    let text = "etcd was restored: quota that no node has claimed since is reserved; when every process of the time \
                before has reported, or is dead and its file deleted, run `quell fleet restored --all-heard` to \
                release it";
    notes.push((Kind::Trouble, text.to_owned()));
    for limit in status
        .limits
        .iter()
        .filter(|limit| limit.reserved_per_s > 0.0)
    {
        let (reserved, all) = (rate(limit.reserved_per_s), rate(limit.rate_per_s));
        let text = format!("{}: {reserved} of {all}/s are reserved", limit.name);
        notes.push((Kind::Note, text));
    }
}

/// Nodes to follow the rollout, its criteria, and why the last one was taken back.
#[must_use]
pub fn rollout_notes(status: &FleetStatus) -> Vec<(Kind, String)> {
    let mut notes = Vec::new();
    if let Some(rollout) = &status.rollout {
        let nodes = match rollout.nodes {
            1 => "1 node is".to_owned(),
            many => format!("{many} nodes are"),
        };
        let text = format!("{nodes} to follow plan {}", rollout.revision);
        notes.push((Kind::Note, text));
        if let Some(band) = &rollout.band {
            judged(band, &mut notes);
        }
    }
    if let Some(back) = &status.taken_back {
        let text = format!(
            "the last rollout was taken back at {} because {}",
            wait::instant(back.at_ms),
            back.why
        );
        notes.push((Kind::Trouble, text));
    }
    notes
}

/// By what a rollout is judged, and what its nodes answered.
fn judged(band: &BandStatus, notes: &mut Vec<(Kind, String)>) {
    let most = [
        (band.max_refused_percent, "refused"),
        (band.max_degraded_percent, "answered degraded"),
    ];
    let most = most.into_iter();
    let most = most.filter_map(|(most, what)| Some(format!("{} % {what}", most?)));
    let most: Vec<String> = most.collect();
    let text = format!(
        "it is taken back by itself above {} over {} s",
        most.join(" or "),
        band.window_s
    );
    notes.push((Kind::Note, text));
    for limit in &band.answered {
        let said = match (limit.refused_percent, limit.degraded_percent) {
            (Some(refused), Some(degraded)) => format!(
                "{} {}, {} % refused, {} % answered degraded",
                rate(limit.asked),
                if limit.is_rule { "calls" } else { "asked for" },
                rate(refused),
                rate(degraded)
            ),
            _ => "nothing was asked for".to_owned(),
        };
        let text = format!("{}: these nodes in that time: {said}", limit.name);
        notes.push((Kind::Plain, text));
    }
    if band.not_judged > 0 {
        let text = format!(
            "{} of them are not judged: they have other rules, and do not say what they answered under those of the rollout",
            band.not_judged
        );
        notes.push((Kind::Note, text));
    }
}

/// The version of the rules, how many nodes apply it, and why others do not.
fn rules(status: &FleetStatus, notes: &mut Vec<(Kind, String)>) {
    let Some(rules) = &status.rules else {
        return;
    };
    let (applied, all) = (rules.applied, rules.followers);
    let follow = match all {
        // They read files of their own.
        0 => String::new(),
        _ => format!(", applied by {applied}/{all} nodes that follow it"),
    };
    let staged = rules.rolled_out.map_or_else(String::new, |number| {
        format!(", and version {number} on the nodes of the rollout")
    });
    let newest = match rules.is_unknown && rules.trouble.missing.is_some() {
        true => "the newest rules are ",
        false => "rules ",
    };
    let text = format!(
        "{newest}version {} by {}{staged}{follow}",
        rules.version, rules.by
    );
    notes.push((Kind::Plain, text));
    let troubles = rules.trouble.texts().map(|text| (Kind::Trouble, text));
    notes.extend(troubles);
    for node in &status.nodes {
        if let Some(why) = &node.rules_refused {
            let has = node
                .rules_version
                .map_or("none".to_owned(), |version| version.to_string());
            let text = format!(
                "node {} does not use the rules that it was given, and has version {has}: {why}",
                node.member
            );
            notes.push((Kind::Trouble, text));
        }
    }
}

/// Leader, and nodes applying the plan.
#[must_use]
pub fn head(status: &FleetStatus) -> String {
    let leader = status.leader.as_ref().map(|leader| leader.url.as_str());
    let Some(leader) = leader else {
        return "no coordinator leads".to_owned();
    };
    let (Some(epoch), Some(revision)) = (status.epoch, status.revision) else {
        return format!("{leader} leads, and was not asked: name its --admin address with --url");
    };
    let learns = match status.grants {
        true => "",
        false => ", still asks what nodes have",
    };
    let silent = status.nodes.iter();
    let silent = silent.filter(|node| node.state == NodeState::Silent);
    let silent = match silent.count() {
        0 => String::new(),
        some => format!(", {some} silent"),
    };
    format!(
        "{leader} leads, epoch {epoch}{learns}; plan {revision} applied by {}/{} nodes{silent}",
        status.applied,
        status.nodes.len()
    )
}

/// The state of a node, as a word.
#[must_use]
pub const fn state(state: NodeState) -> &'static str {
    match state {
        NodeState::Unknown => "unknown",
        NodeState::Active => "active",
        NodeState::Silent => "silent",
        NodeState::Draining => "draining",
        NodeState::Left => "left",
    }
}
