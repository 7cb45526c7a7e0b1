//! Ready: the line that says what listens where, once it does.

use quell_rules::ExactDuration;
use quell_server::config::Config;
use quell_server::{Address, Server};

use crate::log::Format;
use crate::output::{self, Paint};
use crate::rules::count;

/// Tells people with a line on standard error, and programs that read JSON with an event.
pub(super) fn print(server: &Server, config: &Config, format: Format) {
    let rules = server.rules();
    let facts = Facts {
        http: server.http_address(),
        resp: server.resp_address(),
        admin: server.admin_address(),
        envoy: server.envoy_address(),
        tls: config.tls_cert.is_some(),
        plain: &config.plain,
        domains: rules.domains().count(),
        rules: rules.all().count(),
        states: states(config),
    };
    match format {
        Format::Text => {
            let ready = Paint::stderr().green("ready:");
            output::note(format_args!("{ready} {}", facts.line()));
        }
        Format::Json => {
            let address = |address: Option<&Address>| {
                address.map_or_else(|| "off".to_owned(), |address| address.to_string())
            };
            tracing::info!(
                http = address(facts.http),
                resp = address(facts.resp),
                admin = address(facts.admin),
                envoy = address(facts.envoy),
                tls = facts.tls,
                domains = facts.domains,
                rules = facts.rules,
                states = facts.states,
                "ready"
            );
        }
    }
}

struct Facts<'a> {
    http: Option<&'a Address>,
    resp: Option<&'a Address>,
    admin: Option<&'a Address>,
    envoy: Option<&'a Address>,
    /// True if the listeners with a port speak TLS.
    tls: bool,
    /// Listeners that do not.
    plain: &'a [String],
    domains: usize,
    rules: usize,
    states: String,
}

impl Facts<'_> {
    fn line(&self) -> String {
        let has_tls = |name: &str| self.tls && !self.plain.iter().any(|plain| plain == name);
        let url = |name: &str, address: &Address| match address {
            Address::Tcp(address) if has_tls(name) => format!("https://{address}"),
            Address::Tcp(address) => format!("http://{address}"),
            Address::Unix(_) => address.to_string(),
        };
        let plain = |name: &str, address: &Address| match address {
            Address::Tcp(address) if has_tls(name) => format!("{address} with TLS"),
            address => address.to_string(),
        };
        let http = self
            .http
            .map(|address| format!("HTTP on {}", url("http", address)));
        let resp = self
            .resp
            .map(|address| format!("RESP on {}", plain("resp", address)));
        let admin = self
            .admin
            .map(|address| format!("administration on {}", url("admin", address)));
        let envoy = self
            .envoy
            .map(|address| format!("Envoy's rate limit service on {}", plain("envoy", address)));
        let listeners = [http, resp, admin, envoy].into_iter().flatten();
        let listeners: Vec<String> = listeners.collect();
        let rules = match self.rules {
            0 => "no rules (CL.THROTTLE needs none, --rules FILE brings some)".to_owned(),
            rules => format!(
                "{} in {}",
                count(rules, "rule"),
                count(self.domains, "domain")
            ),
        };
        format!("{}; {rules}; {}", listeners.join(", "), self.states)
    }
}

fn states(config: &Config) -> String {
    match (&config.store, &config.data_dir) {
        (Some(store), _) => format!("states in {store}"),
        (None, Some(directory)) => format!(
            "states in {}, a crash loses at most the last {}",
            directory.display(),
            ExactDuration(config.snapshot_interval)
        ),
        (None, None) => "states in memory only (--data-dir DIR keeps them)".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_line_says_what_listens_where() {
        let address = |text: &str| text.parse::<Address>().unwrap();
        let (http, resp) = (address("127.0.0.1:8080"), address("127.0.0.1:6380"));
        let admin = address("unix:/run/quell.sock");
        let mut facts = Facts {
            http: Some(&http),
            resp: Some(&resp),
            admin: None,
            envoy: None,
            tls: false,
            plain: &[],
            domains: 1,
            rules: 6,
            states: states(&Config::default()),
        };
        assert_eq!(
            facts.line(),
            "HTTP on http://127.0.0.1:8080, RESP on 127.0.0.1:6380; 6 rules in 1 domain; \
             states in memory only (--data-dir DIR keeps them)"
        );
        facts.tls = true;
        assert!(
            facts
                .line()
                .starts_with("HTTP on https://127.0.0.1:8080, RESP on 127.0.0.1:6380 with TLS; ")
        );
        facts.tls = false;
        facts.resp = None;
        facts.admin = Some(&admin);
        facts.envoy = Some(&resp);
        facts.rules = 0;
        assert!(facts.line().starts_with(
            "HTTP on http://127.0.0.1:8080, administration on unix:/run/quell.sock, Envoy's rate limit service on \
             127.0.0.1:6380; no rules (CL.THROTTLE"
        ));
    }
}
