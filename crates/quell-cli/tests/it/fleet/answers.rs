//! Part of the calls to a fleet that is refused and answered degraded, now and over time.

use serde_json::Value;

use super::console::{chart, page};
use super::load::Load;
use super::rollout::Way;
use super::{Coordinator, LOOK, Node, RULES};
use crate::files::Folder;
use crate::process::{until, until_every};

/// A field of the first limit.
fn limit(status: &Value, field: &str) -> Option<f64> {
    status["limits"][0][field].as_f64()
}

/// The steps of a chart that say how much was refused and answered degraded.
fn steps(coordinator: &Coordinator, span: &str) -> Vec<(i64, [f64; 2])> {
    let Some(chart) = chart(coordinator, span) else {
        return Vec::new();
    };
    let times = chart["times"].as_array().unwrap().iter();
    let step = |(at, time): (usize, &Value)| {
        let percent = |column: usize| chart["below"][column][at].as_f64();
        Some((time.as_i64()?, [percent(0)?, percent(1)?]))
    };
    times.enumerate().filter_map(step).collect()
}

/// Demand since this leader hears the nodes, and its refused and degraded parts, by its metrics.
fn counted(coordinator: &Coordinator) -> Option<[f64; 3]> {
    let metrics = coordinator.metrics();
    let count = |what: &str| {
        let series = format!("quell_fleet_limit_{what}_total{{limit=\"api\"}}");
        metrics
            .lines()
            .find_map(|line| line.strip_prefix(&series)?.trim().parse().ok())
    };
    let [asked, refused, degraded] = ["asked", "refused", "degraded"].map(count);
    let counted = [asked?, refused?, degraded?];
    assert!(refused <= asked && degraded <= asked, "{counted:?}");
    Some(counted)
}

#[test]
fn what_is_refused_and_degraded_is_seen_without_a_rollout_and_after_a_restart() {
    let folder = Folder::new();
    // Less than four callers ask for.
    let rules = RULES.replace("200/s, burst: 40", "30/s, burst: 10");
    let file = folder.write("shop.yaml", &rules);
    let place = folder.path("fleet.db");
    let mut coordinator = Coordinator::brief(&file, &["--embedded", &place], &[]);
    let way = Way::to(coordinator.nodes);
    let node = Node::with(&folder, &file, 1, &way.url, &[]);
    node.until_it_is("granted");
    let status = coordinator.status().unwrap();
    assert_eq!(limit(&status, "refused_percent"), None, "{status}");

    let load = Load::on([node.port; 4]);
    let refused = |status: &Value| limit(status, "refused_percent") > Some(30.0);
    let status = coordinator.until("calls are refused", refused);
    assert_eq!(limit(&status, "degraded_percent"), Some(0.0), "{status}");
    let is_seen = |steps: &Vec<(i64, [f64; 2])>| {
        let of = |column: usize| steps.iter().map(move |(_, step)| step[column]);
        of(0).any(|refused| refused > 30.0) && of(1).any(|degraded| degraded > 1.0)
    };
    until("what it answered meanwhile is known and drawn", || {
        way.cut();
        node.until_it_is("static");
        load.until_more("it answers without a coordinator", &[0], 60);
        way.mend();
        node.until_it_is("granted");
        // A coordinator that a slow machine has cost its lead begins to count after all that.
        coordinator.until_some_reports_later();
        let degraded = limit(&coordinator.status()?, "degraded_percent");
        let is_known =
            degraded > Some(1.0) && counted(&coordinator)?.iter().all(|some| *some > 0.0);
        let is_drawn = ["hour", "day"].map(|span| is_seen(&steps(&coordinator, span)));
        (is_known && is_drawn == [true; 2]).then_some(())
    });
    assert!(page(&coordinator, "/console").contains(" %</td>"));
    load.end();
    // What was seen is kept. The next leader has heard nothing: what the node says that it answered before is no
    // spike of its charts.
    let before = steps(&coordinator, "hour");
    coordinator.stop();
    coordinator.restart();
    let status = coordinator.until("the node is heard", |status| status["applied"] == 1);
    assert_eq!(limit(&status, "asked_total"), Some(0.0), "{status}");
    assert_eq!(limit(&status, "refused_percent"), None, "{status}");
    for span in ["hour", "day"] {
        until_every(LOOK, span, || {
            Some(steps(&coordinator, span)).filter(is_seen)
        });
    }
    let after = steps(&coordinator, "hour");
    // The last step may have gone on.
    let whole = before.len() - 1;
    assert_eq!(after[..whole], before[..whole]);
    let load = Load::on([node.port; 4]);
    coordinator.until("calls are refused again", refused);
    load.end();
}
