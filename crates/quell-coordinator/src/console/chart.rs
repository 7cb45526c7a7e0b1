//! Charts: what each node wanted, admitted and could use of a limit over time, how much of what calls asked for
//! was refused and answered degraded, and a node's weight and the age of its lease.

use std::collections::BTreeSet;

use jiff::Timestamp;
use quell_host::history::{Point, Series, Span};
use serde::Serialize;

use crate::history::{History, LimitCounts, Share, per_s};
use crate::report::{rate, some_percent};

/// Nodes that a chart shows one by one.
const MAX_NODES: usize = 8;

/// Subject of a chart over time.
#[derive(Clone, Copy, Debug)]
pub(super) struct View<'a> {
    pub(super) limit: &'a str,
    /// `None`: of all nodes.
    pub(super) node: Option<u32>,
    pub(super) span: Span,
}

/// A line; gaps are where nothing is known.
type Column = Vec<Option<f32>>;

/// Drawing of a limit, in units per second.
#[derive(Debug, Serialize)]
pub(super) struct Chart {
    times: Vec<i64>,
    names: Vec<String>,
    /// For each name what it may use together with those before it: never more than the limit, whatever is known
    /// of them one by one.
    stacked: Vec<Column>,
    /// Of all nodes together; left out where one is shown.
    #[serde(skip_serializing_if = "Option::is_none")]
    limit: Option<Column>,
    demand: Column,
    admitted: Column,
    /// Of all nodes how much was refused and answered degraded, in percent; of one its weight and the age of its
    /// lease, in seconds.
    below: [Column; 2],
}

/// Contents of a page so far.
#[derive(Debug, Default)]
pub(super) struct Drawn {
    /// As many looks were taken.
    looks: Option<u64>,
    at: i64,
    names: Vec<String>,
}

impl Chart {
    /// Chart from an instant on. Of all nodes those with the largest shares now are shown one by one.
    fn new(series: &Series<LimitCounts>, view: View<'_>, from: i64) -> Self {
        let last = series.last().map(|last| &last.counts.shares);
        let mut largest: Vec<&Share> = last.into_iter().flatten().collect();
        largest.sort_by(|one, other| other.may_use.total_cmp(&one.may_use));
        let largest = largest.iter().take(MAX_NODES).map(|share| share.node);
        let shown: BTreeSet<u32> = match view.node {
            Some(node) => BTreeSet::from([node]),
            None => largest.collect(),
        };
        let mut rows = series.with_gaps(view.span);
        rows.retain(|(at, _)| *at >= from);
        let column = |of: &dyn Fn(&Point<LimitCounts>) -> Option<f32>| -> Column {
            rows.iter().map(|(_, point)| of((*point)?)).collect()
        };
        let total =
            |of: fn(&LimitCounts) -> f32| column(&|point| Some(per_s(point, of(&point.counts))));
        let share = |node, of: fn(&Share) -> f32| {
            column(&|point| Some(per_s(point, of(point.counts.share(node)?))))
        };
        let mut names: Vec<String> = shown.iter().map(|node| format!("node {node}")).collect();
        let times = rows.iter().map(|(at, _)| *at).collect();
        if let Some(node) = view.node {
            let of_node =
                |of: fn(&Share) -> f32| column(&|point| Some(of(point.counts.share(node)?)));
            return Self {
                times,
                names,
                stacked: vec![share(node, |one| one.may_use)],
                limit: None,
                demand: share(node, |one| one.demand),
                admitted: share(node, |one| one.admitted),
                below: [of_node(|one| one.weight), of_node(|one| one.lease_age)],
            };
        }
        let up_to = |last: &u32| {
            column(&|point| {
                let some = shown.range(..=last);
                let some = some.filter_map(|node| point.counts.share(*node));
                let sum = some.map(|share| share.may_use).sum::<f32>();
                Some(per_s(point, sum.min(point.counts.may_use)))
            })
        };
        let mut stacked: Vec<_> = shown.iter().map(up_to).collect();
        names.push("all others".to_owned());
        stacked.push(total(|all| all.may_use));
        let part =
            |of: fn(&LimitCounts) -> f32| column(&|point| point.counts.percent(of(&point.counts)));
        Self {
            times,
            names,
            stacked,
            limit: Some(total(|all| all.limit)),
            demand: total(|all| all.demand),
            admitted: total(|all| all.admitted),
            below: [part(|all| all.refused), part(|all| all.degraded)],
        }
    }
}

/// Describes a chart in words.
pub(super) fn words(history: &History, view: View<'_>) -> Option<String> {
    let series = history.series(view.limit, view.span)?;
    let chart = Chart::new(&series, view, i64::MIN);
    let at = |seconds: &i64| Timestamp::from_second(*seconds).ok();
    let (from, to) = (at(chart.times.first()?)?, at(chart.times.last()?)?);
    let most = |column: &Column| column.iter().flatten().copied().fold(0.0, f32::max);
    let of = |column: &Column| rate(most(column).into());
    let may_use = of(chart.stacked.last()?);
    let (demand, admitted) = (of(&chart.demand), of(&chart.admitted));
    let all = series.sum()?.counts;
    let part = |units| some_percent(all.percent(units).map(f64::from));
    let (refused, degraded) = (part(all.refused), part(all.degraded));
    let [weight, age] = chart.below.each_ref().map(of);
    let limit = chart.limit.map(|limit| format!(" of {}/s", of(&limit)));
    let more = match view.node {
        None => {
            format!("Of what calls asked for {refused} was refused, {degraded} answered degraded.")
        }
        Some(_) => format!("Its weight was at most {weight}, its lease renewed within {age} s."),
    };
    Some(format!(
        "From {from} to {to}: could use {may_use}/s{}, wanted {demand}/s and admitted {admitted}/s at the most. {more}",
        limit.unwrap_or_default()
    ))
}

impl Drawn {
    /// Steps that the page lacks, from the one that it drew last; all of them if other nodes are shown now.
    pub(super) fn news(&mut self, history: &History, view: View<'_>) -> Option<Chart> {
        let looks = Some(history.looks()).filter(|looks| self.looks != Some(*looks))?;
        let series = history.series(view.limit, view.span)?;
        let mut chart = Chart::new(&series, view, self.at);
        if chart.names != self.names || chart.times.is_empty() {
            chart = Chart::new(&series, view, i64::MIN);
        }
        (self.looks, self.at) = (Some(looks), *chart.times.last()?);
        self.names.clone_from(&chart.names);
        Some(chart)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::history::tests::{heard, status};

    /// Of all nodes, or of one, in the last hour.
    fn view(limit: &str, node: Option<u32>) -> View<'_> {
        let span = Span::Hour;
        View { limit, node, span }
    }

    #[test]
    fn a_chart_has_the_largest_shares_and_all_others_together() {
        let history = History::default();
        history.add_at(&status(2), 5);
        history.add_at(&status(10), 10);
        history.add_at(&heard(1, 10, [200.0, 50.0, 10.0]), 15);
        let chart = Drawn::default().news(&history, view("api", None)).unwrap();
        assert_eq!(chart.times, [0, 10]);
        assert_eq!((&*chart.names[0], &*chart.names[7]), ("node 3", "node 10"));
        assert_eq!(chart.stacked[0], [Some(0.0), Some(3.0)]);
        assert_eq!(chart.stacked[7], [Some(0.0), Some(52.0)]);
        assert_eq!(
            (&*chart.names[8], &*chart.stacked[8]),
            ("all others", &[Some(3.0), Some(55.0)][..])
        );
        assert_eq!(chart.limit.unwrap(), [Some(100.0); 2]);
        assert_eq!(chart.demand, [Some(4.0), Some(20.0)]);
        assert_eq!(chart.admitted, [Some(3.0), Some(15.0)]);
        assert_eq!(chart.below, [[None, Some(25.0)], [None, Some(5.0)]]);
        let words = words(&history, view("api", None)).unwrap();
        let shown = "1970-01-01T00:00:10Z: could use 55/s of 100/s, wanted 20/s and admitted 15/s at the most. Of \
                     what calls asked for 25 % was refused, 5 % answered degraded.";
        assert!(words.ends_with(shown), "{words}");
        assert!(
            Drawn::default()
                .news(&history, view("gone", None))
                .is_none()
        );
    }

    #[test]
    fn the_chart_of_a_node_has_what_it_wants_and_admits() {
        let history = History::default();
        history.add_at(&status(2), 5);
        let of = |node| {
            Drawn::default()
                .news(&history, view("api", Some(node)))
                .unwrap()
        };
        let chart = of(2);
        assert_eq!(
            (&*chart.names, &*chart.stacked),
            (&["node 2".to_owned()][..], &[vec![Some(2.0)]][..])
        );
        assert_eq!(
            (&*chart.demand, &*chart.admitted),
            (&[Some(2.0)][..], &[Some(1.5)][..])
        );
        assert!(chart.limit.is_none());
        assert_eq!(chart.below, [[Some(3.0)], [Some(0.5)]]);
        let words = words(&history, view("api", Some(2))).unwrap();
        let lease = " Its weight was at most 3, its lease renewed within 0.5 s.";
        assert!(words.ends_with(lease), "{words}");
        assert_eq!(of(3).demand, [None]);
    }

    /// Numbers of single nodes at a leader may sum to more than all have.
    #[test]
    fn nodes_are_never_drawn_above_the_limit() {
        let history = History::default();
        history.add_at(&status(40), 5);
        let chart = Drawn::default().news(&history, view("api", None)).unwrap();
        let last: Vec<_> = chart.stacked.iter().map(|column| column[0]).collect();
        // 33 and 34, then it is full.
        assert_eq!(last[..3], [Some(33.0), Some(67.0), Some(100.0)]);
        assert_eq!(last[3..], [Some(100.0); 6]);
        let shown = words(&history, view("api", None)).unwrap();
        assert!(shown.contains("could use 100/s of 100/s"), "{shown}");
        // A limit that moves to another group is there twice.
        let mut twice = status(40);
        twice.limits.push(twice.limits[0].clone());
        history.add_at(&twice, 10);
        let chart = Drawn::default().news(&history, view("api", None)).unwrap();
        assert_eq!(chart.limit.unwrap(), [Some(100.0), Some(200.0)]);
        assert_eq!(chart.stacked[8], [Some(100.0), Some(200.0)]);
    }

    #[test]
    fn where_nobody_looked_is_a_gap() {
        let history = History::default();
        for at in [0, 10, 50, 600] {
            history.add_at(&status(1), at);
        }
        let of = |span| {
            let view = View {
                span,
                ..view("api", None)
            };
            let chart = Drawn::default().news(&history, view).unwrap();
            (chart.times, chart.demand)
        };
        let (gap, some) = (None, Some(2.0));
        assert_eq!(
            of(Span::Hour),
            (
                vec![0, 10, 20, 50, 60, 600],
                vec![some, some, gap, some, gap, some]
            )
        );
        assert_eq!(of(Span::Day), (vec![0, 300, 600], vec![some, gap, some]));
    }

    #[test]
    fn a_page_is_sent_what_it_does_not_show_yet() {
        let (history, mut drawn) = (History::default(), Drawn::default());
        let mut times = |history: &History| {
            let news = drawn.news(history, view("api", None));
            news.map(|chart| chart.times)
        };
        assert_eq!(times(&history), None);
        history.add_at(&status(2), 5);
        history.add_at(&status(2), 10);
        assert_eq!(times(&history), Some(vec![0, 10]));
        assert_eq!(times(&history), None);
        // The step that was drawn last goes on.
        history.add_at(&status(2), 15);
        history.add_at(&status(2), 20);
        assert_eq!(times(&history), Some(vec![10, 20]));
        // Another node has a share, so the columns are others.
        history.add_at(&status(3), 20);
        assert_eq!(times(&history), Some(vec![0, 10, 20]));
        history.add_at(&status(3), -5_000);
        assert_eq!(times(&history), Some(vec![-5_000]), "the clock is set back");
    }
}
