//! A real Envoy, and limits in the files of envoyproxy/ratelimit, served under its name.

use super::envoy_actions::{Edge, with_filter, with_rate_limits};
use super::{blocks, replace};
use crate::process::until;

/// Limits of that service's own examples.
const LIMITS: &str = "
domain: gateway
descriptors:
  - key: foo
    descriptors:
      - key: bar
        value: banned
        rate_limit: { name: banned_limit, unit: day, requests_per_unit: 0 }
  - key: source_cluster
    value: proxy
    descriptors:
      - key: destination_cluster
        value: override
        rate_limit: { replaces: [{ name: banned_limit }], unit: day, requests_per_unit: 2 }
  - key: service
    value: service_1
    quota_mode: true
    rate_limit: { unit: day, requests_per_unit: 1 }
  - key: service
    value: service_2
    quota_mode: true
    rate_limit: { unit: day, requests_per_unit: 2 }
  - key: tenant
    rate_limit: { unit: day, requests_per_unit: 21 }
";

fn header(name: &str) -> String {
    let key = name.replace('-', "_");
    format!("{{ request_headers: {{ descriptor_key: {key}, header_name: {name} }} }}")
}

/// Cases 19 and 21, as the scripts of that service ask.
#[test]
fn replaced_limits_and_quotas_refuse_as_there() {
    let edge = Edge::start_ratelimit(LIMITS, |page| {
        let [foo, bar, source, destination] =
            ["foo", "bar", "source-cluster", "destination-cluster"].map(header);
        let service = |number: u32| {
            format!(
                "{{ actions: [{{ header_value_match: {{ descriptor_key: service, descriptor_value: service_{number}, \
                 headers: [{{ name: x-quota, present_match: true }}] }} }}] }}"
            )
        };
        let rate_limits = format!(
            "[{{ actions: [{foo}, {bar}] }}, {{ actions: [{source}, {destination}] }}, {}, {}]",
            service(1),
            service(2)
        );
        with_rate_limits(page, &rate_limits)
    });
    let banned = ["Foo: x", "Bar: banned"];
    let fields = |destination| [&banned[..], &["Source-Cluster: proxy", destination]].concat();
    assert_eq!(edge.three(&banned, "/"), [429; 3]);
    assert_eq!(
        edge.three(&fields("Destination-Cluster: mock"), "/"),
        [429; 3]
    );
    let replaced = edge.three(&fields("Destination-Cluster: override"), "/");
    assert_eq!(replaced, [200, 200, 429]);
    assert_eq!(edge.three(&["X-Quota: 1"], "/"), [200, 200, 429]);
    edge.server.stop();
}

/// The check of each request, and the tokens that its answer says when its stream ends: nothing is lost.
#[test]
fn tokens_are_charged_whole_when_the_stream_ends() {
    let [_, _, _, route, filter] = blocks("Envoy").try_into().unwrap();
    let edge = Edge::start_ratelimit(LIMITS, |page| {
        let page = with_rate_limits(page, "[]");
        let place = "                          route: { cluster: application }\n";
        let page = replace(&page, place, &format!("{place}{route}"));
        with_filter(&page, &filter)
    });
    let within = "ratelimit_service_rate_limit_total_hits{domain=\"gateway\",key1=\"tenant\"}";
    for charged in 1..=3 {
        let answer = edge.ask(&["X-Tenant: acme"], "/answer?usage=10");
        assert_eq!(answer.status, 200, "{charged}");
        until("its tokens are charged", || {
            (edge.server.metric(within) == Some(10 * charged)).then_some(())
        });
    }
    assert_eq!(
        edge.three(&["X-Tenant: acme"], "/answer?usage=10"),
        [429; 3]
    );
    assert_eq!(edge.ask(&["X-Tenant: other"], "/").status, 200);
    edge.server.stop();
}
