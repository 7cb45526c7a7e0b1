//! Report: every run of every rival with the data of the machine, and medians and ratios for
//! people.

use std::fs;
use std::io::Write;
use std::path::PathBuf;

use anyhow::{Context, Result, bail};
use serde::Serialize;

use crate::machine::{Machine, bench_folder};

/// Everything that one command measured.
#[derive(Debug, Serialize)]
pub(crate) struct Report {
    command: &'static str,
    question: &'static str,
    /// Cost of the measurement itself, and how to read the figures.
    overhead: &'static str,
    machine: Machine,
    /// The command's options, with defaults filled in.
    settings: serde_json::Value,
    series: Vec<Series>,
}

/// The runs of one rival in one case.
#[derive(Debug, Serialize)]
pub(crate) struct Series {
    pub(crate) case: String,
    pub(crate) rival: String,
    pub(crate) unit: &'static str,
    pub(crate) median: f64,
    pub(crate) runs: Vec<f64>,
}

impl Series {
    /// Largest distance of a run from the median, as a fraction of the median.
    pub(crate) fn spread(&self) -> f64 {
        let away = self.runs.iter().map(|run| (run - self.median).abs());
        match away.fold(0.0, f64::max) {
            0.0 => 0.0,
            farthest => farthest / self.median,
        }
    }

    /// The lowest and the highest run.
    pub(crate) fn ends(&self) -> (f64, f64) {
        let runs = || self.runs.iter().copied();
        (
            runs().fold(f64::MAX, f64::min),
            runs().fold(f64::MIN, f64::max),
        )
    }
}

impl Report {
    pub(crate) fn new(
        command: &'static str,
        question: &'static str,
        overhead: &'static str,
        settings: &impl Serialize,
    ) -> Result<Self> {
        let report = Self {
            command,
            question,
            overhead,
            machine: Machine::here(),
            settings: serde_json::to_value(settings)?,
            series: Vec::new(),
        };
        progress(&format!("{question}\n{}", report.machine.line()));
        Ok(report)
    }

    /// Adds one run; runs of the same case and rival belong together.
    pub(crate) fn add(&mut self, case: &str, rival: &str, unit: &'static str, run: f64) {
        let same = |series: &&mut Series| {
            series.case == case && series.rival == rival && series.unit == unit
        };
        let series = match self.series.iter_mut().find(same) {
            Some(series) => series,
            None => {
                self.series.push(Series {
                    case: case.to_owned(),
                    rival: rival.to_owned(),
                    unit,
                    median: 0.0,
                    runs: Vec::new(),
                });
                let last = self.series.len() - 1;
                &mut self.series[last]
            }
        };
        series.runs.push(run);
        series.median = median(&series.runs);
    }

    /// The median of a rival in a case, if it ran.
    pub(crate) fn median(&self, case: &str, rival: &str) -> Option<f64> {
        self.find(case, rival).map(|series| series.median)
    }

    /// All series, in the order in which they were added.
    pub(crate) fn series(&self) -> &[Series] {
        &self.series
    }

    /// The cases, in the order in which they were added.
    pub(crate) fn cases(&self) -> Vec<String> {
        let mut cases: Vec<String> = Vec::new();
        for series in &self.series {
            if !cases.contains(&series.case) {
                cases.push(series.case.clone());
            }
        }
        cases
    }

    /// Largest distance of any run from its median, as a fraction of the median.
    fn spread(&self) -> f64 {
        self.series.iter().map(Series::spread).fold(0.0, f64::max)
    }

    fn find(&self, case: &str, rival: &str) -> Option<&Series> {
        let same = |series: &&Series| series.case == case && series.rival == rival;
        self.series.iter().find(same)
    }

    /// Writes every run to `bench/results/raw`, and prints `tables` or, for programs, the report.
    ///
    /// # Errors
    /// If nothing was measured, or the file cannot be written.
    pub(crate) fn finish(mut self, tables: &str, json: bool) -> Result<()> {
        if self.series.is_empty() {
            bail!("nothing was measured; leave out fewer rivals or cases");
        }
        self.machine.finish();
        let text = serde_json::to_string_pretty(&self)?;
        let path = self.keep(&text)?;
        let mut out = std::io::stdout().lock();
        if json {
            writeln!(out, "{text}")?;
            return Ok(());
        }
        writeln!(out, "\n{}\n{}\n", self.question, self.machine.line())?;
        writeln!(out, "{tables}")?;
        writeln!(out, "{}", self.overhead)?;
        writeln!(
            out,
            "Medians; the run farthest from its median is {:.0} % away. Every run: {}",
            self.spread() * 100.0,
            path.display()
        )?;
        Ok(())
    }

    fn keep(&self, text: &str) -> Result<PathBuf> {
        let folder = bench_folder().join("results").join("raw");
        fs::create_dir_all(&folder)
            .with_context(|| format!("cannot make the folder {}", folder.display()))?;
        let stamp = jiff::Timestamp::now().strftime("%Y%m%d-%H%M%S");
        let path = folder.join(format!("{}-{stamp}.json", self.command));
        fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))?;
        Ok(path)
    }
}

/// The middle run, or the mean of the two middle ones.
pub(crate) fn median(runs: &[f64]) -> f64 {
    let mut sorted = runs.to_vec();
    sorted.sort_by(f64::total_cmp);
    let middle = sorted.len() / 2;
    match sorted.len() {
        0 => f64::NAN,
        length if length % 2 == 1 => sorted[middle],
        _ => f64::midpoint(sorted[middle - 1], sorted[middle]),
    }
}

/// A quotient as `1.23`, or `-` if one of the two did not run.
pub(crate) fn ratio(over: Option<f64>, under: Option<f64>) -> String {
    match (over, under) {
        (Some(over), Some(under)) => format!("{:.2}", over / under),
        _ => "-".to_owned(),
    }
}

/// Reports progress on standard error, apart from the results.
pub(crate) fn progress(line: &str) {
    eprintln!("{line}");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_is_the_middle_run() {
        assert_eq!(median(&[3.0, 1.0, 100.0]).to_bits(), 3.0_f64.to_bits());
        assert_eq!(median(&[1.0, 3.0]).to_bits(), 2.0_f64.to_bits());
        assert!(median(&[]).is_nan());
    }

    #[test]
    fn a_ratio_needs_both() {
        assert_eq!(ratio(Some(3.0), Some(2.0)), "1.50");
        assert_eq!(ratio(None, Some(2.0)), "-");
    }
}
