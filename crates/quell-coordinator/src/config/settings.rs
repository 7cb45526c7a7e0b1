//! Settings: the [table](quell_host::config) of what flags and variables say to a coordinator.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use axum::http::HeaderName;
use ipnet::IpNet;
use quell::override_store::DEFAULT_MAX_OVERRIDES;
use quell_host::config::{
    ConfigError, Half, RawSettings, Setting, SettingValue, TextValue, at_least, check_pair,
    check_tls, field, host_names,
};
use quell_host::secret_source::SecretSource;
use quell_host::settings;
use quell_rules::one_of;
use quell_shares::plan::Timing;

use super::{AccessConfig, Config, EtcdAccess, FleetStore, SocketConfig, Terms};
use crate::budget::Budget;
use crate::leader::Changes;
use crate::name::CoordinatorName;

/// The longest name of a fleet.
const MAX_NAME: usize = 64;

settings! {
    /// Settings of a coordinator, as flags and variables give them.
    Settings;
    /// Settings as written. Every field may be left out.
    RawConfig: |raw: RawConfig| raw, "";

    "The fleet" {
        /// The URLs of etcd 3.4 or newer, with commas: the fleet is kept there, and several coordinators may
        /// run
        etcd<URL>: Vec<String> = Vec::new();
        /// Keep the fleet in this file, without etcd: for one coordinator
        embedded<FILE>: Option<PathBuf> = None;
        /// For etcd with https: a PEM file with the authority that signed its certificates; without it, those
        /// that this machine trusts
        etcd_ca<FILE>: Option<PathBuf> = None;
        /// For etcd with https: a PEM file with the certificate to show
        etcd_cert<FILE>: Option<PathBuf> = None;
        /// A PEM file with the private key of --etcd-cert
        etcd_key<FILE>: Option<PathBuf> = None;
        /// The user of etcd
        etcd_user<NAME>: Option<String> = None;
        /// A file with that user's password
        etcd_password_file<FILE>: Option<PathBuf> = None;
        /// The name of the fleet: in etcd, and in the certificates of nodes
        fleet_name<NAME>: String = "default".to_owned(), check_name;
        /// Most overrides of single keys that the fleet keeps; what would add further ones is refused. Say the same
        /// to all coordinators of a fleet
        max_overrides<N>: usize = usize::try_from(DEFAULT_MAX_OVERRIDES).unwrap_or(usize::MAX), at_least(1);
    }
    "Rules" {
        /// A file or directory with the rules, which may be repeated; or one store that has them, such as
        /// etcd://HOST:2379/NAME. Followed: a good change is rolled out, a bad one is reported. The limits are those
        /// of rules with `rung: shares`; nodes with --rules fleet are given all of the text
        rules<SOURCE>: Vec<PathBuf> = Vec::new();
        /// Time at which changed rules are put into force: at-once for all nodes, or staged, by `quell
        /// fleet rollout`. Say the same to all coordinators of a fleet
        changes<WHEN>: Changes = Changes::AtOnce;
        /// File of the last hundred changes that people made here, for the console; beside it, with the
        /// ending .shares, the nodes' shares over time. Without it they are forgotten at a stop; with
        /// --embedded they are in FILE.changes and FILE.shares
        console_changes<FILE>: Option<PathBuf> = None;
    }
    "Listeners" {
        /// Listener for nodes: an address
        listen<ADDR>: SocketAddr = SocketAddr::new(Ipv4Addr::LOCALHOST.into(), 7600);
        /// Listener for operators, consoles and Prometheus, over HTTP: an address, or off
        admin<ADDR>: Option<SocketAddr> = Some(SocketAddr::new(Ipv4Addr::LOCALHOST.into(), 7601));
        /// The URL at which nodes reach --listen, such as https://a.internal:7600: other coordinators send them
        /// here. Without it, that of the address
        url<URL, "QUELL_ADVERTISE">: Option<PublicUrl> = None;
        /// The URL at which operators reach --admin; without it, that of the address
        admin_url<URL, "QUELL_ADVERTISE_ADMIN">: Option<PublicUrl> = None;
        /// For TLS: a PEM file with the certificate of this coordinator, and its chain
        tls_cert<FILE>: Option<PathBuf> = None;
        /// A PEM file with the private key of --tls-cert
        tls_key<FILE>: Option<PathBuf> = None;
        /// A PEM file with the authorities that sign the certificates of nodes. A node is the member that its
        /// certificate names: a URI that ends with /quell/NAME/member/ID, NAME being the fleet's, and perhaps
        /// /weight/N and /group/GROUP after it
        tls_client_ca<FILE>: Option<PathBuf> = None;
        /// A file of credentials, or env:NAME: nodes have the role node, operators read and admin, Prometheus
        /// metrics
        credentials<FILE>: Option<SecretSource> = None;
        /// Accept addresses beyond loopback without TLS or without credentials
        insecure<BOOL>: bool = false;
        /// A host name by which --admin may be asked, besides addresses and localhost; may be repeated
        allow_host<HOST>: Vec<String> = Vec::new(), host_names;
        /// The header by which a proxy that has authenticated a person names them to the console; it counts beside
        /// a token with the role proxy alone, as X-Quell-Token
        console_user_header<NAME>: Option<HeaderName> = None;
        /// An address, or a network such as 10.0.0.0/8, from which alone --console-user-header counts; may be
        /// repeated
        console_proxy<NETWORK>: Vec<IpNet> = Vec::new();
        /// Most bytes that messages of nodes take together while they come in, and answers until they are read. Nodes
        /// with one token or certificate have at most half of what the others leave
        max_buffer_bytes<BYTES>: usize = Budget::MOST;
    }
    "Durations and size" {
        /// The most nodes at once; without it, as many as `cluster_size` says, or with `auto` 100, or fewer if a
        /// limit is too small for so many
        seats<N>: Option<u32> = None;
        /// Interval of the nodes' reports: 100ms to 1s. Shares move within three reports
        report<DURATION>: Duration = Timing::DEFAULT.report;
        /// Time for which a node keeps its share without an answer. It outlasts a failover of coordinators
        lease<DURATION>: Duration = Timing::DEFAULT.lease;
        /// Time for which a node that is cut off keeps its static share; then it keeps a tenth of that
        hold<DURATION>: Duration = Timing::DEFAULT.hold;
        /// Time after --hold at which the seat of a silent node is free again; without it, only fence and
        /// deregister free a seat
        return_seats<DURATION>: Option<Duration> = None;
        /// Lifetime of the leader's key, in whole seconds: after that another coordinator leads. The same
        /// for all coordinators
        leader_ttl<DURATION>: Duration = Duration::from_secs(3);
    }
    "Logs" {
        /// Messages that are logged: error, warn, info, debug, trace, or levels of targets
        log<LEVEL>: String = "info".to_owned();
        /// Format of the log: text or json
        log_format<FORMAT>: String = "text".to_owned();
    }
}

fn check_name(text: &str) -> Result<(), String> {
    let is_of_name = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    match !text.is_empty() && text.len() <= MAX_NAME && text.bytes().all(is_of_name) {
        true => Ok(()),
        false => Err(format!(
            "a fleet has a name of 1 to {MAX_NAME} letters, digits, -, _ and ."
        )),
    }
}

/// The URL at which others reach a listener.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PublicUrl(String);

impl TextValue for PublicUrl {
    fn from_text(text: &str) -> Result<Self, String> {
        let url = text.trim_end_matches('/');
        CoordinatorName::check_url(url).map(|()| Self(url.to_owned()))
    }

    fn to_text(&self) -> String {
        self.0.clone()
    }
}

/// The words for [`Changes`].
const CHANGES: [(&str, Changes); 2] = [("at-once", Changes::AtOnce), ("staged", Changes::Staged)];

impl SettingValue for Changes {
    type Raw = String;

    fn read(key: &'static str, raw: &String) -> Result<Self, ConfigError> {
        one_of("value", raw, &CHANGES).map_err(|reason| field(key, reason))
    }

    fn to_raw(&self) -> Option<String> {
        let word = CHANGES.iter().find(|(_, changes)| changes == self);
        word.map(|(word, _)| (*word).to_owned())
    }
}

impl RawSettings for RawConfig {
    fn settings() -> Vec<Setting<Self>> {
        Self::flags()
    }
}

impl RawConfig {
    /// Resolves this, with a default for each field that is left out.
    ///
    /// # Errors
    /// [`ConfigError::Field`] for the first value that is impossible, or for two that do not fit together.
    pub fn resolve(&self) -> Result<Settings, ConfigError> {
        let settings = self.read()?;
        settings.check()?;
        Ok(settings)
    }
}

impl Settings {
    /// Refuses what [`Config`] cannot say.
    fn check(&self) -> Result<(), ConfigError> {
        match (self.etcd.is_empty(), &self.embedded) {
            (true, None) => {
                let reason = "a coordinator needs a place where the fleet is kept: write --etcd with the URLs of etcd, \
                              or --embedded with a file";
                return Err(field("etcd", reason));
            }
            (false, Some(_)) => {
                let reason =
                    "the fleet is kept in etcd or in a file: write --etcd or --embedded, not both";
                return Err(field("embedded", reason));
            }
            _ => {}
        }
        if self.rules.is_empty() {
            let reason = "a coordinator needs the rules whose limits it shares out: write --rules with a file";
            return Err(field("rules", reason));
        }
        let half = |key, noun, is_set| Half { key, noun, is_set };
        check_pair(
            half("etcd_cert", "certificate", self.etcd_cert.is_some()),
            half("etcd_key", "private key", self.etcd_key.is_some()),
        )?;
        let has_password = self.etcd_password_file.is_some();
        check_pair(
            half("etcd_user", "user", self.etcd_user.is_some()),
            half("etcd_password_file", "password", has_password),
        )?;
        let (cert, key) = (self.tls_cert.is_some(), self.tls_key.is_some());
        check_tls(cert, key, self.tls_client_ca.is_some())
    }

    /// The configuration that this means; `rules_access` is how rules in etcd are reached.
    #[must_use]
    pub fn config(self, rules_access: EtcdAccess) -> Config {
        let store = match self.embedded {
            Some(path) => FleetStore::Embedded(path),
            None => FleetStore::Etcd {
                urls: self.etcd,
                access: EtcdAccess {
                    authority: self.etcd_ca,
                    identity: self.etcd_cert.zip(self.etcd_key),
                    user: self.etcd_user.zip(self.etcd_password_file),
                },
            },
        };
        Config {
            changes: self.console_changes.or_else(|| store.changes()),
            store,
            rules: self.rules,
            rules_access,
            sockets: SocketConfig {
                listen: self.listen,
                admin: self.admin,
                url: self.url.map(|url| url.0),
                admin_url: self.admin_url.map(|url| url.0),
            },
            access: AccessConfig {
                fleet: self.fleet_name,
                certificate: self.tls_cert.zip(self.tls_key),
                client_authorities: self.tls_client_ca,
                credentials: self.credentials,
                insecure: self.insecure,
                hosts: self.allow_host,
                console_user_header: self.console_user_header,
                console_proxy: self.console_proxy,
            },
            terms: Terms {
                seats: self.seats,
                changes: self.changes,
                report: self.report,
                lease: self.lease,
                hold: self.hold,
                return_seats: self.return_seats,
                leader_ttl: self.leader_ttl,
            },
            max_buffer_bytes: self.max_buffer_bytes,
            max_overrides: self.max_overrides,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Raw settings, by keys.
    fn raw(said: &[(&str, &str)]) -> RawConfig {
        let mut raw = RawConfig::default();
        for (key, value) in said {
            let mut all = RawConfig::settings().into_iter();
            let setting = all.find(|setting| setting.key == *key).unwrap();
            (setting.set)(&mut raw, &[value.into()]).unwrap();
        }
        raw
    }

    #[test]
    fn what_is_shown_is_what_it_was_resolved_from() {
        let said = [
            ("embedded", "fleet.db"),
            ("rules", "a.yaml,b.yaml"),
            ("changes", "staged"),
            ("max_overrides", "5"),
            ("admin", "off"),
            ("url", "http://a:1/"),
            ("seats", "7"),
            ("return_seats", "1h"),
        ];
        let settings = raw(&said).resolve().unwrap();
        assert_eq!(settings.to_raw().resolve(), Ok(settings.clone()));
        let config = settings.config(EtcdAccess::default());
        assert_eq!(config.sockets.url.as_deref(), Some("http://a:1"));
        assert_eq!((config.sockets.admin, config.terms.seats), (None, Some(7)));
        assert_eq!(config.changes, Some("fleet.db.changes".into()));
        assert_eq!((config.rules.len(), config.max_overrides), (2, 5));
    }

    #[test]
    fn variables_are_named_after_keys_but_those_of_urls() {
        let variables = RawConfig::settings()
            .iter()
            .map(Setting::variable)
            .collect::<Vec<_>>();
        for variable in [
            "QUELL_EMBEDDED",
            "QUELL_ADVERTISE",
            "QUELL_ADVERTISE_ADMIN",
            "QUELL_ETCD_PASSWORD_FILE",
        ] {
            assert!(variables.iter().any(|name| name == variable), "{variable}");
        }
    }

    #[test]
    fn mistakes_say_what_to_write() {
        let sound = [("embedded", "fleet.db"), ("rules", "a.yaml")];
        for (said, expected) in [
            (
                ("etcd", "http://a:1"),
                "write --etcd or --embedded, not both",
            ),
            (
                ("fleet_name", "a/b"),
                "fleet_name: a fleet has a name of 1 to 64",
            ),
            (("etcd_cert", "a"), "write etcd_key as well"),
            (
                ("etcd_user", "a"),
                "etcd_user: a user is of no use without its password",
            ),
            (("tls_client_ca", "a"), "write tls_cert and tls_key as well"),
            (
                ("tls_key", "~/key.pem"),
                "tls_key: `~` is not expanded in `~/key.pem`",
            ),
            (("rules", "~/a.yaml"), "rules: `~` is not expanded"),
            (("credentials", "env:"), "`env:` names no variable"),
            (("listen", "7600"), "listen: `7600` is not an address"),
            (("url", "a"), "url: this is not a URL"),
            (("max_overrides", "0"), "max_overrides: "),
            (("changes", "later"), "write one of at-once, staged"),
            (("allow_host", "http://a"), "without scheme and port"),
        ] {
            let error = raw(&[&sound[..], &[said]].concat()).resolve().unwrap_err();
            assert!(error.to_string().contains(expected), "{error}");
        }
        for (said, expected) in [(&sound[1..], "etcd: "), (&sound[..1], "rules: ")] {
            let error = raw(said).resolve().unwrap_err().to_string();
            assert!(error.starts_with(expected), "{error}");
        }
    }
}
