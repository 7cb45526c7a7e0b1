//! Rule sources: the files and stores that rules are read from.

use std::path::PathBuf;
use std::sync::Arc;

use quell_core::rule::DomainRules;
use quell_envoy::config::{self, ConfigOptions, ImportedRules};
use quell_rules::{LoadedRules, Problem, Source, force_shadow, load_from, parse_str, read_texts};

use quell::rule_store::{RuleStore, RuleStoreError};
use quell_fleet::agent::FleetRules;

use crate::config::Config;
use crate::envoy::XdsLimits;
use crate::error::ServeError;
use quell_host::etcd_url::EtcdUrl;
use quell_host::rule_source::RuleSource;
use quell_host::stored_rules::StoredRules;

/// Opens the rules in an etcd; the text of an error says what to do. This crate has no client of etcd,
/// whose build needs `protoc`.
pub type OpenEtcd = fn(&EtcdUrl) -> Result<Arc<dyn RuleStore>, String>;

/// Limits in the format of envoyproxy/ratelimit, in files and directories, as rules of Quell.
///
/// # Errors
/// All mistakes in the files.
pub fn import_envoy_config(
    paths: &[PathBuf],
    merges_domains: bool,
) -> Result<ImportedRules, Vec<Problem>> {
    let options = ConfigOptions {
        merges_domains,
        ..ConfigOptions::default()
    };
    let domains = config::load(read_texts(paths)?.files, options)?;
    Ok(ImportedRules::new(&domains))
}

/// Sources of this server's rules, in the order in which they are loaded.
#[derive(Debug)]
pub(crate) struct RuleSources {
    parts: Vec<OpenSource>,
    /// Limits in the format of envoyproxy/ratelimit.
    envoy: Option<EnvoyLimits>,
    /// True if files of them have to be there.
    needs_envoy: bool,
    is_shadow: bool,
    /// True if there is a shared store: then all rules declare what is answered while it does not answer.
    is_shared: bool,
    /// True if servers of one store would not know each other's reservations.
    lacks_secret: bool,
}

#[derive(Debug)]
enum OpenSource {
    Path(PathBuf),
    Store(Arc<StoredRules>),
}

#[derive(Debug)]
enum EnvoyLimits {
    Path(PathBuf, ConfigOptions),
    Xds(Arc<XdsLimits>),
}

impl EnvoyLimits {
    fn new(config: &Config) -> Option<Self> {
        let options = ConfigOptions {
            merges_domains: config.envoy_merge_domains,
            is_shadow: config.shadow,
            is_quota: config.envoy_quota,
        };
        let path = config.envoy_config.clone();
        let path = path.map(|path| Self::Path(path, options));
        path.or_else(|| {
            let url = config.envoy_xds.clone()?;
            Some(Self::Xds(Arc::new(XdsLimits::new(url, options))))
        })
    }
}

impl OpenSource {
    fn new(store: Arc<dyn RuleStore>) -> Self {
        Self::Store(Arc::new(StoredRules::new(store)))
    }
}

impl RuleSources {
    /// The sources in the configuration. Nothing is read yet.
    ///
    /// # Errors
    /// If one cannot be opened at all.
    pub(crate) fn new(
        config: &Config,
        open_etcd: OpenEtcd,
        of_fleet: Option<&Arc<FleetRules>>,
    ) -> Result<Self, ServeError> {
        let cannot = |source: &RuleSource, reason| ServeError::RulesStore {
            url: source.to_path().display().to_string(),
            reason,
        };
        let part = |source: &RuleSource| match (source, source.open(open_etcd), of_fleet) {
            (RuleSource::Path(path), ..) => Ok(OpenSource::Path(path.clone())),
            (_, Some(store), _) => {
                let store = store.map_err(|reason| cannot(source, reason))?;
                Ok(OpenSource::new(store))
            }
            (_, None, Some(rules)) => Ok(OpenSource::new(Arc::<FleetRules>::clone(rules))),
            (_, None, None) => {
                let reason = "this server is not a node of a fleet".to_owned();
                Err(cannot(source, reason))
            }
        };
        Ok(Self {
            parts: config.rules.iter().map(part).collect::<Result<_, _>>()?,
            envoy: EnvoyLimits::new(config),
            needs_envoy: config.envoy_needs_config,
            is_shadow: config.shadow,
            is_shared: config.store.is_some(),
            lacks_secret: config.store.is_some()
                && config.envoy.is_some()
                && config.envoy_secret.is_none(),
        })
    }

    /// The files and directories among them.
    pub(crate) fn paths(&self) -> Vec<PathBuf> {
        let path = |part: &OpenSource| match part {
            OpenSource::Path(path) => Some(path.clone()),
            OpenSource::Store(_) => None,
        };
        let own = self.parts.iter().filter_map(path);
        let envoy = match &self.envoy {
            Some(EnvoyLimits::Path(path, _)) => Some(path.clone()),
            _ => None,
        };
        own.chain(envoy).collect()
    }

    /// The limits of a control plane, if there is one.
    pub(crate) const fn xds(&self) -> Option<&Arc<XdsLimits>> {
        match &self.envoy {
            Some(EnvoyLimits::Xds(limits)) => Some(limits),
            _ => None,
        }
    }

    /// Returns true if there is a control plane that has sent no configuration yet that came into force.
    pub(crate) fn lacks_config(&self) -> bool {
        self.xds().is_some_and(|limits| limits.version().is_none())
    }

    /// The stores among them.
    pub(crate) fn stores(&self) -> impl Iterator<Item = &Arc<StoredRules>> {
        self.parts.iter().filter_map(|part| match part {
            OpenSource::Path(_) => None,
            OpenSource::Store(stored) => Some(stored),
        })
    }

    /// Reads every store for the first time: a server does not start without the rules of all stores.
    pub(crate) async fn read_first(&self) -> Result<(), ServeError> {
        for stored in self.stores() {
            let url = stored.url();
            let latest = stored.read_first().await.map_err(|error| {
                let (url, reason) = (url.to_owned(), error.to_string());
                match error {
                    RuleStoreError::NoAnswer(_) => ServeError::RulesStoreGone { url, reason },
                    _ => ServeError::RulesStore { url, reason },
                }
            })?;
            match &latest {
                Some(version) => tracing::info!(
                    store = url,
                    version = version.number(),
                    by = version.entry.who,
                    "rules from the store"
                ),
                None => tracing::warn!(
                    "the store {url} has no rules yet: {}, and this server follows; it is not ready until \
                     then, unless it is started with --allow-empty-rules",
                    stored.store().advice()
                ),
            }
        }
        Ok(())
    }

    /// Reads every store. Where one cannot be read, its last version stays. Returns how many could not,
    /// and for how many of them that is new.
    pub(crate) async fn read(&self) -> (u64, u64) {
        let (mut failed, mut news) = (0, 0);
        for stored in self.stores() {
            match stored.read().await {
                Ok(()) => {}
                Err(is_new) => {
                    failed += 1;
                    news += u64::from(is_new);
                }
            }
        }
        (failed, news)
    }

    /// The rules of all files and stores, and the limits of a control plane. Reads files.
    ///
    /// # Errors
    /// Mistakes in them. Those of a control plane are told once: after that, its limits are the last ones without.
    pub(crate) fn load(&self) -> Result<LoadedRules, Vec<Problem>> {
        let own = self.load_own();
        let envoy = self.load_envoy(own.as_ref().ok());
        let (mut loaded, envoy) = match (own, envoy) {
            (Ok(loaded), Ok(envoy)) => (loaded, envoy),
            (own, envoy) => {
                let problems = [own.err(), envoy.err()];
                return Err(problems.into_iter().flatten().flatten().collect());
            }
        };
        if let Some(problem) = envoy.iter().find_map(|domain| taken(&loaded, domain)) {
            return Err(vec![problem]);
        }
        loaded.domains.extend(envoy);
        Ok(loaded)
    }

    /// The rules of all files and stores. Reads files.
    fn load_own(&self) -> Result<LoadedRules, Vec<Problem>> {
        let mut loaded = self.load_with(None)?;
        if self.is_shared && !loaded.undeclared.is_empty() {
            return Err(loaded.undeclared);
        }
        if self.lacks_secret
            && let Some(problem) = loaded.domains.iter().find_map(unsigned)
        {
            return Err(vec![problem]);
        }
        if self.is_shadow {
            force_shadow(&mut loaded.domains);
        }
        Ok(loaded)
    }

    /// The limits in the format of envoyproxy/ratelimit, beside the server's own rules if they have no mistakes. Reads
    /// files.
    fn load_envoy(&self, own: Option<&LoadedRules>) -> Result<Vec<DomainRules>, Vec<Problem>> {
        match &self.envoy {
            None => Ok(Vec::new()),
            Some(EnvoyLimits::Path(path, _)) if !self.needs_envoy && !path.exists() => {
                Ok(Vec::new())
            }
            Some(EnvoyLimits::Path(path, options)) => {
                let texts = read_texts(std::slice::from_ref(path))?;
                config::load(texts.files, *options)
            }
            Some(EnvoyLimits::Xds(limits)) => limits.load(|domain| taken(own?, domain)),
        }
    }

    /// The rules of all files and stores, with another text in place of that of one store, from 0; where there
    /// is no store, that text alone. Reads files.
    ///
    /// # Errors
    /// Mistakes in them.
    pub(crate) fn try_out(&self, place: usize, text: &str) -> Result<Vec<DomainRules>, String> {
        let loaded = match self.stores().next() {
            Some(_) => self.load_with(Some((place, text))),
            None => parse_str("the candidate", text),
        };
        let loaded = loaded.map_err(|problems| {
            let problems: Vec<String> = problems.iter().map(ToString::to_string).collect();
            problems.join("; ")
        })?;
        Ok(loaded.domains)
    }

    fn load_with(&self, other: Option<(usize, &str)>) -> Result<LoadedRules, Vec<Problem>> {
        let said: Vec<_> = self.stores().map(|stored| stored.last_read()).collect();
        let mut said = said.iter().enumerate();
        let sources = self.parts.iter().filter_map(|part| match part {
            OpenSource::Path(path) => Some(Source::Path(path)),
            OpenSource::Store(_) => match (said.next()?, other) {
                ((place, _), Some((at, text))) if at == place => Some(Source::Text {
                    name: "the candidate",
                    text,
                }),
                ((_, said), _) => said.as_ref().map(|(name, version)| Source::Text {
                    name,
                    text: &version.text,
                }),
            },
        });
        load_from(sources)
    }

    /// Notes that what was loaded last is in force. Returns a description of each new version.
    pub(crate) fn mark_all_in_force(&self) -> Vec<String> {
        let of_stores = self.stores().filter_map(|stored| stored.mark_in_force());
        let of_xds = self.xds().and_then(|limits| limits.mark_in_force());
        of_stores.chain(of_xds).collect()
    }

    /// Notes that what was read last from the stores is not in force.
    pub(crate) fn mark_all_refused(&self, reasons: &[String]) {
        for stored in self.stores() {
            stored.mark_refused(reasons);
        }
    }

    /// Returns true if a version that was read from a store is not in force.
    pub(crate) fn has_waiting_version(&self) -> bool {
        self.stores().any(|stored| {
            let read = stored.last_read().map(|(_, version)| version.number());
            read != stored.status().version()
        })
    }

    /// Returns true if a store of rules cannot be read, or has damaged rules, or there is no stream of the control
    /// plane, or its last configuration is refused.
    pub(crate) fn is_a_store_failing(&self) -> bool {
        let is_failing = |limits: &Arc<XdsLimits>| limits.failure().is_some();
        self.xds().is_some_and(is_failing)
            || self
                .stores()
                .any(|stored| stored.status().failure.is_some())
    }
}

/// Reports a domain of limits that the server's own rules have as well.
fn taken(own: &LoadedRules, domain: &DomainRules) -> Option<Problem> {
    let mut own = own.domains.iter();
    own.find(|other| other.domain == domain.domain)?;
    let message = format!(
        "the domain {} is in the limits of --envoy-config or --envoy-xds and in those of --rules: write it in one of \
         them",
        domain.domain
    );
    Some(Problem::of_file(&domain.domain, message))
}

/// Reports a rule of a domain that reserves, where no secret signs that.
fn unsigned(domain: &DomainRules) -> Option<Problem> {
    let mut rules = domain.rules.iter();
    let rule = rules.find(|rule| rule.reserve.is_some())?;
    let message = format!(
        "rule {} has `reserve`, and the servers of a store settle each other's reservations: write envoy_secret, the \
         same for all of them",
        rule.name
    );
    Some(Problem::of_file(&domain.domain, message))
}
