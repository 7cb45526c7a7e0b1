//! Through: how much later Envoy answers a call when it asks a rate limit service first.

use std::fmt::Write as _;
use std::fs;
use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};

use super::{Rival, Settings};
use crate::machine::bench_folder;
use crate::processes::{Running, free_address};
use crate::report::{Report, progress};
use crate::table::Table;

/// The case of the report.
const CASE: &str = "through Envoy, one call at a time";

/// A listener that asks nobody.
const NOBODY: &str = "no filter";

/// Measures the mean time of a call through Envoy, alone on its connection, in each run, and returns the table.
///
/// # Errors
/// If Envoy does not run, or calls fail.
pub(super) fn measure(
    report: &mut Report,
    settings: &Settings,
    envoy: &Path,
    rivals: &[&Rival],
) -> Result<String> {
    let mut listeners = vec![(NOBODY, free_address()?, None)];
    for rival in rivals {
        listeners.push((rival.name, free_address()?, Some(rival.address)));
    }
    let application = free_address()?;
    let file = bench_folder().join("target").join("envoy.yaml");
    fs::write(&file, configuration(application, &listeners))?;
    let mut command = Command::new(envoy);
    command.args(["--concurrency", "1", "--disable-hot-restart"]);
    command.args(["--log-level", "error", "-c"]).arg(&file);
    // Held until the end.
    let _envoy = Running::start("envoy", &mut command, application)?;
    for run in 0..settings.runs {
        for turn in 0..listeners.len() {
            let (name, address, _) = listeners[(run + turn) % listeners.len()];
            let micros = mean_micros(address, settings.seconds)?;
            report.add(CASE, name, "us", micros);
            progress(&format!(
                "run {} of {}  {CASE} {name:<14} {micros:>8.1} us",
                run + 1,
                settings.runs
            ));
        }
    }
    let mut table = Table::new([CASE, "us", "more than without"]);
    let without = report.median(CASE, NOBODY);
    for (name, ..) in &listeners {
        let micros = report.median(CASE, name);
        let more = micros.zip(without).map(|(with, without)| with - without);
        let shown = |micros: Option<f64>| {
            micros.map_or_else(|| "-".to_owned(), |micros| format!("{micros:.0}"))
        };
        table.row([(*name).to_owned(), shown(micros), shown(more)]);
    }
    Ok(table.to_string())
}

/// An application that answers at once, and a listener before it for each service.
fn configuration(
    application: SocketAddr,
    listeners: &[(&str, SocketAddr, Option<SocketAddr>)],
) -> String {
    let mut text = "static_resources:\n  listeners:\n".to_owned();
    let answers = "direct_response: { status: 200, body: { inline_string: hello } }";
    // A text takes whatever is written.
    let _ = write!(text, "{}", listener(application, answers, None));
    for (name, address, service) in listeners {
        let asked = service.map(|_| host(name));
        let _ = write!(
            text,
            "{}",
            listener(
                *address,
                "route: { cluster: application }",
                asked.as_deref()
            )
        );
    }
    let _ = write!(
        text,
        "  clusters:\n{}",
        cluster("application", application, "")
    );
    for (name, _, service) in listeners {
        if let Some(service) = service {
            let _ = write!(text, "{}", cluster(&host(name), *service, HTTP2));
        }
    }
    text
}

/// The name of a cluster, which Envoy's questions have as their host.
fn host(rival: &str) -> String {
    rival.replace(", ", "-")
}

const HTTP2: &str = "
      typed_extension_protocol_options:
        envoy.extensions.upstreams.http.v3.HttpProtocolOptions:
          \"@type\": type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions
          explicit_http_config: { http2_protocol_options: {} }";

fn cluster(name: &str, address: SocketAddr, protocol: &str) -> String {
    format!(
        "    - name: \"{name}\"{protocol}
      load_assignment:
        cluster_name: \"{name}\"
        endpoints: [{{ lb_endpoints: [{{ endpoint: {{ address: {} }} }}] }}]
",
        socket(address)
    )
}

fn socket(address: SocketAddr) -> String {
    let (host, port) = (address.ip(), address.port());
    format!("{{ socket_address: {{ address: {host}, port_value: {port} }} }}")
}

fn listener(address: SocketAddr, route: &str, asked: Option<&str>) -> String {
    let filter = asked.map(|cluster| {
        format!(
            "
                  - name: envoy.filters.http.ratelimit
                    typed_config:
                      \"@type\": type.googleapis.com/envoy.extensions.filters.http.ratelimit.v3.RateLimit
                      domain: bench
                      timeout: 1s
                      failure_mode_deny: true
                      rate_limit_service:
                        transport_api_version: V3
                        grpc_service: {{ envoy_grpc: {{ cluster_name: \"{cluster}\" }} }}"
        )
    });
    format!(
        "    - address: {}
      filter_chains:
        - filters:
            - name: envoy.filters.network.http_connection_manager
              typed_config:
                \"@type\": type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager
                stat_prefix: bench
                route_config:
                  virtual_hosts:
                    - name: all
                      domains: [\"*\"]
                      routes:
                        - match: {{ prefix: / }}
                          {route}
                      rate_limits:
                        - actions: [{{ generic_key: {{ descriptor_key: user, descriptor_value: one }} }}]
                http_filters:{}
                  - name: envoy.filters.http.router
                    typed_config: {{ \"@type\": type.googleapis.com/envoy.extensions.filters.http.router.v3.Router }}
",
        socket(address),
        filter.unwrap_or_default()
    )
}

/// The mean time of a call of `h2load`, in microseconds.
fn mean_micros(address: SocketAddr, seconds: u64) -> Result<f64> {
    let output = Command::new("h2load")
        .args(["-t", "1", "-c", "1", "-m", "1", "-D", &seconds.to_string()])
        .arg(format!("http://{address}/"))
        .output()
        .context("cannot start h2load")?;
    let text = String::from_utf8_lossy(&output.stdout);
    let told = |begins: &str| text.lines().find_map(|line| line.strip_prefix(begins));
    let codes = told("status codes: ").unwrap_or_default();
    ensure!(
        output.status.success() && codes.contains(" 0 3xx, 0 4xx, 0 5xx"),
        "calls failed: {text}"
    );
    // Its columns are min, max and mean.
    let mean = told("time for request:").and_then(|line| line.split_whitespace().nth(2));
    mean.and_then(micros)
        .with_context(|| format!("h2load printed {text:?}"))
}

/// Microseconds of a time such as `1.02ms`.
fn micros(time: &str) -> Option<f64> {
    for (unit, factor) in [("us", 1.0), ("ms", 1e3), ("s", 1e6)] {
        if let Some(count) = time.strip_suffix(unit) {
            return Some(count.parse::<f64>().ok()? * factor);
        }
    }
    None
}
