//! History: what the nodes of a fleet wanted, admitted, refused and could use of each limit in the last hour and
//! day, for the charts of the console. With a file it survives a restart.

use std::collections::{BTreeMap, HashMap};
use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::status::{FleetStatus, GenerationNumber, LimitStatus};
use jiff::Timestamp;
use quell_host::history::{
    Numbers, Point, Series, Span, read as read_history, write as write_history,
};
use serde::{Deserialize, Serialize};

/// Seconds that one look at the fleet stands for.
pub(crate) const LOOK_EVERY: u64 = 5;

/// Steps of all limits together that are kept of the hour, and of the day; some 80 bytes each. Up to some 1,300
/// limits have their whole hour and day.
const MAX_STEPS: usize = 500_000;

/// Shares of nodes in them, 24 bytes each. A large fleet has those of its last steps alone: with 1,000 nodes and
/// 10 limits of 8 minutes and 4 hours.
const MAX_SHARES: usize = 500_000;

/// As many steps, and as many shares, are in the file of the hour and of the day: 16 MB at the most.
const MAX_IN_FILE: usize = 100_000;

/// First bytes of the file.
const FORMAT: &[u8] = b"quell shares 1\n";

/// LimitCounts of a limit in some time: units, of a rate so many as it stands for in that time.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct LimitCounts {
    pub(crate) limit: f32,
    pub(crate) may_use: f32,
    pub(crate) demand: f32,
    pub(crate) admitted: f32,
    /// Units calls asked for; 0 also if unknown.
    pub(crate) asked: f32,
    pub(crate) refused: f32,
    pub(crate) degraded: f32,
    /// In the order of the nodes; none if there were too many.
    pub(crate) shares: Vec<Share>,
}

/// A node's share of a limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Share {
    pub(crate) node: u32,
    pub(crate) may_use: f32,
    pub(crate) demand: f32,
    pub(crate) admitted: f32,
    /// Of the node at last, like its lease.
    pub(crate) weight: f32,
    /// Time since the lease was renewed, in seconds.
    pub(crate) lease_age: f32,
}

/// By the names of the limits.
type Limits = BTreeMap<String, Series<LimitCounts>>;

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
struct KeptHistory {
    hour: Limits,
    day: Limits,
}

/// Answers of nodes at the last look, under the leader of an epoch.
#[derive(Debug, Default)]
struct LastLook {
    epoch: Option<GenerationNumber>,
    /// By name and group: while a rollout moves a limit to another group, there are two of the name.
    limits: HashMap<(String, Option<String>), AnsweredUnits>,
}

/// Units since the leader heard the nodes.
#[derive(Clone, Copy, Debug, Default)]
struct AnsweredUnits {
    asked: f64,
    refused: f64,
    degraded: f64,
}

#[derive(Debug, Default)]
struct HistoryState {
    kept: KeptHistory,
    last: LastLook,
    looks: u64,
}

/// The last hour and the last day of a fleet, while this coordinator led.
#[derive(Debug, Default)]
pub(crate) struct History {
    state: Mutex<HistoryState>,
    file: Option<PathBuf>,
}

impl Numbers for LimitCounts {
    fn add(&mut self, later: &Self) {
        for (sum, more) in [
            (&mut self.limit, later.limit),
            (&mut self.may_use, later.may_use),
            (&mut self.demand, later.demand),
            (&mut self.admitted, later.admitted),
            (&mut self.asked, later.asked),
            (&mut self.refused, later.refused),
            (&mut self.degraded, later.degraded),
        ] {
            *sum += more;
        }
        for share in &later.shares {
            let at = self
                .shares
                .binary_search_by_key(&share.node, |one| one.node);
            match at.map(|at| self.shares.get_mut(at)) {
                Ok(Some(sum)) => sum.add(share),
                Ok(None) => {}
                Err(at) => self.shares.insert(at, *share),
            }
        }
    }
}

impl Share {
    fn add(&mut self, later: &Self) {
        *self = Self {
            may_use: self.may_use + later.may_use,
            demand: self.demand + later.demand,
            admitted: self.admitted + later.admitted,
            ..*later
        };
    }
}

impl LimitCounts {
    /// Units as a percentage of what calls asked for.
    pub(crate) fn percent(&self, units: f32) -> Option<f32> {
        (self.asked > 0.0).then(|| units / self.asked * 100.0)
    }

    /// A node's share.
    pub(crate) fn share(&self, node: u32) -> Option<&Share> {
        let at = self.shares.binary_search_by_key(&node, |share| share.node);
        self.shares.get(at.ok()?)
    }
}

#[expect(clippy::cast_possible_truncation, reason = "it is only drawn")]
fn drawn(number: f64) -> f32 {
    number as f32
}

/// Units a second.
#[expect(clippy::cast_precision_loss, reason = "it is only drawn")]
pub(crate) fn per_s(point: &Point<LimitCounts>, units: f32) -> f32 {
    units * 1_000.0 / point.millis.max(1) as f32
}

/// Units in the time of a look.
fn units(per_s: f64) -> f32 {
    drawn(per_s * LOOK_EVERY as f64)
}

/// LimitCounts to add to the limits of a fleet.
fn look(status: &FleetStatus) -> BTreeMap<&str, LimitCounts> {
    let mut limits: BTreeMap<&str, LimitCounts> = BTreeMap::new();
    for limit in &status.limits {
        limits.entry(&limit.name).or_default().limit += units(limit.most());
    }
    for node in &status.nodes {
        for share in &node.limits {
            let Some(limit) = limits.get_mut(&*share.name) else {
                continue;
            };
            let share = Share {
                node: node.member,
                may_use: units(share.may_use_per_s),
                demand: units(share.demand_per_s),
                admitted: units(share.admitted_per_s.unwrap_or_default()),
                weight: node.weight as f32,
                lease_age: node.heard_ms_ago as f32 / 1_000.0,
            };
            limit.may_use += share.may_use;
            limit.demand += share.demand;
            limit.admitted += share.admitted;
            limit.shares.push(share);
        }
    }
    for limit in limits.values_mut() {
        // The numbers of single nodes may sum to more.
        limit.may_use = limit.may_use.min(limit.limit);
        limit.shares.sort_unstable_by_key(|share| share.node);
        // A node has parts of both limits of a name, for as long as it holds something of the older one.
        limit.shares.dedup_by(|later, share| {
            let is_same = later.node == share.node;
            if is_same {
                share.add(later);
            }
            is_same
        });
    }
    limits
}

impl LastLook {
    fn new(status: &FleetStatus) -> Self {
        let answered = |limit: &LimitStatus| {
            let units = AnsweredUnits {
                asked: limit.asked_total,
                refused: limit.refused_total,
                degraded: limit.degraded_total,
            };
            ((limit.name.clone(), limit.group.clone()), units)
        };
        Self {
            epoch: status.epoch,
            limits: status.limits.iter().map(answered).collect(),
        }
    }

    /// Adds what was answered since `before`: nothing of a limit that was not there, or if another leader has heard
    /// it.
    fn add_since(&self, before: &Self, limits: &mut BTreeMap<&str, LimitCounts>) {
        if self.epoch != before.epoch {
            return;
        }
        for (limit, now) in &self.limits {
            let Some((counts, before)) = limits.get_mut(&*limit.0).zip(before.limits.get(limit))
            else {
                continue;
            };
            for (sum, now, before) in [
                (&mut counts.asked, now.asked, before.asked),
                (&mut counts.refused, now.refused, before.refused),
                (&mut counts.degraded, now.degraded, before.degraded),
            ] {
                *sum += drawn((now - before).max(0.0));
            }
        }
    }
}

impl KeptHistory {
    fn spans(&mut self) -> [(Span, &mut Limits); 2] {
        [(Span::Hour, &mut self.hour), (Span::Day, &mut self.day)]
    }

    /// Forgets the oldest steps, and the shares of the oldest, beyond so many of each span, each limit the same.
    fn bound(&mut self, steps: usize, shares: usize) {
        for (_, limits) in self.spans() {
            let count = limits.len().max(1);
            for series in limits.values_mut() {
                series.keep(steps / count);
                let mut sum = 0;
                for point in series.points_mut().rev() {
                    sum += point.counts.shares.len();
                    if sum > shares / count {
                        point.counts.shares = Vec::new();
                    }
                }
            }
        }
    }
}

impl History {
    /// Reads this file, to which more is added.
    pub(crate) fn open(file: Option<PathBuf>) -> Self {
        let read = |file: &PathBuf| read_history(file, FORMAT);
        let kept = file
            .as_ref()
            .map_or_else(|| Ok(KeptHistory::default()), read);
        let kept = kept.unwrap_or_else(|error| {
            tracing::warn!(?file, %error, "cannot read the shares over time; a new history begins");
            KeptHistory::default()
        });
        let state = HistoryState {
            kept,
            ..HistoryState::default()
        };
        Self {
            state: Mutex::new(state),
            file,
        }
    }

    /// Writes it to the file, if there is one. Waits for the disk.
    pub(crate) fn write(&self) {
        let Some(file) = &self.file else { return };
        let mut kept = self.state().kept.clone();
        kept.bound(MAX_IN_FILE, MAX_IN_FILE);
        if let Err(error) = write_history(file, FORMAT, &kept) {
            tracing::warn!(?file, %error, "cannot write the shares over time");
        }
    }

    fn state(&self) -> MutexGuard<'_, HistoryState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a look at the fleet.
    pub(crate) fn add(&self, status: &FleetStatus) {
        self.add_at(status, Timestamp::now().as_second());
    }

    pub(crate) fn add_at(&self, status: &FleetStatus, at: i64) {
        let mut state = self.state();
        let state = &mut *state;
        let (now, mut looked) = (LastLook::new(status), look(status));
        now.add_since(&state.last, &mut looked);
        for (name, counts) in looked {
            let point = Point {
                at,
                millis: LOOK_EVERY * 1_000,
                counts,
            };
            for (span, limits) in state.kept.spans() {
                if let Some(series) = limits.get_mut(name) {
                    series.add(span, &point);
                } else {
                    let series = limits.entry(name.to_owned()).or_default();
                    series.add(span, &point);
                }
            }
        }
        for (span, limits) in state.kept.spans() {
            let is_new = |point: &Point<_>| point.at > at - span.length();
            limits.retain(|_, series| series.last().is_some_and(is_new));
        }
        state.kept.bound(MAX_STEPS, MAX_SHARES);
        state.last = now;
        state.looks += 1;
    }

    /// Number of looks added.
    pub(crate) fn looks(&self) -> u64 {
        self.state().looks
    }

    /// The steps of a limit.
    pub(crate) fn series(&self, limit: &str, span: Span) -> Option<Series<LimitCounts>> {
        let kept = &self.state().kept;
        let limits = if span == Span::Day {
            &kept.day
        } else {
            &kept.hour
        };
        limits.get(limit).cloned()
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// A leader of this epoch, with so many nodes, that has heard of so many units.
    pub(crate) fn heard(
        epoch: u64,
        nodes: u32,
        [asked, refused, degraded]: [f64; 3],
    ) -> FleetStatus {
        let node = |member: u32| {
            format!(
                r#"{{"member": {member}, "incarnation": "1", "weight": 3, "groups": [], "state": "active",
                "draining": false, "lease_left_ms": 0, "heard_ms_ago": 500, "revision": "1", "follows": "1", "version": 1, "applied": 1, "limits":
                [{{"name": "api", "may_use_per_s": {member}, "share_per_s": 1, "demand_per_s": 2,
                "admitted_per_s": 1.5, "static_per_s": 1, "due_static_per_s": 1, "floor_per_s": 0}}]}}"#
            )
        };
        let nodes: Vec<String> = (1..=nodes).map(node).collect();
        let text = format!(
            r#"{{"leads": true, "leader": null, "store_trouble": null, "refused": null, "restored": null,
            "epoch": "{epoch}", "grants": true, "revision": "1", "awaits_nodes": false, "answered_window_s": 30, "rejected_joins": [],
            "waits": false, "rollout": null, "applied": 1,
            "limits": [{{"name": "api", "group": null, "rate_per_s": 100, "may_use_per_s": 90,
            "held_by_silent_per_s": 0, "most_per_s": 0, "reserved_per_s": 0, "shortage": null, "asked_total": {asked}, "refused_total": {refused},
            "degraded_total": {degraded}}}], "nodes": [{}]}}"#,
            nodes.join(",")
        );
        serde_json::from_str(&text).unwrap()
    }

    pub(crate) fn status(nodes: u32) -> FleetStatus {
        heard(1, nodes, [0.0; 3])
    }

    /// The steps of a limit: when each began, and what is said of it.
    fn steps<R>(
        history: &History,
        limit: &str,
        span: Span,
        of: fn(&LimitCounts) -> R,
    ) -> Vec<(i64, R)> {
        let series = history.series(limit, span).unwrap_or_default();
        let points = series.points();
        points.map(|point| (point.at, of(&point.counts))).collect()
    }

    #[test]
    fn looks_add_up_to_steps_of_an_hour_and_of_a_day() {
        let history = History::default();
        for at in (0..4_000).step_by(5) {
            history.add_at(&status(2), at);
        }
        let of = |span| {
            steps(&history, "api", span, |counts| {
                (counts.limit, counts.shares[1])
            })
        };
        let two = |looks: f32| Share {
            node: 2,
            may_use: 10.0 * looks,
            demand: 10.0 * looks,
            admitted: 7.5 * looks,
            weight: 3.0,
            lease_age: 0.5,
        };
        let hour = of(Span::Hour);
        assert_eq!((hour.len(), hour[0]), (360, (400, (1_000.0, two(2.0)))));
        let day = of(Span::Day);
        assert_eq!((day.len(), day[0]), (14, (0, (30_000.0, two(60.0)))));
    }

    #[test]
    fn what_is_answered_is_of_the_time_between_two_looks_of_one_leader() {
        let history = History::default();
        for (at, epoch, totals) in [
            // Much was answered already when it begins to look.
            (0, 1, [9_000.0, 900.0, 90.0]),
            (10, 1, [9_100.0, 910.0, 91.0]),
            (15, 1, [9_200.0, 910.0, 91.0]),
            // Another leader has heard more, then less.
            (20, 2, [20_000.0, 10_000.0, 10_000.0]),
            (30, 3, [0.0; 3]),
            (40, 3, [10.0, 5.0, 1.0]),
        ] {
            history.add_at(&heard(epoch, 1, totals), at);
        }
        let answered = |counts: &LimitCounts| [counts.asked, counts.refused, counts.degraded];
        assert_eq!(
            steps(&history, "api", Span::Hour, answered),
            [
                (0, [0.0; 3]),
                (10, [200.0, 10.0, 1.0]),
                (20, [0.0; 3]),
                (30, [0.0; 3]),
                (40, [10.0, 5.0, 1.0]),
            ]
        );
        let day = steps(&history, "api", Span::Day, answered);
        assert_eq!(day, [(0, [210.0, 15.0, 2.0])]);
    }

    /// While a rollout moves a limit to another group, there are two of the name, and nodes have parts of both.
    #[test]
    fn a_limit_that_is_moved_and_moved_back_is_answered_for_once() {
        let history = History::default();
        let of = |totals| heard(1, 1, totals);
        history.add_at(&of([9_000.0, 900.0, 90.0]), 0);
        let mut moved = of([9_100.0, 910.0, 91.0]);
        let mut other = moved.limits[0].clone();
        other.group = Some("eu".to_owned());
        (other.asked_total, other.refused_total, other.degraded_total) = (50.0, 5.0, 1.0);
        moved.limits.push(other);
        let share = moved.nodes[0].limits[0].clone();
        moved.nodes[0].limits.push(share);
        history.add_at(&moved, 10);
        moved.limits[1].asked_total += 7.0;
        history.add_at(&moved, 20);
        history.add_at(&of([9_200.0, 920.0, 92.0]), 30);
        let answered = |counts: &LimitCounts| {
            let shares = counts
                .shares
                .iter()
                .map(|share| (share.node, share.may_use));
            (counts.asked, counts.refused, shares.collect::<Vec<_>>())
        };
        assert_eq!(
            steps(&history, "api", Span::Hour, answered),
            [
                (0, (0.0, 0.0, vec![(1, 5.0)])),
                (10, (100.0, 10.0, vec![(1, 10.0)])),
                (20, (7.0, 0.0, vec![(1, 10.0)])),
                (30, (100.0, 10.0, vec![(1, 5.0)])),
            ]
        );
    }

    #[test]
    fn it_survives_a_restart_and_a_damaged_file_is_left_out() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("shares");
        let open = || History::open(Some(file.clone()));
        let history = open();
        for at in [3, 30, 61] {
            history.add_at(&status(2), at);
        }
        history.write();
        let shares =
            |history: &History, span| steps(history, "api", span, |one| one.shares.clone());
        let again = open();
        for span in [Span::Hour, Span::Day] {
            let kept = shares(&again, span);
            assert!(!kept.is_empty());
            assert_eq!(kept, shares(&history, span));
        }
        // Another limit is all that there is a day later.
        let mut other = status(2);
        "pay".clone_into(&mut other.limits[0].name);
        again.add_at(&other, 61 + 3_700);
        assert!(shares(&again, Span::Hour).is_empty() && !shares(&again, Span::Day).is_empty());
        std::fs::write(&file, "[]").unwrap();
        assert!(shares(&open(), Span::Day).is_empty());
        // Nothing else fails if nothing can be written.
        let nowhere = History::open(Some(folder.path().join("no/such/folder")));
        nowhere.add_at(&status(1), 1);
        nowhere.write();
        assert_eq!(shares(&nowhere, Span::Hour).len(), 1);
    }

    /// A fleet with so many limits, each of which has so many shares.
    fn large(limits: usize, nodes: u32) -> FleetStatus {
        let mut status = status(nodes);
        let limit = status.limits.remove(0);
        for number in 0..limits {
            let mut limit = limit.clone();
            limit.name = format!("limit-{number}");
            status.limits.push(limit);
        }
        for node in &mut status.nodes {
            let share = node.limits.remove(0);
            for number in 0..limits {
                let mut share = share.clone();
                share.name = format!("limit-{number}");
                node.limits.push(share);
            }
        }
        status
    }

    /// Number of steps of a limit, and of those that have shares.
    fn counts(history: &History) -> (usize, usize) {
        let steps = steps(history, "limit-1", Span::Hour, |one| one.shares.len());
        let has_shares = |(_, shares): &&(i64, usize)| *shares > 0;
        (steps.len(), steps.iter().filter(has_shares).count())
    }

    #[test]
    fn each_limit_loses_its_oldest_steps_and_before_them_their_shares() {
        let history = History::default();
        (0..10).for_each(|at| history.add_at(&large(2, 2), at * 10));
        history.state().kept.bound(16, 20);
        assert_eq!(counts(&history), (8, 5));
        let kept = steps(&history, "limit-0", Span::Hour, |one| one.may_use);
        assert_eq!((kept[0], kept[7]), ((20, 15.0), (90, 15.0)));
    }

    #[test]
    fn memory_and_file_are_bounded() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("shares");
        // Many nodes, then many limits.
        for (limits, nodes, looks, with_shares) in [(2, 2_000, 140, 125), (5_000, 2, 25, 25)] {
            let history = History::open(Some(file.clone()));
            let status = large(limits, nodes);
            (0..looks).for_each(|at| history.add_at(&status, at * 10));
            let whole = usize::try_from(looks).unwrap();
            assert_eq!(counts(&history), (whole, with_shares), "{limits}, {nodes}");
            history.write();
            let size = std::fs::metadata(&file).unwrap().len();
            assert!(size < 16_000_000, "{size} bytes");
            let each = MAX_IN_FILE / limits;
            let shares = each / usize::try_from(nodes).unwrap();
            let expected = (whole.min(each), with_shares.min(shares));
            assert_eq!(counts(&History::open(Some(file.clone()))), expected);
            std::fs::remove_file(&file).unwrap();
        }
    }
}
