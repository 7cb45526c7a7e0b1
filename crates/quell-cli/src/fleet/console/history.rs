//! History: what each node wanted, admitted and may use of each limit over time, its weight and the age of its
//! lease, for the charts.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, PoisonError};

use jiff::Timestamp;
use quell_coordinator::disk::{read_json, write_json};
use quell_coordinator::status::FleetStatus;
use serde::{Deserialize, Serialize};

use crate::fleet::status::rate;

/// Points that are kept: an hour.
const MOST_POINTS: usize = 720;

/// Shares that are kept in all points together, 24 bytes each. With many nodes the charts are shorter: with
/// 1,000 nodes and 10 limits some 8 minutes.
const MOST_SHARES: usize = 1_000_000;

/// Shares that are kept in the file, some 90 bytes each.
const MOST_IN_FILE: usize = 100_000;

/// Seconds between two points of the file.
const STEP: i64 = 60;

/// Nodes that a chart shows one by one.
const MOST_NODES: usize = 8;

/// The fleet at an instant.
#[derive(Debug, Serialize, Deserialize)]
struct Point {
    /// Seconds since 1970.
    at: i64,
    limits: BTreeMap<String, Limit>,
}

/// One limit, in units per second.
#[derive(Debug, Default, Serialize, Deserialize)]
struct Limit {
    rate: f32,
    shares: Vec<Share>,
}

/// What a node has of a limit.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
struct Share {
    node: u32,
    may_use: f32,
    demand: f32,
    admitted: f32,
    /// Of the node, like its lease.
    #[serde(default)]
    weight: f32,
    /// How long ago the lease was renewed, in seconds.
    #[serde(default)]
    lease_age: f32,
}

/// What is drawn of a limit, in units per second.
#[derive(Debug, Serialize)]
pub(super) struct Chart {
    times: Vec<i64>,
    names: Vec<String>,
    /// For each name what it may use together with those before it: never more than the limit, whatever is known
    /// of them one by one.
    stacked: Vec<Vec<Option<f32>>>,
    /// Of all nodes together; left out where one is shown.
    #[serde(skip_serializing_if = "Option::is_none")]
    limit: Option<Vec<Option<f32>>>,
    demand: Vec<Option<f32>>,
    admitted: Vec<Option<f32>>,
    /// The weight and the age of the lease, in seconds, where one node is shown.
    #[serde(skip_serializing_if = "Option::is_none")]
    node: Option<[Vec<Option<f32>>; 2]>,
}

/// What a page shows already.
#[derive(Debug, Default)]
pub(super) struct Drawn {
    at: i64,
    names: Vec<String>,
}

#[derive(Debug, Default)]
struct Points {
    points: VecDeque<Point>,
    shares: usize,
}

/// The last hour, or less of a large fleet.
#[derive(Debug, Default)]
pub(super) struct History {
    points: Mutex<Points>,
    /// Where a point of each minute survives a restart.
    file: Option<PathBuf>,
}

impl Point {
    #[expect(clippy::cast_possible_truncation, reason = "it is only drawn")]
    fn of(status: &FleetStatus, at: i64) -> Self {
        let mut limits: BTreeMap<String, Limit> = BTreeMap::new();
        for limit in &status.limits {
            // While a rollout moves a limit to another group, there are two of the name.
            limits.entry(limit.name.clone()).or_default().rate += limit.most() as f32;
        }
        for node in &status.nodes {
            for share in &node.limits {
                let Some(limit) = limits.get_mut(&share.name) else {
                    continue;
                };
                limit.shares.push(Share {
                    node: node.member,
                    may_use: share.may_use_per_s as f32,
                    demand: share.demand_per_s as f32,
                    admitted: share.admitted_per_s.unwrap_or_default() as f32,
                    weight: node.weight as f32,
                    lease_age: node.heard_ms_ago as f32 / 1_000.0,
                });
            }
        }
        Self { at, limits }
    }

    fn size(&self) -> usize {
        self.limits.values().map(|limit| limit.shares.len()).sum()
    }
}

impl History {
    /// What this file has, to which further points are added.
    pub(super) fn open(file: Option<PathBuf>) -> Self {
        let read = |file: &PathBuf| read_json::<Vec<Point>>(file);
        let kept = file.as_ref().map_or_else(|| Ok(Vec::new()), read);
        let kept = kept
            .inspect_err(|error| tracing::warn!(?file, %error, "the shares over time begin anew"));
        let mut points = Points::default();
        { kept.into_iter().flatten() }.for_each(|point| points.add(point));
        let points = Mutex::new(points);
        Self { points, file }
    }

    /// Writes a point of each minute to the file, if there is one. Waits for the disk.
    pub(super) fn write(&self) {
        let Some(file) = &self.file else { return };
        let all = self.points();
        let mut kept: Vec<&Point> = all.points.iter().collect();
        kept.dedup_by_key(|point| point.at.div_euclid(STEP));
        let mut size = 0;
        let fits = |point: &&&Point| {
            size += point.size();
            size <= MOST_IN_FILE
        };
        let newest = kept.iter().rev().take_while(fits).count();
        kept.drain(..kept.len() - newest);
        if let Err(error) = write_json(file, &kept) {
            tracing::warn!(?file, %error, "the shares over time cannot be written");
        }
    }

    fn points(&self) -> MutexGuard<'_, Points> {
        self.points.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn add(&self, status: &FleetStatus) {
        self.add_at(status, Timestamp::now().as_second());
    }

    fn add_at(&self, status: &FleetStatus, at: i64) {
        self.points().add(Point::of(status, at));
    }

    /// What the chart of a limit shows, in words.
    pub(super) fn words(&self, limit: &str, node: Option<u32>) -> Option<String> {
        let chart = self.points().chart(limit, node, i64::MIN);
        let at = |seconds: &i64| Timestamp::from_second(*seconds).ok();
        let (from, to) = (at(chart.times.first()?)?, at(chart.times.last()?)?);
        let most = |all: &mut dyn Iterator<Item = f32>| rate(all.fold(0.0, f32::max).into());
        let of = |column: &[Option<f32>]| most(&mut column.iter().copied().flatten());
        let may_use = of(chart.stacked.last()?);
        let (demand, admitted) = (of(&chart.demand), of(&chart.admitted));
        let limit = chart.limit.map(|limit| format!(" of {}/s", of(&limit)));
        let lease = chart.node.map(|[weight, age]| (of(&weight), of(&age)));
        let lease = lease.map(|(weight, age)| {
            format!(" Its weight was at most {weight}, its lease renewed within {age} s.")
        });
        Some(format!(
            "From {from} to {to}: could use {may_use}/s{}, wanted {demand}/s and admitted {admitted}/s at the most.{}",
            limit.unwrap_or_default(),
            lease.unwrap_or_default()
        ))
    }

    /// What a page does not show yet of a limit at all nodes, or at one; all of it if other nodes are shown now,
    /// or the clock was set back.
    pub(super) fn news(&self, limit: &str, node: Option<u32>, drawn: &mut Drawn) -> Option<Chart> {
        let all = self.points();
        let newest = all.points.back().filter(|point| point.at != drawn.at)?;
        let mut chart = all.chart(limit, node, drawn.at);
        if chart.names != drawn.names || newest.at < drawn.at {
            chart = all.chart(limit, node, i64::MIN);
        }
        (drawn.at, drawn.names) = (newest.at, chart.names.clone());
        Some(chart)
    }
}

impl Points {
    fn add(&mut self, point: Point) {
        self.shares += point.size();
        self.points.push_back(point);
        while self.points.len() > MOST_POINTS || self.shares > MOST_SHARES {
            let Some(oldest) = self.points.pop_front() else {
                break;
            };
            self.shares -= oldest.size();
        }
    }

    /// The chart of a limit after an instant. Of all nodes those with the largest shares now are shown one by one.
    fn chart(&self, limit: &str, node: Option<u32>, after: i64) -> Chart {
        let last = self.points.back().and_then(|last| last.limits.get(limit));
        let mut largest: Vec<&Share> = last.iter().flat_map(|last| &last.shares).collect();
        largest.sort_by(|one, other| other.may_use.total_cmp(&one.may_use));
        let largest = largest.iter().take(MOST_NODES).map(|share| share.node);
        let shown: BTreeSet<u32> = match node {
            Some(node) => BTreeSet::from([node]),
            None => largest.collect(),
        };
        let points = self.points.iter().filter(|point| point.at > after);
        let points: Vec<_> = { points.map(|point| (point.at, point.limits.get(limit))) }.collect();
        let column = |of: &dyn Fn(&Limit) -> f32| -> Vec<Option<f32>> {
            points.iter().map(|(_, limit)| limit.map(of)).collect()
        };
        let sum_of =
            |limit: &Limit, is_meant: &dyn Fn(u32) -> bool, of: fn(&Share) -> f32| -> f32 {
                let meant = limit.shares.iter().filter(|share| is_meant(share.node));
                meant.map(of).sum()
            };
        let is_meant = |one| node.is_none_or(|node| node == one);
        let sum = |of| column(&|limit| sum_of(limit, &is_meant, of));
        let may_use = |is_meant: &dyn Fn(u32) -> bool| {
            column(&|limit| sum_of(limit, is_meant, |share| share.may_use).min(limit.rate))
        };
        let mut names: Vec<String> = shown.iter().map(|node| format!("node {node}")).collect();
        let up_to = |last: &u32| may_use(&|one| one <= *last && shown.contains(&one));
        let mut stacked: Vec<_> = shown.iter().map(up_to).collect();
        if node.is_none() {
            names.push("all others".to_owned());
            stacked.push(may_use(&|_| true));
        }
        Chart {
            times: points.iter().map(|(at, _)| *at).collect(),
            names,
            stacked,
            limit: node.is_none().then(|| column(&|limit| limit.rate)),
            demand: sum(|share| share.demand),
            admitted: sum(|share| share.admitted),
            node: node.map(|_| [sum(|share| share.weight), sum(|share| share.lease_age)]),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status(nodes: u32) -> FleetStatus {
        let node = |member: u32| {
            format!(
                r#"{{"member": {member}, "incarnation": "1", "weight": 3, "groups": [], "state": "active",
                "heard_ms_ago": 500, "revision": "1", "follows": "1", "version": 1, "applied": 1, "limits":
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
        let (history, mut drawn) = (History::default(), Drawn::default());
        history.add_at(&status(2), 5);
        history.add_at(&status(10), 10);
        let chart = history.news("api", None, &mut drawn).unwrap();
        assert_eq!(chart.times, [5, 10]);
        assert_eq!((&*chart.names[0], &*chart.names[7]), ("node 3", "node 10"));
        assert_eq!(chart.stacked[0], [Some(0.0), Some(3.0)]);
        assert_eq!(chart.stacked[7], [Some(0.0), Some(52.0)]);
        assert_eq!(
            (&*chart.names[8], &*chart.stacked[8]),
            ("all others", &[Some(3.0), Some(55.0)][..])
        );
        assert_eq!(chart.limit.unwrap(), [Some(100.0); 2]);
        let words = history.words("api", None).unwrap();
        assert!(
            words.contains("could use 55/s of 100/s, wanted 20/s"),
            "{words}"
        );
        assert_eq!(chart.demand, [Some(4.0), Some(20.0)]);
        assert_eq!(chart.admitted, [Some(3.0), Some(15.0)]);
        let gone = history.news("gone", None, &mut Drawn::default());
        assert_eq!(gone.unwrap().limit.unwrap(), [None, None]);
    }

    #[test]
    fn the_chart_of_a_node_has_what_it_wants_and_admits() {
        let history = History::default();
        history.add_at(&status(2), 5);
        let chart = history.news("api", Some(2), &mut Drawn::default()).unwrap();
        assert_eq!(
            (&*chart.names, &*chart.stacked),
            (&["node 2".to_owned()][..], &[vec![Some(2.0)]][..])
        );
        assert_eq!(
            (&*chart.demand, &*chart.admitted),
            (&[Some(2.0)][..], &[Some(1.5)][..])
        );
        assert!(chart.limit.is_none());
        assert_eq!(chart.node, Some([vec![Some(3.0)], vec![Some(0.5)]]));
        let words = history.words("api", Some(2)).unwrap();
        let lease = " Its weight was at most 3, its lease renewed within 0.5 s.";
        assert!(words.ends_with(lease), "{words}");
        let none = history.news("api", Some(3), &mut Drawn::default());
        assert_eq!(none.unwrap().demand, [Some(0.0)]);
    }

    /// What a leader knows of nodes one by one may sum to more than all have.
    #[test]
    fn nodes_are_never_drawn_above_the_limit() {
        let history = History::default();
        history.add_at(&status(40), 5);
        let chart = history.news("api", None, &mut Drawn::default()).unwrap();
        let last: Vec<_> = chart.stacked.iter().map(|column| column[0]).collect();
        // 33 and 34, then it is full.
        assert_eq!(last[..3], [Some(33.0), Some(67.0), Some(100.0)]);
        assert_eq!(last[3..], [Some(100.0); 6]);
        let words = history.words("api", None).unwrap();
        assert!(words.contains("could use 100/s of 100/s"), "{words}");
    }

    #[test]
    fn a_page_is_sent_what_it_does_not_show_yet() {
        let (history, mut drawn) = (History::default(), Drawn::default());
        let mut times = |history: &History| {
            let news = history.news("api", None, &mut drawn);
            news.map(|chart| chart.times)
        };
        assert_eq!(times(&history), None);
        history.add_at(&status(2), 5);
        history.add_at(&status(2), 10);
        assert_eq!(times(&history), Some(vec![5, 10]));
        assert_eq!(times(&history), None);
        history.add_at(&status(2), 15);
        assert_eq!(times(&history), Some(vec![15]));
        // Another node has a share, so the columns are others.
        history.add_at(&status(3), 20);
        assert_eq!(times(&history), Some(vec![5, 10, 15, 20]));
        history.add_at(&status(3), 1);
        assert_eq!(
            times(&history),
            Some(vec![5, 10, 15, 20, 1]),
            "the clock is set back"
        );
    }

    #[test]
    fn a_point_of_each_minute_survives_a_restart() {
        let folder = tempfile::tempdir().unwrap();
        let file = || Some(folder.path().join("shares"));
        let history = History::open(file());
        for at in [3, 30, 61, 63, 100, 123] {
            history.add_at(&status(2), at);
        }
        history.write();
        let times = || {
            let all = History::open(file()).news("api", Some(2), &mut Drawn::default());
            all.map(|chart| (chart.times, chart.admitted))
        };
        assert_eq!(times(), Some((vec![3, 61, 123], vec![Some(1.5); 3])));
        history.add_at(&status(60_000), 200);
        history.add_at(&status(60_000), 300);
        history.write();
        assert_eq!(times().unwrap().0, [300], "the file is bounded");
        std::fs::write(file().unwrap(), "{").unwrap();
        assert_eq!(times(), None);
    }

    #[test]
    fn what_is_kept_is_bounded() {
        let history = History::default();
        let (small, large) = (status(1), status(10_000));
        let kept = || {
            let all = history.news("api", None, &mut Drawn::default());
            all.unwrap().times.len()
        };
        (1..=1_000).for_each(|at| history.add_at(&small, at));
        assert_eq!(kept(), MOST_POINTS);
        (1..=110).for_each(|at| history.add_at(&large, at));
        assert_eq!(kept(), MOST_SHARES / 10_000);
    }
}
