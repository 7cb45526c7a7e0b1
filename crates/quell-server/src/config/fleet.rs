//! Fleet: the settings of a server that is a node of a fleet, and that they fit together.

use quell_fleet::agent::CoordinatorUrl;
use quell_host::config::{Half, check_pair};

use super::{Config, ConfigError, RuleSource, field};

/// Refuses a node that is not complete, or that would tell strangers what it shows to coordinators.
pub(super) fn check(config: &Config) -> Result<(), ConfigError> {
    if config.fleet.is_empty() {
        return check_alone(config);
    }
    if config.fleet_member.is_none() {
        let reason = "a node of a fleet needs a number that no other node has: write one such as 3, or a name \
                      that ends with it, such as quell-3";
        return Err(field("fleet_member", reason));
    }
    if u32::try_from(config.fleet_weight).is_err() {
        return Err(field("fleet_weight", "a weight is at most 4294967295"));
    }
    let certificate = Half {
        key: "fleet_cert",
        noun: "certificate",
        is_set: config.fleet_cert.is_some(),
    };
    let private_key = Half {
        key: "fleet_key",
        noun: "private key",
        is_set: config.fleet_key.is_some(),
    };
    check_pair(certificate, private_key)?;
    let is_open = |url: &&CoordinatorUrl| !url.is_tls() && !url.is_loopback();
    match config.fleet.iter().find(is_open) {
        Some(url) if !config.insecure => {
            let reason = format!(
                "{url} is not TLS, so anybody on the way could read the token and grant shares: write an https \
                 URL, or say --insecure if the network keeps strangers out"
            );
            Err(field("fleet", reason))
        }
        _ => Ok(()),
    }
}

/// Refuses settings of a node on a server that is none.
fn check_alone(config: &Config) -> Result<(), ConfigError> {
    if config.rules.contains(&RuleSource::Fleet) {
        let reason = "the rules of a fleet come from its coordinators, and this server is not a node: write \
                      fleet, the URL of a coordinator, as well; a file of that name is ./fleet";
        return Err(field("rules", reason));
    }
    let said = [
        ("fleet_member", config.fleet_member.is_some()),
        ("fleet_group", !config.fleet_group.is_empty()),
        ("fleet_token", config.fleet_token.is_some()),
        ("fleet_ca", config.fleet_ca.is_some()),
        ("fleet_cert", config.fleet_cert.is_some()),
        ("fleet_key", config.fleet_key.is_some()),
        ("fleet_state", config.fleet_state.is_some()),
    ];
    match said.into_iter().find(|(_, said)| *said) {
        Some((key, _)) => {
            let reason = "this server is not a node of a fleet: write fleet, the URL of a coordinator, as well";
            Err(field(key, reason))
        }
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::super::RawConfig;

    #[test]
    fn mistakes_say_what_to_write() {
        let node = "fleet = ['http://127.0.0.1:1']\nfleet_member = 'n-1'\n";
        for (text, expected) in [
            (
                "fleet = ['http://127.0.0.1:1']",
                "fleet_member: a node of a fleet needs a number",
            ),
            (
                "fleet_member = '1'",
                "fleet_member: this server is not a node",
            ),
            ("rules = ['fleet']", "rules: the rules of a fleet come from"),
            (
                "fleet = ['a']",
                "fleet: `a` is not the URL of a coordinator",
            ),
            (
                "fleet = ['http://10.0.0.1:1']\nfleet_member = '1'",
                "fleet: http://10.0.0.1:1 is not TLS",
            ),
            (
                &*format!("{node}fleet_weight = 0"),
                "fleet_weight: 0 is too small",
            ),
            (
                &*format!("{node}fleet_cert = 'a'"),
                "write fleet_key as well",
            ),
            (
                &*format!("{node}fleet_key = 'a'"),
                "write fleet_cert as well",
            ),
            (
                &*format!("{node}fleet_token = 'env:'"),
                "fleet_token: `env:` names no variable",
            ),
        ] {
            let raw = RawConfig::from_toml("quell.toml", text).unwrap();
            let error = raw.resolve().unwrap_err().to_string();
            assert!(error.contains(expected), "{text}: {error}");
        }
        let raw = RawConfig::from_toml("quell.toml", node).unwrap();
        let config = raw.resolve().unwrap();
        let shown = config.to_raw().to_toml().unwrap();
        let again = RawConfig::from_toml("shown", &shown).unwrap().resolve();
        assert_eq!(again, Ok(config), "{shown}");
    }
}
