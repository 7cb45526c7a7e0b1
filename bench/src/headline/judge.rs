//! Judge: what a run admitted, beside the limit.

use std::path::Path;

use anyhow::{Context, Result, ensure};
use quell_core::time::Monotonic;
use quell_shares::audit::{Auditor, Intervals};
use quell_shares::plan::{Drift, MICRO};

use super::{BIN, Event, LIMIT, MOVES, NODES, REPORT, SCENES};

/// Bins of a second.
const SECOND: usize = (1_000_000_000 / BIN) as usize;

/// Bins of a window.
const WINDOW: usize = SECOND / 10;

/// A fleet has settled when a window has so much of what it may have, in percent.
const SETTLED: f64 = 97.0;

/// The length of so many bins in milliseconds.
fn millis(bins: usize) -> f64 {
    bins as f64 * 1_000.0 / SECOND as f64
}

/// Counts of one node: bins with calls asked and admitted.
pub(super) struct Counts(Vec<(u64, u64, u64)>);

impl Counts {
    pub(super) fn read(path: &Path) -> Result<Self> {
        let text = std::fs::read_to_string(path);
        let text = text.with_context(|| format!("cannot read {}", path.display()))?;
        let line = |line: &str| {
            let mut words = line.split(' ').map(str::parse::<u64>);
            let mut word = || {
                words
                    .next()
                    .context("a line is too short")?
                    .context("no number")
            };
            Ok((word()?, word()?, word()?))
        };
        let lines: Result<Vec<_>> = text.lines().map(line).collect();
        Ok(Self(lines?))
    }
}

/// A run.
pub(super) struct Judge {
    /// By bin since the beginning, what each node was asked and admitted.
    pub(super) asked: Vec<u64>,
    pub(super) admitted: Vec<[u64; NODES]>,
    /// The largest excess over the limit.
    excess: u64,
}

impl Judge {
    /// Judges all that was admitted, from before the beginning on.
    pub(super) fn new(begin: u64, burst: u64, counts: Vec<Counts>) -> Result<Self> {
        let bins = SCENES.iter().map(|scene| scene.1).sum::<u64>() as usize * SECOND;
        let (mut asked, mut admitted) = (vec![0; bins], vec![[0; NODES]; bins]);
        let mut all: Vec<(u64, u64)> = Vec::new();
        for (node, Counts(lines)) in counts.into_iter().enumerate() {
            ensure!(!lines.is_empty(), "node {node} has counted nothing");
            for (bin, calls, passed) in lines {
                all.push((bin, passed));
                let at = bin
                    .checked_sub(begin / BIN)
                    .and_then(|at| usize::try_from(at).ok());
                if let Some(at) = at.filter(|at| *at < bins) {
                    asked[at] += calls;
                    admitted[at][node] += passed;
                }
            }
        }
        all.sort_unstable();
        let first = all.first().map_or(0, |(bin, _)| *bin);
        let at = |bin: u64| Monotonic::from_nanos(bin * BIN);
        let auditor = Auditor::new(LIMIT * MICRO, burst * MICRO, Drift::DEFAULT, at(first));
        let mut intervals = Intervals::new(auditor, std::time::Duration::from_nanos(BIN));
        let mut excess = None;
        for (bin, passed) in all {
            excess = excess.max(intervals.judge(at(bin)));
            excess = excess.max(intervals.count(at(bin), passed * MICRO));
        }
        excess = excess.max(intervals.judge(Monotonic::from_nanos(u64::MAX)));
        Ok(Self {
            asked,
            admitted,
            excess: excess.unwrap_or(0).div_ceil(MICRO),
        })
    }

    /// The bins of a scene.
    fn scene(event: Event, name: &str) -> std::ops::Range<usize> {
        let mut from = 0;
        for (scene, seconds, its) in SCENES {
            let end = from + seconds as usize * SECOND;
            if its == event && scene == name {
                return from..end;
            }
            from = end;
        }
        0..0
    }

    /// The part of the limit that was admitted in these bins, in percent.
    fn part(&self, bins: std::ops::Range<usize>) -> f64 {
        let length = bins.len() as f64 / SECOND as f64;
        let admitted: u64 = self.admitted[bins].iter().flatten().sum();
        admitted as f64 / (LIMIT as f64 * length) * 100.0
    }

    fn windows(&self, bins: std::ops::Range<usize>) -> impl Iterator<Item = (usize, f64)> {
        let last = bins.end.saturating_sub(WINDOW);
        (bins.start..=last).map(|at| (at, self.part(at..at + WINDOW)))
    }

    /// Milliseconds from the beginning of these bins to the end of the first window with enough.
    fn settles(&self, bins: std::ops::Range<usize>) -> f64 {
        let (from, length) = (bins.start, bins.len());
        let settled = self.windows(bins).find(|(_, part)| *part >= SETTLED);
        millis(settled.map_or(length, |(at, _)| at + WINDOW - from))
    }

    /// The lag of a move of demand: milliseconds to the end of the last two windows in which the node that
    /// is asked for so much more now has less than 90 % of what it has in the end. What it saved up in its
    /// bucket may fill the first windows.
    fn lag(&self, bins: std::ops::Range<usize>) -> f64 {
        let before = bins.start.saturating_sub(SECOND)..bins.start;
        let end = bins.end - 3 * SECOND..bins.end;
        let of = |node: usize, bins: std::ops::Range<usize>| {
            let length = bins.len() as f64;
            let admitted: u64 = self.admitted[bins].iter().map(|bin| bin[node]).sum();
            admitted as f64 / length
        };
        let gain = |node: usize| of(node, end.clone()) - of(node, before.clone());
        let node = (0..NODES).max_by(|one, other| gain(*one).total_cmp(&gain(*other)));
        let node = node.unwrap_or(0);
        let enough = of(node, end.clone()) * 0.9;
        let mut starts = bins.start..end.start;
        let last = starts.rfind(|at| of(node, *at..*at + 2 * WINDOW) < enough);
        millis(last.map_or(0, |at| at + 2 * WINDOW - bins.start))
    }

    /// All figures of the run: what, unit, value.
    pub(super) fn figures(&self) -> Vec<(&'static str, &'static str, f64)> {
        let still = Self::scene(Event::Nothing, "still");
        let moving = Self::scene(Event::Moves, "moving");
        let led = Self::scene(Event::CoordinatorDies, "coordinator killed");
        let dead = Self::scene(Event::NodeDies, "node killed");
        let fenced = Self::scene(Event::NodeIsFenced, "node fenced");
        let every = MOVES as usize * SECOND;
        let moves = moving.clone().step_by(every);
        let mut lags: Vec<f64> = moves.map(|at| self.lag(at..at + every)).collect();
        lags.sort_by(f64::total_cmp);
        let least = |bins| {
            self.windows(bins)
                .map(|(_, part)| part)
                .fold(f64::MAX, f64::min)
        };
        let most = self.admitted.windows(SECOND);
        let most = most.map(|bins| bins.iter().flatten().sum::<u64>()).max();
        let begun = REPORT.as_millis() as usize * 3 * SECOND / 1_000;
        let asked: u64 = self.asked[still.start..moving.end].iter().sum();
        let length = (moving.end - still.start) as f64 / SECOND as f64;
        vec![
            ("above the limit", "calls", self.excess as f64),
            (
                "offered, of the limit",
                "%",
                asked as f64 / length / LIMIT as f64 * 100.0,
            ),
            ("admitted, still", "%", self.part(still.clone())),
            ("admitted, moving every 10 s", "%", self.part(moving)),
            (
                "most in a second",
                "%",
                most.unwrap_or(0) as f64 / LIMIT as f64 * 100.0,
            ),
            ("lag of a move, median", "ms", lags[lags.len() / 2]),
            ("lag of a move, longest", "ms", lags[lags.len() - 1]),
            ("least in 100 ms, still", "%", least(still)),
            (
                "least in 100 ms, coordinator killed",
                "%",
                least(led.clone()),
            ),
            ("admitted, coordinator killed", "%", self.part(led)),
            (
                "admitted, last 10 s with a dead node",
                "%",
                self.part(dead.end - 10 * SECOND..dead.end),
            ),
            (
                "until 97 % after the fence call",
                "ms",
                self.settles(fenced.clone()),
            ),
            (
                "admitted after 3T, node fenced",
                "%",
                self.part(fenced.start + begun..fenced.end),
            ),
        ]
    }

    /// The run in a line.
    pub(super) fn line(&self) -> String {
        let shown = self.figures();
        let shown = shown.iter().take(4);
        let shown = shown.map(|(what, unit, value)| format!("{what} {value:.1} {unit}"));
        shown.collect::<Vec<_>>().join(", ")
    }
}
