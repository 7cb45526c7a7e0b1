//! The metrics of a coordinator, as Prometheus reads them.

use super::{Coordinator, Node, RULES, count};
use crate::files::Folder;
use crate::metrics::{documented, labels, linted};
use crate::process::until;

/// The metrics of a coordinator, and of its node.
pub(crate) fn of_a_fleet() -> [String; 2] {
    let folder = Folder::new();
    let rules = folder.write("shop.yaml", RULES);
    let place = ["--embedded", &*folder.path("fleet.db")];
    let coordinator = Coordinator::start(&rules, &place, &[]);
    let node = Node::start(&folder, &rules, 1, &[&coordinator]);
    coordinator.until("a node is there", |status| {
        count(status, "active") == 1 && status["applied"] == 1
    });
    let server = node.server.as_ref().unwrap();
    let of_a_node = until("the node shows its limits", || {
        let metrics = server.get("/metrics");
        metrics.contains("quell_fleet_limit{").then_some(metrics)
    });
    let of_the_leader = until("the coordinator shows nodes", || {
        let metrics = coordinator.metrics();
        metrics.contains("quell_fleet_nodes{").then_some(metrics)
    });
    [of_the_leader, of_a_node].map(linted)
}

#[test]
fn metrics_of_a_coordinator_are_on_the_page() {
    let [metrics, of_a_node] = of_a_fleet();
    documented(&labels(&of_a_node));
    documented(&labels(&metrics));
    for line in [
        "quell_fleet_leads 1",
        "quell_fleet_grants 1",
        "quell_fleet_generation 0",
        "quell_fleet_learning_seconds 0",
        "quell_fleet_store_up 1",
        "quell_fleet_limits_refused 0",
        "quell_bound_violated_total 0",
        "quell_fleet_nodes{state=\"active\"} 1",
        "quell_fleet_nodes{state=\"silent\"} 0",
        "quell_fleet_applied 1",
        "quell_fleet_limit_rate{limit=\"api\"} 200",
        "quell_fleet_limit_most{limit=\"api\"} 200",
        "quell_fleet_limit_entitled{limit=\"api\"} 200",
        "quell_fleet_limit_silent{limit=\"api\"} 0",
        "quell_fleet_limit_lag_seconds{limit=\"api\"} 0",
        "quell_fleet_limit_short_nodes{limit=\"api\"} 0",
    ] {
        assert!(metrics.lines().any(|one| one == line), "{line}\n{metrics}");
    }
}
