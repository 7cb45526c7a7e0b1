//! Rules: from the files into force.

use quell::RulesError;
use quell_rules::{Loaded, Problem, force_shadow};

use crate::config::Config;
use crate::shared::Shared;

/// Reads the rules that the configuration names. Where servers share a store, all of them have to say
/// what is answered while that does not.
pub(crate) fn load(config: &Config) -> Result<Loaded, Vec<Problem>> {
    let mut loaded = quell_rules::load(&config.rules)?;
    if config.store.is_some() && !loaded.undeclared.is_empty() {
        return Err(loaded.undeclared);
    }
    if config.shadow {
        force_shadow(&mut loaded.domains);
    }
    Ok(loaded)
}

/// Brings rules into force in place of those that are, unless one cannot be followed here.
pub(crate) fn bring_into_force(shared: &Shared, loaded: Loaded) -> Result<(), RulesError> {
    for warning in &loaded.warnings {
        tracing::warn!("{warning}");
    }
    shared.limiter.set_rules(loaded.domains)?;
    shared.metrics.rules.adopt(&shared.limiter.rules());
    Ok(())
}
