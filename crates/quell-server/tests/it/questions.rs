//! Questions over HTTP: allowed, refused, and not understood.

use crate::harness::{Fixture, SHOP};

#[test]
fn a_hundred_pass_and_ten_do_not_and_the_numbers_say_so() {
    let server = Fixture::new(SHOP, "");
    let mut allowed = 0;
    for _ in 0..110 {
        let answer = server.acquire("/login", "alice");
        assert_eq!(answer.status, 200);
        allowed += usize::from(answer.json()["allowed"] == true);
    }
    assert_eq!(allowed, 100);
    let series = |outcome: &str| {
        let name = format!(
            "quell_decisions_total{{domain=\"shop\",rule=\"login\",outcome=\"{outcome}\"}}"
        );
        server.metric(&name)
    };
    assert_eq!(series("allow").as_deref(), Some("100"));
    assert_eq!(series("deny").as_deref(), Some("10"));
    let queries = server.metric("quell_queries_total{domain=\"shop\",outcome=\"deny\"}");
    assert_eq!(queries.as_deref(), Some("10"));
}
