//! Figure: draws a small fleet over three eventful minutes.
//!
//! Four equal nodes share 1000/s. Demand moves, the leader dies, a node is cut off and comes back.
//! The upper panel shows what callers offer and what is admitted; the lower one shows, stacked,
//! what each node may use: the sum never exceeds the limit.

use std::fmt::Write;

use quell_shares::plan::MICRO;

use crate::fault::Fault;
use crate::schedules::{begin, may};
use crate::setup::SECOND;
use crate::stories::fleet;
use crate::world::World;

/// Seconds that the picture shows.
const SHOWN: u64 = 180;

const COLOURS: [&str; 4] = ["#2f6f9f", "#d98247", "#6fa04f", "#9a79b5"];

/// The limit.
const LIMIT: u64 = 1_000;

/// The lower edge of each panel.
const PANELS: [u64; 2] = [210, 420];

#[derive(Clone, Copy, Debug)]
struct Sample {
    second: u64,
    offered: u64,
    admitted: u64,
    shares: [u64; 4],
}

/// The events marked in the picture, with their seconds.
const MARKS: [(u64, &str); 7] = [
    (0, "node 1 wants 900"),
    (25, "node 2 wants 600"),
    (50, "node 1 only 150,"),
    (75, "leader dies"),
    (100, "node 2 cut off"),
    (130, "node 2 is back"),
    (155, "node 1 wants 900"),
];

/// Second lines of some marks.
const MORE: [(u64, &str); 2] = [(50, "node 3 wants 500"), (155, "all others idle")];

fn x(second: u64) -> u64 {
    50 + second * 4
}

fn y(rate: u64, bottom: u64) -> u64 {
    bottom - rate.min(1_600) / 10
}

/// The picture, as SVG.
#[must_use]
pub fn draw() -> String {
    let samples = play();
    let mut svg = String::from(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 800 480\" font-family=\"sans-serif\" font-size=\"11\">\n\
         <rect width=\"800\" height=\"480\" fill=\"#fff\"/>\n",
    );
    let w = &mut svg;
    areas(w, &samples);
    frame(w);
    for (colour, value) in [
        ("#888", (|sample| sample.offered) as fn(&Sample) -> u64),
        (COLOURS[0], |sample| sample.admitted),
    ] {
        let points = samples.iter().map(|sample| (sample.second, value(sample)));
        let _ = writeln!(
            w,
            "<path d=\"M{}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"1.5\"/>",
            steps(points, PANELS[0])
        );
    }
    svg.push_str("</svg>\n");
    svg
}

/// A path that keeps each value for one second.
fn steps(points: impl Iterator<Item = (u64, u64)>, bottom: u64) -> String {
    let mut path = String::new();
    for (second, rate) in points {
        let at = y(rate, bottom);
        // Writing to a string cannot fail.
        let _ = write!(path, "{} {at}L{} {at}L", x(second), x(second + 1));
    }
    path.truncate(path.len().saturating_sub(1));
    path
}

/// Each node's share, stacked on the shares of the nodes before it.
fn areas(w: &mut String, samples: &[Sample]) {
    for (node, colour) in COLOURS.iter().enumerate() {
        let below = |sample: &Sample| sample.shares.iter().take(node).sum::<u64>();
        let upper = samples
            .iter()
            .map(|s| (s.second, below(s) + s.shares[node]));
        let mut path = format!("M{}", steps(upper, PANELS[1]));
        for sample in samples.iter().rev() {
            let at = y(below(sample), PANELS[1]);
            let _ = write!(
                path,
                "L{} {at}L{} {at}",
                x(sample.second + 1),
                x(sample.second)
            );
        }
        let _ = writeln!(w, "<path d=\"{path}Z\" fill=\"{colour}\"/>");
    }
}

/// Everything that is not data.
fn frame(w: &mut String) {
    let end = x(SHOWN);
    for (bottom, rates) in [(PANELS[0], [0, 500, LIMIT]), (PANELS[1], [0, 500, LIMIT])] {
        for rate in rates {
            let at = y(rate, bottom);
            let (stroke, dash) = if rate == LIMIT {
                ("#b00020", "5 3")
            } else {
                ("#ccc", "none")
            };
            let _ = writeln!(
                w,
                "<path d=\"M50 {at}H{end}\" stroke=\"{stroke}\" stroke-dasharray=\"{dash}\"/>\
                 <text x=\"45\" y=\"{}\" text-anchor=\"end\">{rate}</text>",
                at + 4
            );
        }
    }
    let _ = writeln!(
        w,
        "<text x=\"50\" y=\"40\">per second: <tspan fill=\"#666\">offered</tspan>, \
         <tspan fill=\"{}\">admitted</tspan>, <tspan fill=\"#b00020\">limit</tspan></text>",
        COLOURS[0]
    );
    let _ = write!(
        w,
        "<text x=\"50\" y=\"250\">what each node may use, one upon the other:"
    );
    for (node, colour) in COLOURS.iter().enumerate() {
        let _ = write!(
            w,
            " <tspan fill=\"{colour}\" font-weight=\"bold\">node {}</tspan>",
            node + 1
        );
    }
    w.push_str("</text>\n");
    for (second, _) in MARKS.iter().skip(1) {
        let _ = writeln!(
            w,
            "<path d=\"M{0} 50V425\" stroke=\"#555\" stroke-dasharray=\"2 3\"/>",
            x(*second)
        );
    }
    for (line, marks) in [(436, &MARKS[..]), (449, &MORE[..])] {
        for (second, text) in marks {
            let _ = writeln!(w, "<text x=\"{}\" y=\"{line}\">{text}</text>", x(*second));
        }
    }
    for second in (0..=SHOWN).step_by(30) {
        let _ = writeln!(
            w,
            "<text x=\"{}\" y=\"470\" text-anchor=\"middle\" fill=\"#666\">{second} s</text>",
            x(second)
        );
    }
}

fn want(world: &mut World, wants: [u64; 4]) {
    for (node, units) in world.nodes.iter_mut().zip(wants) {
        node.demand[0] = units * MICRO;
    }
}

fn act(world: &mut World, second: u64) {
    match second {
        0 => want(world, [900, 0, 0, 0]),
        25 => want(world, [900, 600, 0, 0]),
        50 => want(world, [150, 600, 500, 0]),
        75 => {
            let leader = world.store.leader(world.now).unwrap_or(0);
            world.inject(Fault::KillChair(leader));
        }
        100 => {
            for chair in 0..world.chairs.len() {
                let cut = Fault::Cut {
                    node: 1,
                    chair,
                    up: true,
                    down: true,
                    lasts: 30 * SECOND,
                };
                world.inject(cut);
            }
        }
        155 => want(world, [900, 0, 0, 0]),
        _ => {}
    }
}

fn play() -> Vec<Sample> {
    let mut world = fleet(1);
    begin(&mut world);
    want(&mut world, [900, 0, 0, 0]);
    let end = world.now + 10 * SECOND;
    world.run(end);
    let start = world.now;
    let admitted = |world: &World| -> u64 { world.nodes.iter().map(|n| n.admitted[0]).sum() };
    let mut samples = Vec::new();
    for second in 0..SHOWN {
        act(&mut world, second);
        let before = admitted(&world);
        world.run(start + (second + 1) * SECOND);
        // Callers are served at intervals; all who are served during this second count for it.
        for node in 0..world.nodes.len() {
            world.serve(node);
        }
        samples.push(Sample {
            second,
            offered: world.nodes.iter().map(|node| node.demand[0] / MICRO).sum(),
            admitted: admitted(&world) - before,
            shares: [0, 1, 2, 3].map(|node| may(&world, node)),
        });
    }
    samples
}
