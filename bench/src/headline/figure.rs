//! Figure: a run as a picture: what was offered and admitted, and each node's part, one upon the other.

use std::path::Path;

use anyhow::{Result, anyhow};
use plotters::prelude::*;

use super::judge::Judge;
use super::{BIN, LIMIT, NODES, SCENES};

/// Bins of a step: half a second.
const STEP: usize = (500_000_000 / BIN) as usize;

const SIZE: (u32, u32) = (900, 420);

/// Draws the run, as SVG.
///
/// # Errors
/// If the file cannot be written.
pub(super) fn draw(judge: &Judge, path: &Path) -> Result<()> {
    let root = SVGBackend::new(path, SIZE).into_drawing_area();
    paint(judge, &root).map_err(|error| anyhow!("cannot draw {}: {error}", path.display()))
}

fn paint<B: DrawingBackend>(
    judge: &Judge,
    root: &DrawingArea<B, plotters::coord::Shift>,
) -> Result<(), Box<dyn std::error::Error>>
where
    B::ErrorType: 'static,
{
    root.fill(&WHITE)?;
    let seconds = |bin: usize| (bin as u64 * BIN) as f64 / 1e9;
    let end = seconds(judge.asked.len());
    let mut chart = ChartBuilder::on(root)
        .margin(10)
        .x_label_area_size(50)
        .y_label_area_size(60)
        .build_cartesian_2d(0.0..end, 0.0..2.45)?;
    chart
        .configure_mesh()
        .disable_mesh()
        .x_desc("seconds")
        .y_desc("million calls per second")
        .draw()?;
    let per_second = |units: u64| units as f64 * (1e9 / BIN as f64) / STEP as f64 / 1e6;
    let steps = || (0..judge.asked.len() / STEP).map(|step| step * STEP..(step + 1) * STEP);
    let line = |value: &dyn Fn(std::ops::Range<usize>) -> u64| -> Vec<(f64, f64)> {
        let point = |bins: std::ops::Range<usize>| (seconds(bins.end), per_second(value(bins)));
        steps().map(point).collect()
    };
    // From the sum of all nodes downwards, so that each area covers the one before it.
    for nodes in (1..=NODES).rev() {
        let sum = |bins: std::ops::Range<usize>| {
            let each = judge.admitted[bins].iter();
            each.flat_map(|bin| &bin[..nodes]).sum::<u64>()
        };
        let colour = Palette99::pick(nodes - 1).mix(1.0);
        chart.draw_series(AreaSeries::new(line(&sum), 0.0, colour.filled()))?;
    }
    let asked = line(&|bins| judge.asked[bins].iter().sum());
    chart.draw_series(LineSeries::new(asked, BLACK.mix(0.5)))?;
    let limit = LIMIT as f64 / 1e6;
    chart.draw_series(LineSeries::new(
        [(0.0, limit), (end, limit)],
        RED.stroke_width(2),
    ))?;
    let mut from = 0.0;
    for ((name, length, _), height) in SCENES.into_iter().zip([2.4, 2.25].into_iter().cycle()) {
        let mark = [(from, 0.0), (from, height)];
        chart.draw_series(LineSeries::new(mark, BLACK.mix(0.3)))?;
        let text = Text::new(name, (from + 0.5, height), ("sans-serif", 12));
        chart.draw_series([text])?;
        from += length as f64;
    }
    let words = [
        ("offered", 1.9, BLACK.mix(0.6)),
        ("limit", 1.12, RED.mix(1.0)),
    ];
    for (word, height, colour) in words {
        let style = ("sans-serif", 13).into_font().color(&colour);
        chart.draw_series([Text::new(word, (0.5, height), style)])?;
    }
    root.present()?;
    Ok(())
}
