//! History: the nodes' shares of each limit over time, for the charts.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::{Mutex, PoisonError};

use jiff::Timestamp;
use quell_coordinator::status::FleetStatus;
use serde::Serialize;

/// Points that are kept: an hour.
const MOST_POINTS: usize = 720;

/// Shares that are kept in all points together, 8 bytes each. With many nodes the charts are shorter: with
/// 1,000 nodes and 10 limits some 8 minutes.
const MOST_SHARES: usize = 1_000_000;

/// Nodes that a chart shows one by one.
const MOST_NODES: usize = 8;

/// The fleet at an instant.
#[derive(Debug)]
struct Point {
    /// Seconds since 1970.
    at: i64,
    limits: BTreeMap<String, Limit>,
}

/// One limit, in units per second.
#[derive(Debug, Default)]
struct Limit {
    rate: f64,
    demand: f64,
    admitted: f64,
    /// What each node may use.
    shares: BTreeMap<u32, f32>,
}

/// What is drawn of a limit, in units per second: a column for each name, one on top of the other.
#[derive(Debug, Serialize)]
pub(super) struct Chart {
    times: Vec<i64>,
    names: Vec<String>,
    shares: Vec<Vec<f64>>,
    limit: Vec<Option<f64>>,
    demand: Vec<Option<f64>>,
    admitted: Vec<Option<f64>>,
}

#[derive(Debug, Default)]
struct Points {
    points: VecDeque<Point>,
    shares: usize,
}

/// The last hour, or less of a large fleet.
#[derive(Debug, Default)]
pub(super) struct History(Mutex<Points>);

impl Point {
    fn of(status: &FleetStatus, at: i64) -> Self {
        let rate = |limit: &quell_coordinator::status::LimitStatus| Limit {
            rate: limit.rate_per_s,
            ..Limit::default()
        };
        let limits = status.limits.iter();
        let mut limits: BTreeMap<_, _> = limits.map(|one| (one.name.clone(), rate(one))).collect();
        for node in &status.nodes {
            for share in &node.limits {
                let Some(limit) = limits.get_mut(&share.name) else {
                    continue;
                };
                limit.demand += share.demand_per_s;
                limit.admitted += share.admitted_per_s.unwrap_or_default();
                #[expect(clippy::cast_possible_truncation, reason = "it is only drawn")]
                limit.shares.insert(node.member, share.may_use_per_s as f32);
            }
        }
        Self { at, limits }
    }

    fn shares(&self) -> usize {
        self.limits.values().map(|limit| limit.shares.len()).sum()
    }
}

impl History {
    pub(super) fn add(&self, status: &FleetStatus) {
        self.add_at(status, Timestamp::now().as_second());
    }

    fn add_at(&self, status: &FleetStatus, at: i64) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let point = Point::of(status, at);
        all.shares += point.shares();
        all.points.push_back(point);
        while all.points.len() > MOST_POINTS || all.shares > MOST_SHARES {
            let Some(oldest) = all.points.pop_front() else {
                break;
            };
            all.shares -= oldest.shares();
        }
    }

    /// The chart of a limit. The nodes with the largest shares now are shown one by one.
    pub(super) fn chart(&self, limit: &str) -> Chart {
        let all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let points: Vec<(i64, Option<&Limit>)> = { all.points.iter() }
            .map(|point| (point.at, point.limits.get(limit)))
            .collect();
        let last = points.last().and_then(|(_, limit)| *limit);
        let mut now: Vec<(u32, f32)> = { last.iter() }
            .flat_map(|limit| limit.shares.iter().map(|(node, share)| (*node, *share)))
            .collect();
        now.sort_by(|(_, one), (_, other)| other.total_cmp(one));
        let shown: BTreeSet<u32> = now.iter().take(MOST_NODES).map(|(node, _)| *node).collect();
        let of_node = |node: u32| -> Vec<f64> {
            let share = |limit: &Limit| limit.shares.get(&node).copied().map_or(0.0, f64::from);
            { points.iter() }
                .map(|(_, limit)| limit.map_or(0.0, share))
                .collect()
        };
        let others = |(_, limit): &(i64, Option<&Limit>)| {
            let shares = limit.iter().flat_map(|limit| &limit.shares);
            let shares = shares.filter(|(node, _)| !shown.contains(node));
            shares.map(|(_, share)| f64::from(*share)).sum()
        };
        let mut names: Vec<String> = shown.iter().map(|node| format!("node {node}")).collect();
        let mut shares: Vec<Vec<f64>> = shown.iter().copied().map(of_node).collect();
        names.push("all others".to_owned());
        shares.push(points.iter().map(others).collect());
        let column =
            |of: fn(&Limit) -> f64| points.iter().map(|(_, limit)| limit.map(of)).collect();
        Chart {
            times: points.iter().map(|(at, _)| *at).collect(),
            names,
            shares,
            limit: column(|limit| limit.rate),
            demand: column(|limit| limit.demand),
            admitted: column(|limit| limit.admitted),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status(nodes: u32) -> FleetStatus {
        let node = |member: u32| {
            format!(
                r#"{{"member": {member}, "incarnation": "1", "weight": 1, "groups": [], "state": "active",
                "heard_ms_ago": 1, "revision": "1", "follows": "1", "version": 1, "applied": 1, "limits":
                [{{"name": "api", "may_use_per_s": {member}, "share_per_s": 1, "demand_per_s": 2,
                "admitted_per_s": 1.5, "static_per_s": 1, "due_static_per_s": 1, "floor_per_s": 0}}]}}"#
            )
        };
        let nodes: Vec<String> = (1..=nodes).map(node).collect();
        let text = format!(
            r#"{{"leads": true, "leader": null, "store_trouble": null, "refused": null, "restored": null,
            "epoch": "1", "grants": true, "revision": "1", "waits": false, "rollout": null, "applied": 1,
            "limits": [{{"name": "api", "group": null, "rate_per_s": 100, "may_use_per_s": 90,
            "held_by_silent_per_s": 0, "shortage": null}}], "nodes": [{}]}}"#,
            nodes.join(",")
        );
        serde_json::from_str(&text).unwrap()
    }

    #[test]
    fn a_chart_has_the_largest_shares_and_all_others_together() {
        let history = History::default();
        history.add_at(&status(2), 5);
        history.add_at(&status(10), 10);
        let chart = history.chart("api");
        assert_eq!(chart.times, [5, 10]);
        assert_eq!((&*chart.names[0], &*chart.names[7]), ("node 3", "node 10"));
        assert_eq!(chart.shares[0], [0.0, 3.0]);
        assert_eq!(
            (&*chart.names[8], &*chart.shares[8]),
            ("all others", &[3.0, 3.0][..])
        );
        assert_eq!(chart.limit, [Some(100.0); 2]);
        assert_eq!(chart.demand, [Some(4.0), Some(20.0)]);
        assert_eq!(chart.admitted, [Some(3.0), Some(15.0)]);
        assert_eq!(history.chart("gone").limit, [None, None]);
    }

    #[test]
    fn what_is_kept_is_bounded() {
        let history = History::default();
        let (small, large) = (status(1), status(10_000));
        (0..1_000).for_each(|at| history.add_at(&small, at));
        assert_eq!(history.chart("api").times.len(), MOST_POINTS);
        (0..110).for_each(|at| history.add_at(&large, at));
        assert_eq!(history.chart("api").times.len(), MOST_SHARES / 10_000);
    }
}
