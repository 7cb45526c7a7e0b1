//! Figure: one fleet through an eventful time, as numbers and as a picture.
//!
//! Four equal nodes share 1000/s. Demand moves, the leader dies, a node dies, a node is cut off.

use std::fmt::Write;

use quell_core::fleet::plan::MICRO;
use serde_json::{Value, json};

use crate::fault::{Fault, happen};
use crate::rng::Rng;
use crate::schedules::{SCHEDULES, Schedule, may};
use crate::setup::{MILLI, SECOND, Setup, Wish};
use crate::world::World;

fn fleet(seed: u64) -> World {
    let wish = Wish {
        seed,
        members: Some(4),
        limits: Some(1),
        seconds: 500,
        mistake: None,
    };
    let mut rng = Rng::new(seed);
    let mut setup = Setup::new(wish, &mut rng);
    let four = |schedule: &&Schedule| schedule.name == "leader-dies";
    if let Some(schedule) = SCHEDULES.iter().find(four) {
        (schedule.prepare)(&mut setup);
    }
    let mut world = World::new(setup, rng);
    world.note_plan();
    for chair in 0..world.chairs.len() {
        world.start_chair(chair);
    }
    world
}

/// What the fleet does after a change, in numbers.
#[derive(Clone, Debug)]
pub struct Stories {
    /// Milliseconds until a member that wants more has nine tenths of it, over several starts:
    /// the median and the longest.
    pub lag: (u64, u64),
    /// What the hungry member may use so many seconds after the leader's death.
    pub leader: Vec<(u64, u64)>,
    /// What a borrower may use so many seconds after an idle member's death.
    pub member: Vec<(u64, u64)>,
}

/// Tells them.
#[must_use]
pub fn stories() -> Stories {
    let mut lags: Vec<u64> = (1..=21).map(lag).collect();
    lags.sort_unstable();
    Stories {
        lag: (lags[lags.len() / 2], lags[lags.len() - 1]),
        leader: after(|world| {
            let leader = world.store.leader(world.now).unwrap_or(0);
            happen(world, Fault::KillChair(leader));
        }),
        member: after(|world| happen(world, Fault::KillNode(3))),
    }
}

fn lag(seed: u64) -> u64 {
    let mut world = fleet(seed);
    crate::schedules::begin(&mut world);
    // No election in between: this is about demand alone.
    world.quiet = true;
    let start = world.now;
    world.nodes[0].demand[0] = 0;
    world.nodes[1].demand[0] = 800 * MICRO;
    while may(&world, 1) < 720 && world.now < start + 30 * SECOND {
        let end = world.now + 10 * MILLI;
        world.run(end);
    }
    (world.now - start) / MILLI
}

fn after(fault: impl Fn(&mut World)) -> Vec<(u64, u64)> {
    let mut world = fleet(1);
    crate::schedules::begin(&mut world);
    let start = world.now;
    fault(&mut world);
    let mut rates = Vec::new();
    for seconds in [0, 2, 5, 8, 10, 12, 15, 20, 30, 60] {
        world.run(start + seconds * SECOND);
        rates.push((seconds, may(&world, 0)));
    }
    rates
}

impl Stories {
    /// For a person.
    #[must_use]
    pub fn text(&self) -> String {
        let line = |rates: &[(u64, u64)]| {
            let one = |(seconds, rate): &(u64, u64)| format!("{seconds} s: {rate}");
            rates.iter().map(one).collect::<Vec<_>>().join(", ")
        };
        format!(
            "four nodes, 1000/s:\n  rebalance lag, until 90 % of what is wanted: median {} ms, longest {} ms\n  \
             rate of a borrower after the leader's death: {}\n  \
             rate of a borrower after an idle member's death: {}\n",
            self.lag.0,
            self.lag.1,
            line(&self.leader),
            line(&self.member)
        )
    }

    /// For a program.
    #[must_use]
    pub fn json(&self) -> Value {
        let rates = |rates: &[(u64, u64)]| -> Vec<Value> {
            let one =
                |(seconds, rate): &(u64, u64)| json!({"after_s": seconds, "rate_per_s": rate});
            rates.iter().map(one).collect()
        };
        json!({
            "rebalance_lag_ms": {"median": self.lag.0, "longest": self.lag.1},
            "after_leader_death": rates(&self.leader),
            "after_member_death": rates(&self.member),
        })
    }
}

/// Seconds that the picture shows.
const SHOWN: u64 = 150;

const COLOURS: [&str; 4] = ["#2f6f9f", "#c4572e", "#5b8c3a", "#8a5fa8"];

#[derive(Clone, Copy, Debug)]
struct Sample {
    second: u64,
    offered: u64,
    admitted: u64,
    shares: [u64; 4],
}

fn line(w: &mut String, path: String, colour: &str) {
    let _ = writeln!(
        w,
        "<path d=\"{path}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"1.5\"/>"
    );
}

/// The picture, as SVG.
#[must_use]
pub fn draw() -> String {
    let (samples, marks) = play();
    let x = |second: u64| 50 + second * 5;
    let y = |rate: u64, top: u64| top + 160 - rate.min(1_600) / 10;
    let path = |top: u64, value: &dyn Fn(&Sample) -> u64| {
        let mut path = String::new();
        for (index, sample) in samples.iter().enumerate() {
            let letter = if index == 0 { 'M' } else { 'L' };
            let _ = write!(
                path,
                "{letter}{} {}",
                x(sample.second),
                y(value(sample), top)
            );
        }
        path
    };
    let mut svg = String::from(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 820 440\" font-family=\"sans-serif\" font-size=\"11\">\n\
         <rect width=\"820\" height=\"440\" fill=\"#fff\"/>\n",
    );
    let w = &mut svg;
    for (top, title) in [
        (30, "offered (grey) and admitted (blue), per second"),
        (240, "what each node may use, per second"),
    ] {
        let _ = writeln!(w, "<text x=\"50\" y=\"{}\">{title}</text>", top - 8);
        for rate in [0, 250, 1_000] {
            let at = y(rate, top);
            let _ = writeln!(
                w,
                "<path d=\"M50 {at}H800\" stroke=\"#ddd\"/><text x=\"45\" y=\"{}\" text-anchor=\"end\">{rate}</text>",
                at + 4
            );
        }
    }
    for (second, text) in &marks {
        let at = x(*second);
        let _ = writeln!(
            w,
            "<path d=\"M{at} 30V400\" stroke=\"#999\" stroke-dasharray=\"3\"/><text x=\"{}\" y=\"415\">{text}</text>",
            at + 2
        );
    }
    line(w, path(30, &|sample| sample.offered), "#aaa");
    line(w, path(30, &|sample| sample.admitted), COLOURS[0]);
    for (node, colour) in COLOURS.iter().enumerate() {
        line(w, path(240, &|sample| sample.shares[node]), colour);
        let at = 500 + node * 80;
        let _ = writeln!(
            w,
            "<text x=\"{at}\" y=\"232\" fill=\"{colour}\">node {}</text>",
            node + 1
        );
    }
    for second in (0..=SHOWN).step_by(30) {
        let _ = writeln!(
            w,
            "<text x=\"{}\" y=\"432\" text-anchor=\"middle\">{second} s</text>",
            x(second)
        );
    }
    svg.push_str("</svg>\n");
    svg
}

fn play() -> (Vec<Sample>, Vec<(u64, &'static str)>) {
    let mut world = fleet(1);
    crate::schedules::begin(&mut world);
    let start = world.now;
    let marks = vec![
        (15, "node 2 wants 600"),
        (40, "leader dies"),
        (70, "node 1 cut off"),
        (110, "node 1 is back"),
    ];
    let mut samples = Vec::new();
    let mut before = [0_u64; 4];
    for (count, node) in before.iter_mut().zip(&world.nodes) {
        *count = node.admitted[0];
    }
    for second in 0..=SHOWN {
        match second {
            0 => world.nodes[0].demand[0] = 900 * MICRO,
            15 => world.nodes[1].demand[0] = 600 * MICRO,
            40 => {
                let leader = world.store.leader(world.now).unwrap_or(0);
                happen(&mut world, Fault::KillChair(leader));
            }
            70 => {
                for chair in 0..world.chairs.len() {
                    let cut = Fault::Cut {
                        node: 0,
                        chair,
                        up: true,
                        down: true,
                        lasts: 40 * SECOND,
                    };
                    happen(&mut world, cut);
                }
            }
            _ => {}
        }
        world.run(start + (second + 1) * SECOND);
        let mut sample = Sample {
            second,
            offered: world.nodes.iter().map(|node| node.demand[0] / MICRO).sum(),
            admitted: 0,
            shares: [0; 4],
        };
        for (node, before) in before.iter_mut().enumerate() {
            let admitted = world.nodes[node].admitted[0];
            sample.admitted += admitted - *before;
            *before = admitted;
            sample.shares[node] = may(&world, node);
        }
        samples.push(sample);
    }
    (samples, marks)
}
